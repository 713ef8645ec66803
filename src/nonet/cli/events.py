"""``task-run events``: who changed what in a namespace."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from nonet.cli.common import Debug, Json, Namespace, StateDir, observer, run
from nonet.cli.output import print_rows
from nonet.service import ExitCode


def events(
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 100,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Show who changed limits or locks, the newest last. Redis keeps about 10,000 events."""

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            found = await nonet.events.last(limit)
        print_rows([dataclasses.asdict(item) for item in found], as_json, "no event")
        return ExitCode.OK

    run(debug, command)
