"""The page of delayed tasks: order, run now, and cancel."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from httpx import AsyncClient
from playwright.async_api import Page
from web_tasks import Failing, Report

from nonet import Nonet


async def test_the_soonest_comes_first(nonet: Nonet, client: AsyncClient) -> None:
    """Tasks are listed by due time, and can be filtered by class; one that is due is flagged."""
    now = datetime.now(UTC)
    late = await nonet.submit(Report(1), at_time=now + timedelta(hours=2))
    soon = await nonet.submit(Failing(), at_time=now + timedelta(hours=1))
    page = (await client.get("/delayed")).text
    assert page.index(soon) < page.index(late)
    assert "overdue" not in page
    filtered = (await client.get("/delayed?task=Report")).text
    assert late in filtered and soon not in filtered
    await nonet.broker.client.zadd("{test}:tasks:delayed", {soon: 1e15})
    await nonet.broker.client.zadd("{test}:tasks:delayed", {late: now.timestamp() * 1e6})
    assert "overdue by" in (await client.get("/delayed?task=Failing")).text


async def test_a_task_is_started_and_another_cancelled(
    nonet: Nonet, address: str, page: Page
) -> None:
    """The keyboard is enough to make a task due, and to cancel one with a reason."""
    later = datetime.now(UTC) + timedelta(hours=1)
    first = await nonet.submit(Report(1), at_time=later)
    second = await nonet.submit(Report(2), at_time=later + timedelta(hours=1))
    await page.goto(f"{address}/delayed")
    await page.get_by_role("button", name=f"Run {first} now").press("Enter")
    await page.get_by_text("1 task due now").wait_for()
    status = await nonet.status(first)
    assert status.due and status.due <= datetime.now(UTC)
    row = page.get_by_role("row").filter(has_text=str(second))
    await row.get_by_role("button", name="Cancel …").press("Enter")
    await row.get_by_label("Reason").fill("not needed")
    await page.keyboard.press("Enter")
    await page.get_by_text("1 task cancelled").wait_for()
    assert (await nonet.status(second)).state == "cancelled"
    assert "not needed" in (await nonet.status(second)).error


async def test_a_task_that_moved_on_is_left_alone(nonet: Nonet, client: AsyncClient) -> None:
    """A task that is not delayed any more is neither hastened nor cancelled, and that is said."""
    queued = await nonet.submit(Report(1))
    for verb in ("now", "cancel"):
        answer = await client.post(f"/delayed/{verb}", data={"id": queued}, follow_redirects=True)
        assert f"{queued} is queued, not delayed" in answer.text
    assert (await nonet.status(queued)).state == "queued"
