"""The pages of limits: what is in force, and changes by hand."""

from __future__ import annotations

import re
import shlex

import pytest
from docs.test_shown import refusal
from httpx import AsyncClient
from playwright.async_api import Page, expect

from nonet import ConcurrencyLimiter, Nonet
from nonet.base.errors import UnableToAcquireLockError
from nonet.rules.limits import Limit, LimitAddress

JOB = LimitAddress("job", "7")
NAME = "limiter:conc:job:7"


async def test_limits_show_their_use_and_origin(nonet: Nonet, client: AsyncClient) -> None:
    """A declared limit of a limiter in use, and one that was set by hand, are listed."""
    await nonet.stores.limits.override(LimitAddress("job", "default"), Limit(5), "ann@host 1")
    async with nonet.hold(ConcurrencyLimiter("task", "Report", limit=3)):
        page = (await client.get("/limits")).text
    assert "task Report" in page and "1 of 3" in page and "declared by the class" in page
    assert "set by hand" in page and "ann@host 1" in page and "counted for each key" in page
    assert "Ceilings" in page and "namespace" in page


async def test_a_limit_is_changed_with_the_keyboard(nonet: Nonet, address: str, page: Page) -> None:
    """A limit that is edited on the page is in force at once, after a preview of its effect."""
    await nonet.stores.limits.override(JOB, Limit(1), "ann@host 1")
    slot = ConcurrencyLimiter("job", 7)
    async with nonet.hold(slot):
        with pytest.raises(UnableToAcquireLockError):
            async with nonet.hold(slot):
                raise AssertionError
        await page.goto(f"{address}/limits")
        await page.get_by_role("link", name="Change concurrency job 7").press("Enter")
        field = page.get_by_label("Executions at a time")
        await field.fill("2")
        await field.press("Enter")
        await page.get_by_text("What would change").wait_for()
        await expect(page.locator("main")).to_contain_text("1 → 2")
        await expect(page.locator("main")).to_contain_text("task-run limits set")
        await page.get_by_role("button", name="Set it").press("Enter")
        await page.get_by_text("set concurrency job 7: 2").wait_for()
        async with nonet.hold(slot):
            (found,) = await nonet.stores.limits.all()
            assert (found.limit, found.by) == (Limit(2), "alice")
        await page.get_by_role("button", name="Unset: concurrency job 7").press("Enter")
        await page.get_by_text("concurrency job 7: as configured").wait_for()
    assert await nonet.stores.limits.all() == []


async def test_a_new_limit_is_set(nonet: Nonet, client: AsyncClient) -> None:
    """A rate of a VO is previewed by the parts of its address, and set by its name."""
    where = {"type": "Job", "key": "default", "vo": "lhcb", "limiter": "rate"}
    page = await client.get("/limits/edit", params={**where, "number": "10", "window": "60"})
    assert page.status_code == 200 and "10 per 60 s" in page.text
    name = "limiter:rate:@lhcb:job:default"
    assert f'value="{name}"' in page.text
    (copied,) = re.findall(r'data-copy="(task-run [^"]*)"', page.text)
    assert copied == f"task-run limits set {name} --rate 10 --window 60"
    assert refusal(shlex.split(copied)) is None
    values = {"name": name, "number": "10", "window": "60"}
    assert (await client.post("/limits/edit", data=values)).status_code == 303
    (found,) = await nonet.stores.limits.all()
    assert (found.address.vo, found.limit) == ("lhcb", Limit(10, 60.0))


async def test_a_mistake_is_refused(nonet: Nonet, client: AsyncClient) -> None:
    """What `task-run limits set` refuses, the page refuses with the same words."""
    rate = "limiter:rate:job:7"
    for values, reason in [
        ({"name": NAME, "number": "0"}, "must be a whole number, 1 at least"),
        ({"name": rate, "number": "5", "window": "x"}, "window: &#39;x&#39; is not"),
        ({"name": "limiter:conc:jbo:7", "number": "5"}, "Did you mean job?"),
        ({"type": "job", "number": "5"}, "the key is missing"),
        ({"type": "job", "key": "7", "limiter": "x"}, "neither concurrency nor rate"),
    ]:
        answer = await client.get("/limits/edit", params={"number": "5", **values})
        assert answer.status_code == 422 and reason in answer.text, values
        if "name" in values:
            assert (await client.post("/limits/edit", data=values)).status_code == 422, values
    assert await nonet.stores.limits.all() == []


async def test_the_api_lists_ceilings(nonet: Nonet, client: AsyncClient) -> None:
    """Each scope has the number of its tasks and its ceiling."""
    term = await nonet.stores.leadership.lead("a", 30, "{}") or ""
    await nonet.stores.ceilings.publish(term, {"namespace": 5}, "scheduler@host 1")
    found = (await client.get("/api/v1/ceilings")).json()["items"]
    assert found == [{"scope": "namespace", "active": 0, "ceiling": 5}]
    assert 'aria-label="0 of 5"' in (await client.get("/limits")).text
