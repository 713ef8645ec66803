"""The server of ``task-web``: its metrics, and whether it is ready."""

from __future__ import annotations

import asyncio

import pytest
from httpx import AsyncClient
from ports import free_port
from waits import WAIT_SECONDS, until
from web.conftest import Fixed, principal

from nonet import Nonet
from nonet.base.errors import ServerUnreachableError
from nonet.config.web_settings import WebSettings
from nonet.daemon import contact
from nonet.daemon.service import Stop
from nonet.telemetry.metrics import METRICS
from nonet.web.app import create_app
from nonet.web.server import Server


async def test_the_daemon_reports_requests_and_an_outage(
    nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics count requests by route; without Redis the daemon is not ready."""
    monkeypatch.setattr(contact, "_ASK_EVERY_SECONDS", 0.05)
    app = create_app(nonet, WebSettings.plain(), Fixed(principal()))
    port, stop = free_port(), Stop()
    server = Server(app, WebSettings.plain(port=port), [app.state.site])
    running = asyncio.create_task(server.run(stop))
    await until(lambda: server.report().ready, "it is ready")
    async with AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as client:
        for path in ("/streams/normal/small", "/streams/normal/large", "/nothing"):
            await client.get(path)
    found = {(name, labels): value for name, labels, value in server.samples()}
    counted = found["nonet_web_requests_total", ("/streams/{priority}/{size}", "GET", "2xx")]
    assert counted == 2
    assert found["nonet_web_requests_total", ("none", "GET", "4xx")] == 1
    assert {name for name, _ in found} <= METRICS.keys()

    async def no_answer(**_: bool) -> None:
        raise ServerUnreachableError("Redis does not answer")

    monkeypatch.setattr(app.state.site.nonet.stores.measures, "figures", no_answer)
    await until(lambda: not server.report().ready, "it reports the outage")
    assert server.report().reasons == ["Redis: Redis does not answer"]
    stop.request()
    await running
