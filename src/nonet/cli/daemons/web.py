"""``task-web``: serve the dashboard and the API."""

from __future__ import annotations

from typing import Annotated

import typer

from nonet.base.errors import ConfigurationError
from nonet.base.version import install_with
from nonet.cli.options import MetricsPort, Version
from nonet.cli.plain_words import PlainCommand
from nonet.cli.process import run
from nonet.cli.target import CodeTarget, flat

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

    Exit codes: 0 stopped, 2 configuration error, 143 a second signal stopped it.

    \b
    task-web --tasks mytasks
    """
    options = {**target.options(), "metrics_port": metrics_port}

    async def command() -> int:
        try:
            from nonet.cli.daemons.dashboard import run_web  # slower than `--help` may be
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"task-web needs the extra 'web' ({error.name} is missing): {install_with('web')}"
            ) from None
        return await run_web(options, host, port, debug=target.debug)

    run(target.debug, command, runs_user_code=True)


def main() -> None:
    """Entry point of the console script, after its imports."""
    app()
