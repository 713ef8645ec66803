"""``task-web``: serve the dashboard and the API."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from nonet.base.errors import ConfigurationError
from nonet.cli.options import MetricsPort, Version
from nonet.cli.plain_words import PlainCommand
from nonet.cli.process import run, set_up_logging
from nonet.cli.target import CodeTarget, flat

if TYPE_CHECKING:
    from nonet.config.settings import Settings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(cls=PlainCommand)
@flat
def serve(
    target: CodeTarget,
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on.", show_default="NONET_WEB_HOST, or 127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on.", show_default="NONET_WEB_PORT, or 8800")
    ] = None,
    metrics_port: MetricsPort = None,
    version: Version = False,
) -> None:
    """Serve the dashboard and the API until SIGTERM.

    Settings come from NONET_… and NONET_WEB_… variables; Redis from NONET_REDIS_URL. If Redis is
    unreachable, pages and calls answer 503. Without NONET_WEB_USERS, OIDC or a proxy it logs a link
    by which one browser logs in.

    Exit codes: 0 stopped, 2 configuration error, 143 second signal.

    \b
    task-web --tasks mytasks
    """
    from nonet.config.settings import load_settings  # slower to import than `--help` may take

    async def command() -> int:
        settings = load_settings(**target.options(), metrics_port=metrics_port)
        return await _serve(settings, host, port, debug=target.debug)

    run(target.debug, command, runs_user_code=True)


async def _serve(settings: Settings, host: str | None, port: int | None, *, debug: bool) -> int:
    """Serve until a signal; return the exit code."""
    from nonet.app import Nonet
    from nonet.config.web_settings import WebSettings
    from nonet.daemon.health import answering_probes
    from nonet.daemon.service import ExitCode, every, spare_collector, stop_on_signals

    try:
        from nonet.web.access.links import announce, ensure_protected
        from nonet.web.access.login import Login
        from nonet.web.app import create_sites
        from nonet.web.server import Server
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"task-web needs the extra 'web' ({error.name} is missing): pip install 'nonet[web]'"
        ) from None
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


def main() -> None:
    """Entry point of the console script, after its imports."""
    app()
