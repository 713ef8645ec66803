"""``task-run events``: who changed what in a namespace, and what befell it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from nonet.base.errors import ConfigurationError, ServerUnreachableError, suggestion
from nonet.base.keys import EVENT_KINDS
from nonet.cli.common import Debug, Json, Namespace, StateDir, run, stores
from nonet.cli.output import cell, print_json, print_rows
from nonet.daemon.service import ExitCode, stop_on_signals

if TYPE_CHECKING:
    from nonet.stores.namespace.events import Event, Following

_LOOK_SECONDS = 0.3


def events(
    follow: Annotated[
        bool, typer.Option("--follow", help="Then show new ones as they come, until Ctrl-C.")
    ] = False,
    kind: Annotated[
        str | None,
        typer.Option(help=f"Only of this kind: {', '.join(EVENT_KINDS)}.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many, the newest.")] = 100,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Show what happened to the namespace and who did it.

    The newest event comes last. Limits, locks, dead letters and the quarantine changed by hand;
    limits changed by the configuration; losses of data, steps of the clock, start-up hooks. Redis
    keeps about 10,000 events. With --follow --json each event is a line of its own. It goes on
    while Redis is away.
    """

    async def command() -> int:
        _check_kind(kind)
        async with stores(namespace, state_dir) as kept:
            if follow:
                await _follow(kept.events.follow(limit, kind=kind), as_json)
                return ExitCode.OK
            found = await kept.events.last(limit, kind=kind)
        print_rows([dataclasses.asdict(item) for item in found], as_json, "no event")
        return ExitCode.OK

    run(debug, command)


def _check_kind(kind: str | None) -> None:
    """Refuse a kind that no event has: a slip would look as if nothing had happened."""
    if kind is not None and kind not in EVENT_KINDS:
        raise ConfigurationError(
            f"--kind {kind}: there is no such kind of event.{suggestion(kind, EVENT_KINDS)} "
            f"There are {', '.join(EVENT_KINDS)}"
        )


async def _follow(following: Following, as_json: bool) -> None:
    """Print until a signal; it is not an error, and need not wait for a Redis that hangs."""
    async with stop_on_signals() as stop:
        printing = asyncio.create_task(_print_new(following, as_json), name="events")
        stopping = asyncio.create_task(stop.requested.wait(), name="stop")
        await asyncio.wait({printing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if printing.done():
            printing.result()
        printing.cancel()


async def _print_new(following: Following, as_json: bool) -> None:
    _print(await following.new(), as_json)  # Redis must be there at the beginning
    away = False
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            found = await following.new()
        except ServerUnreachableError as error:
            if not away:
                typer.echo(f"{error}; waiting for it", err=True)
            away = True
            continue
        if away:
            typer.echo("Redis answers again", err=True)
        away = False
        _print(found, as_json)


def _print(found: list[Event], as_json: bool) -> None:
    for event in found:
        if as_json:
            print_json(event)
        else:
            typer.echo("  ".join(map(cell, (event.at, event.kind, event.who, event.text))))
