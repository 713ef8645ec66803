"""``task-run events``: who changed what in a namespace, and incidents such as lost data."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from nonet.base.errors import ConfigurationError, ServerUnreachableError, suggestion
from nonet.base.keys import EVENT_KINDS
from nonet.cli.options import Json
from nonet.cli.output import cell, echo, print_answer, print_rows
from nonet.cli.target import Target, operation
from nonet.daemon.service import until_signal

if TYPE_CHECKING:
    from nonet.stores.namespace.events import Event, Following

_POLL_SECONDS = 0.3


@operation
async def events(
    target: Target,
    follow: Annotated[
        bool, typer.Option("--follow", help="Then print new events as they come, until Ctrl-C.")
    ] = False,
    kind: Annotated[
        str | None,
        typer.Option(
            help=f"Only events of this kind: {', '.join(EVENT_KINDS)}.", show_default=False
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Show at most this many, the newest.")] = 100,
    as_json: Json = False,
) -> None:
    """Show what happened to the namespace and who did it.

    The newest event comes last. Events are changes by operators (limits, locks, pauses, dead
    letters, quarantine), changes of limits by the configuration, losses of data, steps of the
    clock, and start-up hooks. Redis keeps about 10,000 events. --follow continues after an outage
    of Redis; with --json it prints one line per event.

    \b
    task-run events --kind epoch
    task-run events --follow --json
    """
    _check_kind(kind)
    async with target.stores() as stores:
        if follow:
            following = stores.events.follow(limit, kind=kind)
            await until_signal(_print_new(following, as_json))
            return
        found = await stores.events.last(limit, kind=kind)
    print_rows([dataclasses.asdict(item) for item in found], as_json, "no event", least=("kind",))


def _check_kind(kind: str | None) -> None:
    """Reject an unknown kind: a typo would look as if nothing had happened."""
    if kind is not None and kind not in EVENT_KINDS:
        raise ConfigurationError(
            f"--kind {kind}: there is no such kind of event.{suggestion(kind, EVENT_KINDS)} "
            f"Kinds: {', '.join(EVENT_KINDS)}"
        )


async def _print_new(following: Following, as_json: bool) -> None:
    _print(await following.new(), as_json)  # an error at the start ends the command
    away = False
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        try:
            found = await following.new()
        except ServerUnreachableError as error:
            if not away:
                echo(f"{error}; waiting for it", err=True)
            away = True
            continue
        if away:
            echo("Redis answers again", err=True)
        away = False
        _print(found, as_json)


def _print(found: list[Event], as_json: bool) -> None:
    for event in found:
        text = "  ".join(map(cell, (event.at, event.kind, event.who, event.text)))
        print_answer(event, text, as_json)
