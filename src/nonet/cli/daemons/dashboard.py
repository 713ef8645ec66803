"""Serve the dashboard and the API until a signal: `run_web`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from nonet.app import Nonet
from nonet.cli.process import set_up_logging
from nonet.config.settings import load_settings
from nonet.config.web_settings import WebSettings
from nonet.daemon.health import answering_probes
from nonet.daemon.service import ExitCode, every, spare_collector, stop_on_signals
from nonet.web.access.links import announce, ensure_protected
from nonet.web.access.login import Login
from nonet.web.app import create_sites
from nonet.web.server import Server


async def run_web(
    options: Mapping[str, Any], host: str | None, port: int | None, *, debug: bool
) -> int:
    """Serve until a signal; return the exit code.

    Args:
        options: of `nonet.load_settings`.
    """
    settings = load_settings(**options)
    web = WebSettings.load(host=host, port=port)
    ensure_protected(web)
    set_up_logging(debug, settings)
    names = dict.fromkeys([settings.namespace, *web.namespaces])
    applications = [Nonet(settings.of(name)) for name in names]
    async with AsyncExitStack() as around:
        for application in reversed(applications):
            await around.enter_async_context(application)
        stop = await around.enter_async_context(stop_on_signals())
        login = Login(applications[0], web)
        served, sites = create_sites(applications, web, login)
        server = Server(served, web, sites)
        async with answering_probes(settings.metrics_host, settings.metrics_port, server):
            spare_collector()
            loops = [every(stop, "audit", site.audit.tick) for site in sites]
            loops.append(announce(login.browsers.stored, web, stop))
            beside = [asyncio.create_task(loop) for loop in loops]
            await server.run(stop)
            await asyncio.wait(beside)
        for site in sites:
            await site.audit.flush()
    return ExitCode.SECOND_SIGNAL if stop.forced.is_set() else ExitCode.OK
