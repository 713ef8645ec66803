"""The form that submits a task: of a class, or a task again with other arguments."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from httpx import AsyncClient
from playwright.async_api import Page, expect
from web.conftest import ClientOf, browsing
from web.test_dead_letters import fill
from web_tasks import Login, Report

from nonet import Nonet
from nonet.base.errors import InvalidArgumentsError, ServerUnreachableError
from nonet.client.client import Client
from nonet.operate import tasks
from nonet.rules.letters import Status
from nonet.rules.permissions import Role

HOSTILE = '</textarea><img src=x onerror="window.hit=1">'
FORM = "/submit?task=web_tasks:Login"


@pytest.fixture
async def page(chromium: str) -> AsyncIterator[Page]:
    """A page of the browser, which reports the answer 422 of a refused form as an error, too."""
    async with browsing(chromium, "422") as opened:
        yield opened


async def test_a_task_is_submitted_with_the_keyboard(
    nonet: Nonet, address: str, page: Page
) -> None:
    """A wrong argument is named beside its field; a check shows the command; then it is sent."""
    await page.goto(f"{address}/classes/web_tasks:Report")
    await page.get_by_role("link", name="Submit one …").press("Enter")
    number = page.get_by_label("number")
    await expect(number).to_have_attribute("placeholder", "0")
    await number.fill(HOSTILE)
    await page.get_by_role("button", name="Submit", exact=True).press("Enter")
    await expect(number).to_have_attribute("aria-invalid", "true")
    assert await number.input_value() == HOSTILE and await page.evaluate("window.hit") is None
    problem = page.locator(f"#{await number.get_attribute('aria-describedby')}")
    await expect(problem).to_contain_text("valid integer")
    await number.fill("7")
    await page.get_by_role("button", name="Check, and show the command").press("Enter")
    command = "task-run submit web_tasks:Report --kwargs '{\"number\": 7}'"
    await expect(page.locator(".command")).to_contain_text(command)
    assert [item async for item in nonet.live()] == []
    await page.get_by_role("button", name="Submit", exact=True).press("Enter")
    await page.get_by_text("Submitted it.").wait_for()
    (task,) = [item async for item in nonet.live()]
    assert page.url == f"{address}/tasks/{task.id}"


async def test_a_form_sent_twice_submits_one_task(nonet: Nonet, client: AsyncClient) -> None:
    """Its token identifies the task; with other arguments it is refused, and gets a new token."""
    form = {"argument.user": "me", "argument.password": "geheim", "once": "12345678"}
    twice = [(await client.post(FORM, data=form)).headers["Location"] for _ in "ab"]
    assert twice[0] == twice[1]
    other = await client.post(FORM, data={**form, "argument.user": "you"})
    assert other.status_code == 409 and "you" in other.text and "12345678" not in other.text
    assert len([item async for item in nonet.live()]) == 1


async def test_secrets_are_not_shown(nonet: Nonet, client: AsyncClient) -> None:
    """Neither the checked form nor its command nor the audit has a secret."""
    await (await nonet.stores.outbox()).prepare()
    form = {"argument.user": "me", "argument.password": "geheim", "check": "true"}
    checked = await client.post(FORM, data=form)
    assert checked.status_code == 200 and "geheim" not in checked.text
    assert "&#34;password&#34;: &#34;**********&#34;" in checked.text
    assert "Field required" in (await client.post(FORM, data={"argument.user": "me"})).text
    await client.post(FORM, data={**form, "check": ""} | {"once": "1"})
    said = [entry.what for entry in await (await nonet.stores.audit()).list()]
    assert not any("geheim" in what for what in said)


async def test_the_tab_keeps_no_secret(address: str, page: Page) -> None:
    """A form that survives the end of its session is without them."""
    await page.goto(f"{address}{FORM}")
    await page.get_by_label("user").fill("me")
    await page.get_by_label("password").fill("geheim")
    await page.evaluate("document.forms.submit.dispatchEvent(new Event('submit', {bubbles: true}))")
    kept = await page.evaluate("sessionStorage.getItem('nonet-form')")
    assert '["argument.user","me"]' in kept and "geheim" not in kept


async def test_a_form_keeps_what_was_typed_if_redis_is_lost(
    nonet: Nonet, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same form can be sent again: its token stays, so that nothing is submitted twice."""

    async def lost(*_: object, **__: object) -> None:
        raise ServerUnreachableError("Redis does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Client, "send_many", lost)
        form = {"argument.number": "7", "once": "12345678"}
        answer = await client.post("/submit?task=web_tasks:Report", data=form)
    assert answer.status_code == 503
    assert re.search(r">\s*7</textarea>", answer.text) and 'value="12345678"' in answer.text


async def test_a_class_that_has_vanished_is_named(client: AsyncClient) -> None:
    """Without its class a form cannot be checked, so nothing is submitted."""
    for answer in (
        await client.get("/submit?task=web_tasks:Gone"),
        await client.post("/submit?task=web_tasks:Gone", data={"argument.x": "1"}),
    ):
        assert answer.status_code == 422 and "unknown task" in answer.text


async def test_a_dead_letter_is_submitted_with_changes(nonet: Nonet, client_of: ClientOf) -> None:
    """An operator types what changes, an admin sees the rest; the letter counts as submitted."""
    await (await nonet.stores.outbox()).prepare()
    first, second = await fill(nonet, 2)
    async with client_of(Role.OPERATOR) as client:
        page = (await client.get(f"/dead-letters/{first}")).text
        assert "/submit?again=task-0" in page
        form = (await client.get("/submit?again=task-0")).text
        assert 'placeholder="as it was"' in form and not re.search(r">\s*0</textarea>", form)
        sent = {"argument.number": "41", "check": "true"}
        checked = (await client.post("/submit?again=task-0", data=sent)).text
        assert "task-run dlq resubmit --changes" in checked
        done = await client.post("/submit?again=task-0", data={"argument.number": "41"})
        again = await client.post("/submit?again=task-0", data={"argument.number": "42"})
        assert (done.status_code, again.status_code) == (303, 409)
    new = done.headers["Location"].rpartition("/")[2]
    assert f"was submitted again: {new}" in again.text
    letter = await (await nonet.dead_letters()).get(first)
    assert (letter.status, letter.resubmitted_as) == (Status.DISPATCHED, new)
    async with client_of(Role.ADMIN) as client:
        assert re.search(r">\s*1</textarea>", (await client.get("/submit?again=task-1")).text)
        shown = (await client.get(f"/api/v1/tasks/{new}/arguments")).json()
        assert shown["arguments"] == {"number": 41}
        body = {"changes": {"number": "many"}}
        wrong = await client.post(f"/api/v1/dead-letters/{second}/resubmit", json=body)
        assert wrong.status_code == 422 and "number" in wrong.json()["detail"]
    said = [entry.what for entry in await (await nonet.stores.audit()).list()]
    assert f"dead letter {first}: changed number" in said
    assert "arguments of task task-1" in said


async def test_a_task_with_changes_keeps_no_secret(nonet: Nonet, client: AsyncClient) -> None:
    """Else who may not read a secret could send it elsewhere; without changes it is kept."""
    live = await nonet.submit(Login("me", "geheim"))  # type: ignore[arg-type]
    path = f"/submit?again={live}"
    form = (await client.get(path)).text
    assert re.search(r">\s*me</textarea>", form) and "geheim" not in form
    with pytest.raises(InvalidArgumentsError, match="password: give this secret again"):
        await tasks.copy(nonet.client, live, "12345678", {"user": "you"})
    kept = await client.post(path, data={"argument.user": "you", "once": "12345678"})
    assert kept.status_code == 422 and "give this secret again" in kept.text
    done = [
        await client.post(path, data={"argument.user": "me", "once": "12345678"}),
        await client.post(
            path, data={"argument.user": "you", "argument.password": "neu", "once": "87654321"}
        ),
    ]
    assert [answer.status_code for answer in done] == [303, 303]
    assert len([item async for item in nonet.live()]) == 3


async def test_who_may_not_submit_gets_no_form(nonet: Nonet, client_of: ClientOf) -> None:
    """A viewer sees no button, and is refused; a submitter submits, but nothing again."""
    id = await nonet.submit(Report(1))
    async with client_of(Role.VIEWER) as client:
        assert "/submit" not in (await client.get(f"/tasks/{id}")).text
        assert (await client.get(FORM)).status_code == 403
    async with client_of(Role.SUBMITTER) as client:
        assert (await client.get(FORM)).status_code == 200
        assert (await client.get(f"/submit?again={id}")).status_code == 403
