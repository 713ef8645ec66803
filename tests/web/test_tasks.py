"""Tasks in the dashboard: lists, one task, its actions, groups, and what is done to many."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from httpx import AsyncClient
from playwright.async_api import Page, expect
from pydantic import SecretStr
from waits import WAIT_SECONDS
from web.conftest import in_state, working
from web_tasks import Failing, Held, Locked, Login, Report

from nonet import LockedObjectType, MutexLock, Nonet
from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import Envelope, encode
from nonet.rules.permissions import Role
from nonet.stores.queue.submissions import Submission

LOCK = "lock:mutex:job:7"
BOTH = ("neil, mith", "mith, neil")


async def run(nonet: Nonet, *tasks: Any) -> list[str]:
    """Execute tasks, and return their ids."""
    async with working(nonet, Report.size):
        handles = [await nonet.submit(task) for task in tasks]
        for handle in handles:
            await nonet.stores.results.wait(handle, WAIT_SECONDS)
    return [str(handle) for handle in handles]


async def test_search_and_cancel_by_keyboard(nonet: Nonet, address: str, page: Page) -> None:
    """An id in the search field opens the task; a reason and Enter cancel it."""
    id = await nonet.submit(Report(1), at_time=datetime.now(UTC) + timedelta(hours=1))
    await page.goto(f"{address}/tasks")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.keyboard.press("/")
    await page.keyboard.type(id)
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"{address}/tasks/{id}")
    await expect(page.locator("#why")).to_contain_text("delayed until")
    await page.get_by_role("button", name="Cancel…").focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await page.keyboard.type("wrong input")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".message.good")
    assert (await nonet.status(id)).state == "cancelled"
    await expect(page.locator("#fields")).to_contain_text("wrong input")
    await expect(page.locator("#fields dd").first).to_have_text("cancelled")


async def test_each_filter_selects(nonet: Nonet, client: AsyncClient) -> None:
    """State, class, label, lock, worker and error select; live and ended tasks have their lists."""
    first = await nonet.submit(Report(1), labels={"customer": "acme"})
    second = await nonet.submit(Failing())
    (dead,) = await run(nonet, Failing("no bill"))

    async def ids(query: str) -> set[str]:
        path = "history" if query.startswith(("state=d", "state=cancelled")) else "tasks"
        answer = await client.get(f"/{path}?{query}")
        assert answer.status_code == 200, answer.text
        return set(re.findall(r'href="/tasks/([^"?]+)"', answer.text))

    first2, second2 = await nonet.submit(Report(2), labels={"customer": "acme"}), second
    assert await ids("") == {first2}
    assert await ids("label=customer%3Dacme&task=Report") == {first2}
    assert await ids("label=customer%3Dother") == set()
    assert await ids("state=dead&error=no+bill") == {dead}
    assert await ids("state=done") == {first}
    assert {dead, second2} == await ids("state=dead&since=5m")
    assert await ids("worker=1@nowhere") == set()
    async with working(nonet, Report.size), nonet.hold(MutexLock(LockedObjectType.JOB, 7)):
        waiting = await nonet.submit(Locked())
        await in_state(nonet, waiting, "waiting")
        assert await ids(f"lock={LOCK}") == {waiting}
        text = (await client.get(f"/tasks/{waiting}")).text
        assert "held by" in text and f"task-run locks release {LOCK}" in text
    assert (await client.get("/tasks?lock=nonsense")).status_code == 422


@pytest.fixture
def hostile() -> str:
    """A text that would run, hide or break the page if it were not inert."""
    return '<img src=x onerror="window.hit=1">\x1b[31m\u202egnp.exe' + "x" * 9_000


async def test_hostile_texts_are_inert(
    nonet: Nonet, address: str, page: Page, hostile: str
) -> None:
    """Names, ids, labels, errors and progress of hostile tasks are text, and fit the page."""
    id, name = "a/b?<script>#%41", "<script>window.hit=1</script>:Evil"
    envelope = Envelope(FORMAT, id, name, {"a": hostile}, {hostile[:99]: hostile}, 1.0)
    await nonet.broker.submit(
        [Submission(id, name, "normal:small", encode(envelope)), _foreign("b", name)]
    )
    (dead,) = await run(nonet, Failing(hostile))
    locked = await nonet.submit(Locked(hostile[:60]))
    paths = ("/tasks", "/history", f"/tasks/{dead}", "/bulk/cancel", f"/tasks/{locked}")
    for width in (1280, 390):
        await page.set_viewport_size({"width": width, "height": 800})
        for path in paths:
            await page.goto(address + path)
            await _is_inert(page)
        await page.goto(f"{address}/tasks")
        await page.get_by_role("link", name=id).click()
        assert await page.inner_text("h1") == name
        await _is_inert(page)


async def _is_inert(page: Page) -> None:
    assert await page.evaluate("window.hit") is None
    assert await page.locator("main img, main script").count() == 0
    text = await page.inner_text("main")
    assert "\u202e" not in text and "\x1b" not in text
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def _foreign(id: str, name: str) -> Submission:
    return Submission(id, name, "normal:small", b"no envelope")


async def test_attempts_are_on_one_axis(nonet: Nonet, client: AsyncClient) -> None:
    """API and page show when a task waited, and when it ran, with the error of the attempt."""
    (dead,) = await run(nonet, Failing("no bill"))
    spans = (await client.get(f"/api/v1/tasks/{dead}/timeline")).json()["spans"]
    assert [(one["what"], one["attempt"], one["error"]) for one in spans] == [
        *(("waited", 1, ""), ("ran", 1, "ValueError: no bill"))
    ]
    assert spans[0]["end"] == spans[1]["begin"]
    assert 'class="ran failed"' in (await client.get(f"/tasks/{dead}")).text


async def test_a_viewer_sees_no_details(nonet: Nonet, client_of: Any) -> None:
    """A viewer sees types of errors, no texts, and cannot search for them."""
    (dead,) = await run(nonet, Failing("the password is hunter2"))
    async with client_of(Role.VIEWER) as viewer:
        for path in (f"/tasks/{dead}", "/history?state=dead"):
            text = (await viewer.get(path)).text
            assert "ValueError" in text and "hunter2" not in text
            assert "Submit again" not in text and "Cancel" not in text
        for path in ("/tasks?label=a%3Db", "/history?state=dead&error=hunter2", "/bulk/cancel"):
            assert (await viewer.get(path)).status_code == 403


async def test_arguments_are_revealed_with_secrets_masked(
    nonet: Nonet, client: AsyncClient
) -> None:
    """Arguments, and the command that runs the task here, come only after the button."""
    id = await nonet.submit(Login("o'neil", SecretStr("hunter2")))
    assert "neil" not in (await client.get(f"/tasks/{id}")).text
    text = (await client.post(f"/tasks/{id}/reveal")).text
    assert "hunter2" not in text
    assert "task-run call web_tasks:Login --kwargs" in text and "**********" in text
    assert (await client.get(f"/tasks/{id}")).text.count("neil") == 0
    async with working(nonet, Report.size):
        await nonet.stores.results.wait(id, WAIT_SECONDS)
    text = (await client.post(f"/tasks/{id}/reveal")).text
    assert (
        "o&#39;neil" in text and "t0ps3cret" not in text
    )  # the result, of which the token is secret


async def test_arguments_of_a_page_are_revealed(client_of: Any, nonet: Nonet) -> None:
    """Those of its own rows, with secrets masked; the audit has the text that was searched."""
    for name in ("o'neil", "smith"):
        await nonet.submit(Login(name, SecretStr("hunter2")), id=name[-4:])
    async with client_of(Role.ADMIN) as admin:
        text = (await admin.post("/tasks/arguments?task=Login", data={"text": "NEIL"})).text
        assert "1 of the 2 tasks of this page" in text and "**********" in text
        assert re.findall(r'href="/tasks/([^"?]+)"', text) == ["neil"]
        assert "hunter2" not in text
        (entry,) = (await admin.get("/api/v1/audit?action=reveal")).json()["items"]
        assert entry["what"] in [f"arguments of tasks {ids} with 'NEIL'" for ids in BOTH]
    async with client_of(Role.OPERATOR) as operator:
        assert (await operator.post("/tasks/arguments")).status_code == 403


async def test_a_browser_remembers_the_columns(nonet: Nonet, client: AsyncClient) -> None:
    """Of each list by itself; the search stays, and none chosen are those of the beginning."""
    await nonet.submit(Report(1))

    async def headings() -> list[str]:
        return re.findall(r'<th scope="col"[^>]*>([\w ]+)</th>', (await client.get("/tasks")).text)

    usual = await headings()
    form = {"column": ["attempt", "stream", "odd"]}
    answer = await client.post("/columns/tasks?task=Report", data=form)
    assert answer.headers["location"] == "/tasks?task=Report"
    assert await headings() == ["Task", "Stream", "Attempt"]
    await client.post("/columns/history", data={"column": ["ended"]})
    assert await headings() == ["Task", "Stream", "Attempt"]
    await client.post("/columns/tasks")
    assert await headings() == usual


async def test_a_revealed_page_stays_live(nonet: Nonet, address: str, page: Page) -> None:
    """The answer to the button shows arguments, and is read again as the page of its task."""
    id = await nonet.submit(Report(4711))
    await page.goto(f"{address}/tasks/{id}")
    await page.get_by_role("button", name="Show arguments and command…").click()
    async with page.expect_response(lambda answer: answer.url == f"{address}/tasks/{id}") as seen:
        await page.get_by_role("button", name="Show them").click()
    assert (await seen.value).ok
    await expect(page.locator("#revealed")).to_contain_text("4711")


async def test_submit_again(nonet: Nonet, client: AsyncClient) -> None:
    """A live task is copied once per form, a failure once at all, and a done task not."""
    live = await nonet.submit(Report(1), at_time=datetime.now(UTC) + timedelta(hours=1))
    twice = [await client.post(f"/tasks/{live}/again", data={"once": "12345678"}) for _ in "ab"]
    (path,) = {answer.headers["location"] for answer in twice}
    assert (await nonet.status(path.rpartition("/")[2])).name == "web_tasks:Report"
    dead, done = await run(nonet, Failing(), Report(2))
    first = await client.post(f"/tasks/{dead}/again", data={"once": "12345678"})
    again = await client.post(f"/tasks/{dead}/again", data={"once": "87654321"})
    assert (first.status_code, again.status_code) == (303, 409)
    assert "was submitted again already" in again.text
    assert (await client.post(f"/tasks/{done}/again", data={"once": "12345678"})).status_code == 409
    assert "it is done: its arguments are not kept" in (await client.get(f"/tasks/{done}")).text


async def test_cancel_all_that_existed(nonet: Nonet, client: AsyncClient) -> None:
    """The preview counts by class, and what is submitted after it is left alone."""
    await nonet.submit_many([Report(n) for n in range(30)])
    other = await nonet.submit(Failing())
    preview = (await client.get("/bulk/cancel?task=Report")).text
    assert "Cancel: 30 tasks" in preview and ">Report: 30" in preview
    later = await nonet.submit(Report(99))
    until = re.search(r'name="until" value="(\d+)"', preview)
    assert until
    answer = await client.post(
        "/bulk/cancel?task=Report", data={"until": until[1], "reason": "too many"}
    )
    assert answer.status_code == 303
    assert "Cancelled 30 tasks" in (await client.get("/tasks")).text
    assert [(await nonet.status(id)).state for id in (later, other)] == ["queued"] * 2
    (event,) = await nonet.stores.events.last(5)
    assert event.kind == "tasks-cancelled" and "too many" in event.text


async def test_chosen_rows_are_cancelled(nonet: Nonet, address: str, page: Page) -> None:
    """A search has a short address; the rows that are chosen are cancelled, and no others."""
    ids = [await nonet.submit(Report(n), delay=3600) for n in range(3)]
    await page.goto(f"{address}/tasks")
    await page.get_by_label("Class", exact=True).fill("Report")
    await page.get_by_role("button", name="Search").click()
    await page.wait_for_url(f"{address}/tasks?task=Report")
    for id in ids[:2]:
        await page.get_by_label(f"Choose {id}").check()
    await page.get_by_role("button", name="Cancel the 2 chosen…").click()
    await expect(page.locator("h1")).to_have_text("Cancel: 2 tasks")
    await page.get_by_role("button", name="Cancel 2 tasks").click()
    await page.wait_for_url(f"{address}/tasks?task=Report")
    assert [(await nonet.status(id)).state for id in ids] == [*["cancelled"] * 2, "delayed"]


async def test_submit_all_failures_again(nonet: Nonet, client: AsyncClient) -> None:
    """Failures that match become new tasks; the answer counts those that were submitted before."""
    ids = await run(nonet, *(Failing(f"bill {n}") for n in range(5)), Failing("other"))
    chosen = (await client.get(f"/bulk/resubmit?task_id={ids[0]}&task_id={ids[5]}")).text
    assert "Submit again: 2 tasks" in chosen
    preview = (await client.get("/bulk/resubmit?error=bill")).text
    assert "Submit again: 5 tasks" in preview and ">Failing: 5" in preview
    until = re.search(r'name="until" value="(\d+)"', preview)
    assert until
    path, form = "/bulk/resubmit?error=bill", {"until": until[1]}
    assert (await client.post(path, data=form)).status_code == 303
    assert (await nonet.list_tasks(task="Failing")).matched == 5
    again = await client.post(path, data=form)
    assert "5 tasks were not submitted again" in again.text
    assert (await nonet.list_tasks(task="Failing")).matched == 5


async def test_a_running_task_links_its_worker(
    nonet: Nonet, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page names the worker as other pages do, and leads to it."""
    monkeypatch.setattr(Held, "gate", asyncio.Event())
    async with working(nonet, Held.size):
        id = await nonet.submit(Held())
        await in_state(nonet, id, "running")
        text = (await client.get(f"/tasks/{id}")).text
        link = re.search(r'href="(/workers/[^"]+)">([0-9]+@[^<]+)<', text)
        assert link and link[2] in (await client.get(link[1])).text
        Held.gate.set()
        await nonet.stores.results.wait(id, WAIT_SECONDS)


async def test_groups(nonet: Nonet, client: AsyncClient) -> None:
    """A group shows its children and its callback, and its children can be cancelled."""
    id = await nonet.client.spawn_with_callback([Report(1), Failing()], Report(2))
    assert id in (await client.get("/groups")).text
    text = (await client.get(f"/groups/{id}")).text
    assert f"/tasks/{id}.0" in text and "submitted when all children have ended" in text
    assert (await client.post(f"/groups/{id}/cancel", data={"reason": "no"})).status_code == 303
    status = await nonet.stores.groups.status(id)
    assert (status.state, status.failed) == ("fired", 2)


async def test_an_unknown_task_says_where_to_look(client: AsyncClient) -> None:
    """The page of an unknown task names the other places."""
    answer = await client.get("/tasks/nope")
    assert answer.status_code == 404
    assert "ended tasks" in answer.text and "logs" in answer.text
