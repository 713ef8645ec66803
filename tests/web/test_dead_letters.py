"""Dead letters, as pages and in the API."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from doors import Door
from httpx import AsyncClient
from playwright.async_api import Page, expect
from web.accessible import faults
from web.conftest import ClientOf, Fixed, asking, eventually, principal
from web_tasks import Report

from nonet import Nonet
from nonet.base.messages.documents import encrypted_arguments
from nonet.base.messages.encryption import NO_KEY, Cipher
from nonet.base.messages.message import encode
from nonet.client.explaining import explain_by_facts
from nonet.config.web_settings import WebSettings
from nonet.rules.letters import NewDeadLetter, Status
from nonet.rules.permissions import Role
from nonet.stores.sql import database as sql
from nonet.web.app import create_app
from nonet.web.resources.dead_letters import letters

API = "/api/v1/dead-letters"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def letter(number: int, *, error: str = "KeyError", **changes: Any) -> NewDeadLetter:
    """A letter of a task that can be submitted again, whose texts try to be HTML."""
    values: dict[str, Any] = {
        "task_id": f"task-{number}",
        "generation": 1,
        "task_class": "web_tasks:Report",
        "task_args": encode({"number": number}),
        "submitted_at": datetime.now(UTC),
        "reason": "retries",
        "error_type": error,
        "error_message": f"{HOSTILE} of {number}",
        "traceback": 'Traceback (most recent call last):\n  File "/srv/shop/bill.py", line 3, in '
        f"pay\n    {HOSTILE}\n{error}: {HOSTILE}",
        "labels": {"customer": HOSTILE},
        "history": [{"attempt": 1, "at": 1.8e9, "error": f"{error}: {HOSTILE}", "wall": 2.5}],
    }
    return NewDeadLetter(**values | changes)


async def fill(nonet: Nonet, number: int, **changes: Any) -> list[int]:
    """Write letters, and return their rows."""
    store = await nonet.dead_letters()
    return [await store.add(letter(index, **changes)) for index in range(number)]


async def ended(client: AsyncClient, bulk: dict[str, Any]) -> dict[str, Any]:
    """Wait until a bulk change has ended, and return its state."""

    async def is_over() -> dict[str, Any] | None:
        state: dict[str, Any] = (await client.get(f"{API}/bulk/{bulk['id']}")).json()
        return state if state["ended"] else None

    return await eventually(is_over, "the change has ended") or {}


async def statuses(nonet: Nonet) -> dict[int, str]:
    """The status of each letter by row."""
    found = await (await nonet.dead_letters()).list(limit=1000)
    return {item.id: item.status for item in found}


async def test_letters_are_resubmitted_at_a_rate(nonet: Nonet, client: AsyncClient) -> None:
    """Those that existed at the dry run: one starts now, the others later, at the rate."""
    rows = await fill(nonet, 5)
    other = (await fill(nonet, 1, error="OSError", generation=2))[0]
    wanted = {"error": "key", "rate": 0.1}
    dry = await client.post(f"{API}/resubmit", json={**wanted, "dry_run": True})
    assert dry.status_code == 200
    assert dry.json() == {"number": 5, "up_to": rows[-1], "bulk": None}
    late = (await fill(nonet, 1, generation=3))[0]
    answer = await client.post(f"{API}/resubmit", json={**wanted, "up_to": rows[-1]})
    assert answer.status_code == 202
    state = await ended(client, answer.json()["bulk"])
    assert (state["total"], state["done"], state["failed"], state["problem"]) == (5, 5, 0, "")
    expected = {**dict.fromkeys(rows, "DISPATCHED"), other: "PENDING", late: "PENDING"}
    assert await statuses(nonet) == expected
    found = await (await nonet.dead_letters()).list(status=Status.DISPATCHED)
    repeats = [await nonet.status(item.resubmitted_as or "") for item in found]
    assert sorted(item.state for item in repeats) == ["delayed"] * 4 + ["queued"]
    due = sorted(item.due for item in repeats if item.due)
    steps = [second - first for first, second in pairwise(due)]
    assert min(steps) > timedelta(seconds=9)  # ten, for one each ten seconds
    (event,) = await nonet.stores.events.last(1, kind="dlq-resubmit")
    assert event.text.startswith("5 rows") and event.who == "alice"


async def test_chosen_letters_are_changed(nonet: Nonet, client: AsyncClient) -> None:
    """Rows of the list select what a preview counts, and what is submitted again."""
    first, second, third = await fill(nonet, 3)
    page = (await client.get("/dead-letters?view=letters")).text
    assert f'name="letter" value="{second}" form="chosen"' in page
    chosen = f"letter={first}&letter={third}"
    for action in ("Submit", "Discard"):
        path = f"/dead-letters/{'resubmit' if action == 'Submit' else 'discard'}?{chosen}"
        assert f"{action} 2 dead letters" in (await client.get(path)).text
    form = {"up_to": third}
    assert (await client.post(f"/dead-letters/resubmit?{chosen}", data=form)).status_code == 303
    (bulk,) = (await client.get(f"{API}/bulk")).json()["items"]
    await ended(client, bulk)
    found = await statuses(nonet)
    assert found == {first: "DISPATCHED", second: "PENDING", third: "DISPATCHED"}


async def test_the_deadline_of_a_class_counts_from_the_start(
    nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A letter that is resubmitted for later does not expire before its time."""
    monkeypatch.setattr(Report, "start_by", 60)
    (row,) = await fill(nonet, 1)
    due = datetime.now(UTC) + timedelta(hours=1)
    handle = await nonet.resubmit(row, at_time=due)
    assert (await nonet.status(handle)).state == "delayed"
    explained = await explain_by_facts(nonet.client, str(handle))
    deadline = explained[1].start_by
    assert deadline is not None
    assert abs(deadline - due.timestamp() - 60) < 1


async def test_letters_of_a_class_that_is_unknown_stay(nonet: Nonet, client: AsyncClient) -> None:
    """The change counts them as failed and says why; a selection of nothing is refused."""
    await fill(nonet, 2, task_class="gone:Task")
    assert (await client.post(f"{API}/resubmit", json={})).status_code == 422
    answer = await client.post(f"{API}/resubmit", json={"all": True})
    state = await ended(client, answer.json()["bulk"])
    assert (state["done"], state["failed"]) == (0, 2)
    assert "gone:Task" in state["problems"][0]
    assert set((await statuses(nonet)).values()) == {"PENDING"}


async def test_a_change_can_be_stopped(nonet: Nonet, client: AsyncClient) -> None:
    """The letters that it has not changed stay as they are."""
    await fill(nonet, 300)
    bulk = (await client.post(f"{API}/resubmit", json={"all": True, "rate": 1})).json()["bulk"]
    assert (await client.post(f"{API}/bulk/{bulk['id']}/stop")).status_code == 200
    state = await ended(client, bulk)
    assert state["problem"] == "stopped by alice"
    found = list((await statuses(nonet)).values())
    assert found.count("DISPATCHED") == state["done"] < 300
    assert found.count("PENDING") == 300 - state["done"]


async def test_letters_are_discarded_with_a_note(nonet: Nonet, client: AsyncClient) -> None:
    """One by one, and by a filter; the event stream keeps the note."""
    rows = await fill(nonet, 4)
    kept = (await fill(nonet, 1, error="OSError", generation=2))[0]
    answer = await client.post(f"{API}/{rows[0]}/discard", json={"why": "paid by hand"})
    assert answer.status_code == 204
    (cluster,) = (await client.get(f"{API}/clusters", params={"error": "KeyError"})).json()["items"]
    wanted = {"cluster": cluster["fingerprint"], "why": "fixed in 2.4"}
    bulk = (await client.post(f"{API}/discard", json=wanted)).json()["bulk"]
    state = await ended(client, bulk)
    assert (state["done"], state["text"]) == (
        3,
        "discard KeyError of web_tasks:Report: fixed in 2.4",
    )
    assert await statuses(nonet) == {kept: "PENDING"}
    one, many = await nonet.stores.events.last(2, kind="dlq-discard")
    assert one.text == f"row {rows[0]}: paid by hand"
    assert many.text.startswith("3 rows") and many.text.endswith("fixed in 2.4")


async def test_lists_have_pages(nonet: Nonet, client: AsyncClient) -> None:
    """A cursor leads from page to page, through letters and clusters."""
    rows = await fill(nonet, 3)
    await fill(nonet, 1, error="OSError", generation=2)
    for path, number in ((API, 4), (f"{API}/clusters", 2)):
        seen, cursor = [], ""
        while cursor is not None:
            answer = await client.get(path, params={"limit": 1, "cursor": cursor})
            page = answer.json()
            seen += [str(item) for item in page["items"]]
            cursor = page["cursor"]
        assert len(set(seen)) == len(seen) == number
    assert (await client.get(API, params={"cursor": "zzz"})).status_code == 422
    assert (await client.get(f"{API}/{rows[0] + 100}")).status_code == 404


async def test_a_viewer_sees_types_only(nonet: Nonet, client_of: ClientOf) -> None:
    """No text of an error, no label, no argument."""
    (row,) = await fill(nonet, 1)
    async with client_of(Role.VIEWER) as viewer:
        texts = [
            (await viewer.get(path)).text
            for path in (
                f"{API}/{row}",
                API,
                f"{API}/clusters",
                "/dead-letters",
                "/dead-letters?view=letters",
                f"/dead-letters/{row}",
            )
        ]
        assert all("KeyError" in text for text in texts)
        assert not any("onerror" in text for text in texts)


async def test_arguments_are_revealed_without_secrets(
    nonet: Nonet, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The audit says who saw them; `Secret` stays masked."""
    args = encode({"user": "me", "password": "hunter2"})
    (row,) = await fill(nonet, 1, task_class="web_tasks:Login", task_args=args)
    with caplog.at_level(logging.INFO):
        found = (await client.get(f"{API}/{row}/arguments")).json()
    assert found["user"] == "me" and "hunter2" not in str(found)
    assert f"arguments of dead letter {row}" in caplog.text


async def test_the_answer_with_arguments_names_the_page_to_read_again(
    nonet: Nonet, client: AsyncClient
) -> None:
    """It has no address of its own, and the page continues to read its changes."""
    (row,) = await fill(nonet, 1)
    shown = (await client.post(f"/dead-letters/{row}/reveal")).text
    assert f'data-read="/dead-letters/{row}"' in shown
    assert "data-read" not in (await client.get(f"/dead-letters/{row}")).text


async def test_encrypted_arguments_are_not_revealed_without_the_key(
    nonet: Nonet, client: AsyncClient
) -> None:
    """The API and the page say what is missing, as does an attempt to submit the letter again."""
    cipher = Cipher({"2026": b"k" * 32}, "test")
    args = encode(encrypted_arguments({"number": 4711}, "task-0", cipher))
    (row,) = await fill(nonet, 1, task_class="web_tasks:Report", task_args=args)
    answer = await client.get(f"{API}/{row}/arguments")
    assert (answer.status_code, NO_KEY in answer.text) == (404, True)
    assert NO_KEY in (await client.post(f"/dead-letters/{row}/reveal")).text
    refused = await client.post(f"{API}/{row}/resubmit")
    assert (refused.status_code, NO_KEY in refused.text) == (409, True)


async def test_the_pages_are_used_with_the_keyboard(nonet: Nonet, address: str, page: Page) -> None:
    """From a cluster to a letter, its arguments, a note, and all letters submitted again."""
    rows = await fill(nonet, 3)
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    await page.goto(address)
    await page.keyboard.type("gd")
    await expect(page.locator("h1")).to_have_text("Dead letters")
    await expect(page.locator("#clusters")).to_contain_text("shop.bill:pay")
    await press(page, "role=link[name='KeyError']")
    await expect(page.locator("pre")).to_contain_text("<script>alert(2)</script>")
    await press(page, f"role=link[name='{rows[0]}']")
    await press(page, "text=Show arguments and command…")
    await press(page, "text=Show them")
    await expect(page.locator("#revealed")).to_contain_text('"number": 0')
    await expect(page.locator("#revealed")).to_contain_text("task-run call")
    assert await faults(page) == []
    await page.fill("input[name=note] >> nth=-1", "waits for the printer")
    await page.keyboard.press("Enter")
    await expect(page.locator("input[name=note] >> nth=-1")).to_have_value("waits for the printer")
    await press(page, "role=button[name='Submit again']")
    await expect(page.locator("#fields")).to_contain_text("DISPATCHED")
    await page.keyboard.type("gd")
    await press(page, "text=Submit all again")
    await expect(page.locator("h1")).to_have_text("Submit 2 dead letters again")
    await press(page, "role=button[name='Submit 2 again']")
    await expect(page.locator("#bulks")).to_contain_text("2 of 2 done")
    assert set((await statuses(nonet)).values()) == {"DISPATCHED"}
    assert not dialogs
    assert await page.locator("main img, main script").count() == 0


async def press(page: Page, selector: str) -> None:
    """Focus something and press Enter."""
    await page.locator(selector).first.focus()
    await page.keyboard.press("Enter")


async def test_a_frozen_database_costs_only_its_pages(
    redis_url: str,
    mariadb_behind_a_door: tuple[Door, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other pages answer before they do, with 503."""
    monkeypatch.setattr(letters, "_ANSWER_SECONDS", 5.0)
    door, url = mariadb_behind_a_door
    await sql.upgrade(url)
    async with Nonet.from_settings(
        redis_url=redis_url, db_url=url, namespace="test", state_dir=tmp_path, tasks=("web_tasks",)
    ) as nonet:
        (row,) = await fill(nonet, 1)
        app = create_app(nonet, WebSettings.plain(), Fixed(principal()))
        async with asking(app) as client:
            assert (await client.get("/dead-letters")).status_code == 200
            app.state.site.shared.forget()
            door.freeze()
            paths = ["/dead-letters", f"/dead-letters/{row}", API, f"{API}/clusters"] * 4
            frozen = asyncio.gather(*(client.get(path) for path in paths))
            await asyncio.sleep(0)
            others = [await client.get(path) for path in ("/quarantine", "/api/v1/quarantine")]
            assert not frozen.done()
            answers = await frozen
            assert {answer.status_code for answer in others} == {200}
            assert {answer.status_code for answer in answers} == {503}
            assert all("SQL does not answer" in answer.text for answer in answers)
            door.thaw()
            assert (await client.get("/dead-letters")).status_code == 200
