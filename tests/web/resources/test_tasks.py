"""Live tasks over the API: lists, one task, cancelling, submitting again."""

from __future__ import annotations

import csv
import json
from io import StringIO
from typing import Any

from httpx import AsyncClient
from web.conftest import ClientOf
from web_tasks import Mail, Report

from nonet import Nonet
from nonet.rules.permissions import Role

TASKS = "/api/v1/tasks"


async def every(client: AsyncClient, **query: Any) -> list[dict[str, Any]]:
    """All items of a list, page by page."""
    found, cursor = list[dict[str, Any]](), ""
    while True:
        answer = await client.get(TASKS, params={**query, "cursor": cursor})
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        cursor = answer.json()["cursor"]
        if not cursor:
            return found
        assert len(cursor) < 90, "an address has it"


async def test_a_list_has_pages_and_filters(client: AsyncClient, nonet: Nonet) -> None:
    """Pages cover each task once; class, state and labels select."""
    ids = [await nonet.submit(Report(n), labels={"n": n % 2}) for n in range(25)]
    mail = await nonet.submit(Mail())
    found = await every(client, limit=7, task="Report")
    assert sorted(item["id"] for item in found) == sorted(ids)
    assert [item["id"] for item in await every(client, task="web_tasks:Mail")] == [mail]
    assert len(await every(client, label="n=1", limit=4)) == 12
    assert await every(client, state="running") == []
    some = await every(client, task_id=[ids[3], mail, "unknown"], task="Report")
    assert [item["id"] for item in some] == [ids[3]]
    wrong = await client.get(TASKS, params={"cursor": "abc"})
    assert (wrong.status_code, "cursor" in wrong.json()["detail"]) == (422, True)


async def test_a_list_is_a_file(client_of: ClientOf, nonet: Nonet) -> None:
    """CSV and JSON lines have the items of the list; one that is cut says so and continues."""
    ids = {await nonet.submit(Report(n), labels={"n": n}, id=f"={n}") for n in range(25)}
    async with client_of(Role.VIEWER) as viewer:
        items = (await viewer.get(TASKS)).json()["items"]
        lines = await viewer.get(f"{TASKS}.jsonl")
        assert [json.loads(line) for line in lines.text.splitlines()] == items
        assert {item["id"] for item in items} == ids
        cut = await viewer.get(f"{TASKS}.csv?limit=7&task=Report")
        assert cut.headers["content-disposition"] == 'attachment; filename="tasks-first-7.csv"'
        path = f"{TASKS}.csv?task=Report&cursor={cut.headers['nonet-cursor']}"
        rest = await viewer.get(path)
        assert "nonet-cursor" not in rest.headers
        rows = [*csv.DictReader(StringIO(cut.text)), *csv.DictReader(StringIO(rest.text))]
        # A spreadsheet must not take an id for a formula.
        assert [row["id"] for row in rows] == [f"'{item['id']}" for item in items]
        text = (await viewer.get("/tasks?task=Report&state=")).text
        assert f'href="{TASKS}.csv?task=Report"' in text
    async with client_of(Role.SUBMITTER) as submitter:
        assert (await submitter.get(f"{TASKS}.csv")).status_code == 403


async def test_one_task_has_a_status_and_an_explanation(client: AsyncClient, nonet: Nonet) -> None:
    """Ids may contain slashes; an unknown one is a 404."""
    await nonet.submit(Report(1), id="report/2026/7")
    status = await client.get(f"{TASKS}/report/2026/7")
    assert (status.status_code, status.json()["state"]) == (200, "queued")
    why = await client.get(f"{TASKS}/report/2026/7/explanation")
    assert (why.status_code, why.json()["cause"]) == (200, "worker")
    for path in ("nothing", "nothing/explanation"):
        answer = await client.get(f"{TASKS}/{path}")
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_task_is_cancelled_once(client: AsyncClient, nonet: Nonet) -> None:
    """The event stream names the caller; an ended task is a conflict."""
    id = await nonet.submit(Report(1))
    answer = await client.post(f"{TASKS}/{id}/cancel", json={"reason": "too late"})
    assert answer.json() == {"id": id, "state": "cancelled"}
    (event,) = await nonet.stores.events.last(9, kind="tasks-cancelled")
    assert event.who == "alice"
    assert "too late" in event.text
    assert (await client.post(f"{TASKS}/nothing/cancel")).status_code == 404


async def test_many_are_cancelled_in_two_steps(client: AsyncClient, nonet: Nonet) -> None:
    """A preview counts; the real call needs its moment and leaves later tasks alone."""
    ids = [await nonet.submit(Report(n)) for n in range(5)]
    other = await nonet.submit(Mail())
    selection = {"task": "web_tasks:Report"}
    preview = (await client.post(f"{TASKS}/cancel", json=selection)).json()
    assert (preview["number"], preview["dry_run"]) == (5, True)
    assert len(preview["sample"]) == 5
    later = await nonet.submit(Report(6))
    real = {**selection, "dry_run": False}
    assert (await client.post(f"{TASKS}/cancel", json=real)).status_code == 422
    real["moment"] = preview["moment"]
    done = (await client.post(f"{TASKS}/cancel", json=real)).json()
    assert (done["number"], done["is_complete"]) == (5, True)
    assert [(await nonet.status(id)).state for id in ids] == ["cancelled"] * 5
    assert {item["id"] for item in await every(client)} == {str(other), str(later)}
    assert (await client.post(f"{TASKS}/cancel", json={})).status_code == 422


async def test_a_submitter_reads_the_tasks_whose_ids_it_knows(
    client_of: ClientOf, nonet: Nonet
) -> None:
    """It submits and follows its tasks, and neither lists, changes nor reveals any."""
    ended = await nonet.submit(Report(1))
    await nonet.cancel([ended])
    async with client_of(Role.SUBMITTER) as program:
        made = await program.post(TASKS, json={"task": "Report", "arguments": {"number": 1}})
        id = made.json()["id"]
        for path in (f"{TASKS}/{id}", f"{TASKS}/{id}/explanation", f"/api/v1/history/{ended}"):
            assert (await program.get(path)).status_code == 200, path
        for path in (TASKS, "/api/v1/history", "/api/v1/overview", "/", f"{TASKS}/{id}/arguments"):
            assert (await program.get(path)).status_code == 403, path
        assert (await program.post(f"{TASKS}/{id}/cancel")).status_code == 403


async def test_a_viewer_cannot_search_for_what_is_hidden(client_of: ClientOf, nonet: Nonet) -> None:
    """Filters by labels and errors would reveal them."""
    await nonet.submit(Report(1), labels={"key": "hunter2"})
    async with client_of(Role.VIEWER) as viewer:
        assert len(await every(viewer)) == 1
        for query in ({"label": "key=hunter2"}, {"error": "x"}):
            assert (await viewer.get(TASKS, params=query)).status_code == 403
