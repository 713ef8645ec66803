"""``task-run probe``: ask the daemon that runs here how it is."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from nonet.cli.daemons.probing import probe as ask


def probe(
    what: Annotated[
        Literal["livez", "readyz"],
        typer.Argument(metavar="livez|readyz", help="Does it go on? Can it do its work?"),
    ],
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Its port.", show_default="NONET_METRICS_PORT"),
    ] = None,
) -> None:
    """Ask the daemon that runs here whether it is live or ready.

    For a HEALTHCHECK or an exec probe. It asks the address that NONET_METRICS_HOST and
    NONET_METRICS_PORT of the environment name. Exit codes: 0 yes, 1 no (the reasons are on stderr)
    or no answer, 2 no port.
    """
    raise typer.Exit(ask(what, port))
