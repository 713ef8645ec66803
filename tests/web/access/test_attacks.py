"""What hostile callers tried, and must not get."""

from __future__ import annotations

import base64
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from httpx import AsyncClient
from web.access.doors import OURS, csrf_of, door, log_in
from web.access.provider import providing
from web.access.test_oidc import options
from web.conftest import ClientOf
from web_tasks import Report

from nonet import Nonet
from nonet.operate import workers
from nonet.rules.permissions import Role
from nonet.rules.viewing import HIDDEN
from nonet.stores.queue.workers import WorkerStatus

API = "/api/v1"
TASKS = f"{API}/tasks"


async def test_a_viewer_reads_no_search_in_events(
    client: AsyncClient, client_of: ClientOf, nonet: Nonet
) -> None:
    """A cancellation by label or error writes it into the event, where a viewer does not see it."""
    await nonet.submit(Report(1), labels={"customer": "acme"})
    wanted = {"labels": {"customer": "acme"}, "dry_run": False}
    moment = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    done = await client.post(f"{TASKS}/cancel", json={**wanted, "moment": moment})
    assert done.json()["number"] == 1
    text = "2 tasks: ?state=dead&error=acme"
    await nonet.stores.events.log("tasks-resubmitted", "ann", text)
    async with client_of(Role.VIEWER) as viewer:
        for path in ("/events", f"{API}/events", "/events?text=acme"):
            answer = await viewer.get(path)
            assert "acme" not in answer.text.replace('value="acme"', ""), path
        assert f"2 tasks: {HIDDEN}" in (await viewer.get(f"{API}/events")).text
    assert "acme" in (await client.get(f"{API}/events")).text


async def test_a_viewer_reads_no_configuration_in_workers(
    client: AsyncClient, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why a worker refused its configuration quotes what stands there."""
    found = WorkerStatus(
        "small-1", "7@host", "small", 1, "1", 0.1, True, config_problem="line 3: hunter2"
    )

    async def registered(*_: object) -> list[WorkerStatus]:
        return [found]

    monkeypatch.setattr(workers, "registered", registered)
    async with client_of(Role.VIEWER) as viewer:
        for base in ("", API):
            for path in (f"{base}/workers", f"{base}/workers/small-1"):
                assert "hunter2" in (await client.get(path)).text
                answer = await viewer.get(path)
                assert answer.status_code == 200 and "hunter2" not in answer.text


@pytest.mark.parametrize("text", ["1", "null", "{}", '"ab"', "[" * 3000, '["\\ud800", "good"]'])
async def test_a_made_up_message_breaks_no_page(client: AsyncClient, text: str) -> None:
    """Another server of this host can set the cookie of a message."""
    value = base64.urlsafe_b64encode(text.encode()).decode()
    answer = await client.get("/account", headers={"Cookie": f"nonet_message={value}"})
    assert answer.status_code == 200


async def test_messages_stay_with_our_pages(nonet: Nonet, users: Path) -> None:
    """What a change tells goes to no other path of the host, and with https in no open request."""
    url = "https://nonet.example/jobs"
    async with door(nonet, users=users, url=url, base="https://nonet.example") as client:
        origin = {"Origin": "https://nonet.example"}
        form = {"name": "viewer", "password": "correct horse"}
        await client.post("/jobs/login", data=form, headers=origin)
        page = (await client.get("/jobs/account")).text
        form = {"csrf": page.partition('name="csrf" value="')[2].partition('"')[0]}
        answer = await client.post("/jobs/account/sessions/x/end", data=form, headers=origin)
        (cookie,) = answer.headers.get_list("set-cookie")
        assert cookie.startswith("nonet_message=")
        assert {"Path=/jobs", "Secure", "HttpOnly"} <= set(cookie.split("; "))


async def test_bodies_of_other_types_have_no_token(nonet: Nonet, users: Path) -> None:
    """What a foreign page can send without asking is not read for a CSRF token, or as JSON."""
    async with door(nonet, users=users) as client:
        await log_in(client, "admin")
        csrf = await csrf_of(client)
        for kind in ("text/plain", "application/json", "multipart/form-data; boundary=x", ""):
            answer = await client.post(
                "/logout", content=f"csrf={csrf}", headers={**OURS, "Content-Type": kind}
            )
            assert answer.status_code == 403, kind
        answer = await client.post(f"{API}/pauses", content='{"everything": true}', headers=OURS)
        assert answer.status_code == 403
        assert (await client.get("/account")).status_code == 200


async def test_false_answers_of_a_provider_fill_no_audit(
    nonet: Nonet, caplog: pytest.LogCaptureFixture
) -> None:
    """They are refused, whatever they contain; after fifty their sender has to wait."""
    async with providing() as provider, door(nonet, **options(provider)) as client:
        caplog.set_level(logging.INFO, "nonet.web.auditing")
        client.cookies.set("nonet-test-oidc", "made.up")
        answer = await client.get("/login/callback?state=%C3%A9&code=1")
        assert answer.status_code == 403, answer.text
        seen = [(await client.get("/login/callback?state=x")).status_code for _ in range(60)]
        assert seen == [403] * 49 + [429] * 11
        assert caplog.text.count("audit: ") == 50


async def test_a_network_of_one_ipv6_caller_counts_once(nonet: Nonet, users: Path) -> None:
    """Each has 2^64 addresses, from all of which it could guess passwords."""
    proxy = {"proxy_addresses": ("127.0.0.1",)}
    async with door(nonet, users=users, **proxy) as client:
        seen = []
        for number in range(52):
            headers = {**OURS, "X-Forwarded-For": f"2001:db8:0:7::{number:x}"}
            answer = await client.post("/login/link", data={"code": "x"}, headers=headers)
            seen.append(answer.status_code)
        assert seen == [401] * 50 + [429] * 2
        headers["X-Forwarded-For"] = "2001:db8:0:8::1"
        answer = await client.post("/login/link", data={"code": "x"}, headers=headers)
        assert answer.status_code == 401
