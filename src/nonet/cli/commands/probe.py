"""``task-run probe``: ask the daemon on this machine whether it is live or ready."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from nonet.cli.daemons.probing import probe as ask


def probe(
    what: Annotated[
        Literal["livez", "readyz"],
        typer.Argument(
            metavar="livez|readyz", help="livez: does it make progress? readyz: can it work?"
        ),
    ],
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port of the daemon.", show_default="NONET_METRICS_PORT"
        ),
    ] = None,
) -> None:
    """Ask the daemon on this machine whether it is live or ready.

    Use it in a HEALTHCHECK or an exec probe. The address comes from the environment:
    NONET_METRICS_HOST and NONET_METRICS_PORT.

    Exit codes: 0 yes, 1 no (stderr has the reasons) or no answer, 2 no port.

    \b
    task-run probe readyz --port 9100
    """
    raise typer.Exit(ask(what, port))
