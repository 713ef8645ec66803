"""``task-run events``: who changed what in a namespace, and incidents such as lost data."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from nonet.base.errors import ServerUnreachableError
from nonet.cli.options import Json
from nonet.cli.output import cell, echo, print_answer, print_view
from nonet.cli.target import Target, operation
from nonet.daemon.service import until_signal
from nonet.operate import events
from nonet.operate.events import EventQuery
from nonet.stores.namespace.events import Event, Following

_POLL_SECONDS = 0.3


@operation
async def list_events(
    target: Target,
    query: EventQuery,
    follow: Annotated[
        bool, typer.Option("--follow", help="Then print new events as they come, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what happened to the namespace and who did it.

    Events are changes by operators (limits, locks, pauses, dead
    letters, quarantine), changes of limits by the configuration, losses of data, steps of the
    clock, and start-up hooks. Redis keeps about 10,000 events. --follow continues after an outage
    of Redis; with --json it prints one line per event.

    \b
    task-run events --kind epoch
    task-run events --follow --json
    """
    async with target.stores() as stores:
        if follow:
            following = stores.events.follow(query.limit, query.accepts)
            await until_signal(_print_new(following, as_json))
            return
        found = await events.find(stores, query)
    print_view(found, as_json, "at kind who text", "no event", least=("kind",))


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
