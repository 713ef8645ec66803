"""The audit of changes: in the log at once, in SQL as soon as it answers, on a page."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException
from httpx import AsyncClient
from web.access.doors import HTML, OURS, app_of, door, log_in

from nonet import Nonet
from nonet.base.actor import who as actor
from nonet.base.errors import ServerUnreachableError
from nonet.rules.permissions import Action, Principal, Role
from nonet.stores.sql.audit import Audit, AuditEntry
from nonet.web.site import Site

ALICE = Principal("alice", Role.ADMIN)


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    """The audit is logged at level INFO."""
    caplog.set_level(logging.INFO, "nonet.web.auditing")


@pytest.fixture
async def client(nonet: Nonet, users: Path) -> AsyncIterator[AsyncClient]:
    """An admin that is logged in."""
    async with door(nonet, users=users) as opened:
        await log_in(opened, "admin")
        yield opened


def site_of(client: AsyncClient) -> Site:
    """The site of a client."""
    site: Site = app_of(client).state.site
    return site


async def entries(client: AsyncClient, **query: Any) -> list[dict[str, Any]]:
    """The audit, as the API has it."""
    found: list[dict[str, Any]] = (await client.get("/api/v1/audit", params=query)).json()["items"]
    return found


async def test_each_change_has_an_outcome(
    client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A change, a failed one and one that was cut off are in the log and in SQL."""
    site = site_of(client)
    async with site.changing(ALICE, Action.CANCEL, "task 1"):
        assert actor() == "alice"
    for error in (ServerUnreachableError("no Redis"), HTTPException(409, "too late")):
        with pytest.raises(type(error)):
            async with site.changing(ALICE, Action.PAUSE, "all"):
                raise error
    with pytest.raises(asyncio.CancelledError):
        async with site.changing(ALICE, Action.DRAIN, "worker 1"):
            raise asyncio.CancelledError
    found = await entries(client, who="alice")
    assert [(item["action"], item["what"], item["outcome"]) for item in reversed(found)] == [
        ("cancel", "task 1", "ok"),
        ("pause", "all", "ServerUnreachableError: no Redis"),
        ("pause", "all", "HTTPException: too late"),
        ("drain", "worker 1", "cut off: it may have happened"),
    ]
    lines = [item.message for item in caplog.records if item.message.startswith("audit: who='al")]
    assert len(lines) == 4


async def test_logins_are_audited(nonet: Nonet, users: Path) -> None:
    """Logins, failed ones and logouts are there, with the address."""
    async with door(nonet, users=users, peer="203.0.113.5") as client:
        await client.post("/login", data={"name": "admin", "password": "no"}, headers=OURS)
        await log_in(client, "admin")
        found = [(item["who"], item["action"], item["address"]) for item in await entries(client)]
        assert found == [("admin", "login", "203.0.113.5")] * 2
        assert "refused" in (await entries(client))[1]["outcome"]


async def test_no_line_can_be_forged(client: AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    """A text with line ends, or tags, stays one line and is inert on the page."""
    evil = "x\0\ud800\naudit: who='bob' <script>alert(1)</script>"
    await site_of(client).audit.record(evil, "login", evil)
    lines = [line for item in caplog.records for line in item.message.splitlines()]
    assert any("bob" in line for line in lines)
    assert not any(line.startswith("audit: who='bob'") for line in lines)
    page = (await client.get("/audit")).text
    assert "<script>alert" not in page and "&lt;script&gt;" in page


async def test_a_silent_sql_stops_no_change(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has each change, the page says what SQL lacks, which is written when SQL answers."""
    site = site_of(client)

    async def hang(*_: object) -> None:
        await asyncio.sleep(3600)

    with monkeypatch.context() as context:
        context.setattr(Audit, "add", hang)
        for number in range(20):
            async with site.changing(ALICE, Action.CANCEL, f"task {number}"):
                pass
        assert sum("what='task" in item.message for item in caplog.records) == 20
        page = (await client.get("/audit", headers=HTML)).text
        # With that of the login, if SQL was slow then.
        assert re.search("2[01] of the newest entries", page)
    assert len(await entries(client, who="alice")) == 20
    assert "newest entries" not in (await client.get("/audit?who=alice")).text


async def test_the_page_reports_that_sql_does_not_answer(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While SQL does not answer, the page shows where the audit is, and the API answers 503."""

    async def fail(*_: object, **__: object) -> None:
        raise ServerUnreachableError("database mysql://x cannot be used")

    monkeypatch.setattr(Audit, "list", fail)
    page = await client.get("/audit")
    assert page.status_code == 200 and "the log of task-web has each entry" in page.text
    assert (await client.get("/api/v1/audit")).status_code == 503


async def test_the_page_filters_and_turns(client: AsyncClient, nonet: Nonet) -> None:
    """The audit is filtered by user, action and time, and read page by page."""
    store = await nonet.stores.audit()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    await store.add([_entry(start + timedelta(hours=number), number) for number in range(6)])
    found = await entries(client, since="2026-01-01T01:00", until="2026-01-01T04:00:00Z")
    assert [item["what"] for item in found] == ["4", "3", "2", "1"]
    first = (await client.get("/api/v1/audit", params={"who": "bob", "limit": 2})).json()
    assert [item["what"] for item in first["items"]] == ["5", "3"]
    query = {"who": "bob", "limit": 2, "cursor": first["cursor"]}
    second = (await client.get("/api/v1/audit", params=query)).json()
    assert [item["what"] for item in second["items"]] == ["1", "0"] and not second["cursor"]
    page = (await client.get("/audit?who=bob&action=cancel&since=&until=")).text
    assert page.count("<tr>") == 1 + 4  # with the heads of the columns
    assert (await client.get("/audit?since=yesterday")).status_code == 422


async def test_old_entries_are_deleted(client: AsyncClient, nonet: Nonet) -> None:
    """What is older than NONET_WEB_AUDIT_RETENTION goes, once an hour."""
    store = await nonet.stores.audit()
    now = datetime.now(UTC)
    old = [_entry(now - timedelta(days=2, seconds=number), number) for number in range(450)]
    await store.add([*old, _entry(now - timedelta(hours=1), 0)])
    audit = site_of(client).audit
    audit._retention = 86_400.0
    await audit.tick()
    assert len(await entries(client, who="bob", limit=1000)) == 1
    assert not await entries(client, who="eve", limit=1000)


def _entry(at: datetime, number: int) -> AuditEntry:
    id = f"{int(at.timestamp() * 1000):013d}-{number:012d}"
    name = "bob" if number % 2 or not number else "eve"
    return AuditEntry(at, name, "cancel", str(number), "127.0.0.1", "ok", id)
