"""``task-run cancel``: end tasks wherever they are, by id, group, class or label."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.cli.commands.delayed import labels_of
from nonet.cli.common import (
    Debug,
    Json,
    Namespace,
    StateDir,
    observer,
    run,
    say,
    unknown_here,
)
from nonet.cli.output import print_json
from nonet.daemon.service import ExitCode, who

if TYPE_CHECKING:
    from nonet.app import Nonet

_CANCELLED, _CANCELLING = "cancelled", "cancelling"
# Between two looks at a group whose parent is still submitting children.
_BUILDING_PAUSE = 0.2


def cancel(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID...]", help="Ids of tasks.", show_default=False),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="All children of it that have not ended.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="CATEGORY:CLASS", help="All of this class; bare names fit."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="All with this label. May be repeated."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for who waits for the results.")] = "",
    wait: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="How long to wait for what runs to end."),
    ] = 15.0,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Do not ask before all of a class or label are cancelled. Without a terminal to "
            "ask at, this is required.",
        ),
    ] = False,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """End tasks for good: queued, delayed, waiting or running ones.

    They are not executed again. A running coroutine is cancelled within a second; what does not
    end then is killed, or left alone, after NONET_CANCEL_GRACE. Groups count a cancelled child as
    failed. 'task-run events' shows who did. Exit codes: 0 all have ended cancelled, 1 one has
    ended otherwise, or not within --wait, 2 no --yes and no terminal to ask at, 4 none of the named
    ones is known, or no such class.
    """

    async def command() -> int:
        labels = labels_of(label)
        _check(ids, group, task, labels, yes=yes)
        async with observer(namespace, state_dir) as nonet:
            deadline = time.monotonic() + wait
            if ids:
                states = await nonet.client.cancel(list(dict.fromkeys(ids)), reason=reason)
            elif group:
                states = await _cancel_group(nonet, group, reason, deadline)
            else:
                return await _cancel_all(
                    nonet, task or "", labels, reason, deadline, yes=yes, as_json=as_json
                )
            return _tell(await _wait_for(nonet, states, deadline), as_json)

    run(debug, command)


def _check(
    ids: list[str] | None,
    group: str | None,
    task: str | None,
    labels: Mapping[str, str],
    *,
    yes: bool,
) -> None:
    """Refuse what could mean more than was meant."""
    ways = [bool(ids), bool(group), bool(task or labels)]
    if sum(ways) > 1:
        raise ConfigurationError(
            "name tasks, or --group, or choose by --task and --label: only one of these at a time"
        )
    if not any(ways):
        raise ConfigurationError(
            "which tasks? Name them (see 'task-run list'), or give --group, --task or --label"
        )
    if (task or labels) and not yes and not _is_at_terminal():
        raise ConfigurationError(
            "--task and --label choose tasks that you have not named, and stdin is no terminal to "
            "ask at; nothing was cancelled. Add --yes to cancel all of them"
        )


def _is_at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


async def _cancel_group(nonet: Nonet, group: str, reason: str, deadline: float) -> dict[str, str]:
    """The children's states; those that the parent goes on to submit meanwhile, too."""
    states: dict[str, str] = {}
    while True:
        status = await nonet.client.groups.status(group)
        new = set(await nonet.client.groups.pending(group)) - set(states)
        if new:
            states |= await nonet.client.cancel(sorted(new), reason=reason)
        if status.state != "building":
            if not states:
                say(f"no child of group {group} has still to end: it is {status.state}")
            return states
        if time.monotonic() >= deadline:
            say(f"group {group} is still being built: its parent may submit more children")
            return states
        await asyncio.sleep(_BUILDING_PAUSE)


async def _cancel_all(
    nonet: Nonet,
    task: str,
    labels: Mapping[str, str],
    reason: str,
    deadline: float,
    *,
    yes: bool,
    as_json: bool,
) -> ExitCode:
    """Cancel what a filter means, once somebody at a terminal has agreed."""
    from nonet.stores.namespace.cancellation import UNFINISHED, TaskFilter

    selection = TaskFilter(task, labels, UNFINISHED)
    cancellation = nonet.client.cancellation
    if not yes:
        number = sum([len(page) async for page in cancellation.find(selection)])
        if number and not typer.confirm(f"cancel {_tasks(number)} {selection}?", err=True):
            say("nothing was cancelled")
            return ExitCode.FAILED
    tally = await cancellation.cancel_all(selection, who(), reason)
    if task and not tally.number and (unknown := unknown_here(nonet, task)) is not None:
        raise NotFoundError(f"{unknown[0]}, and no task has it.{unknown[1]}")
    ended = await _wait_for(nonet, dict.fromkeys(tally.running, _CANCELLING), deadline)
    others = {id: state for id, state in ended.items() if state != _CANCELLED}
    for id, state in others.items():
        say(_problem(id, state))
    number = tally.number - len(others)
    if as_json:
        rest = [_row(id, state) for id, state in others.items()]
        print_json({"cancelled": number, "others": rest})
    else:
        typer.echo(f"{_tasks(number)} cancelled")
    return ExitCode.FAILED if others else ExitCode.OK


async def _wait_for(nonet: Nonet, states: Mapping[str, str], deadline: float) -> dict[str, str]:
    """The states once those that run have ended, or the time is up."""
    found = dict(states)
    for id in [id for id, state in states.items() if state == _CANCELLING]:
        try:
            ended = await nonet.client.results.wait(id, max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            continue
        found[id] = ended.state if ended else ""
    return found


def _tell(states: Mapping[str, str], as_json: bool) -> ExitCode:
    """Print what became of each named task; the exit code."""
    problems = {id: _problem(id, state) for id, state in states.items() if state != _CANCELLED}
    for problem in problems.values():
        say(problem)
    if as_json:
        print_json([_row(id, state) for id, state in states.items()])
    else:
        for id in states:
            if id not in problems:
                typer.echo(f"{id} {_CANCELLED}")
    if states and not problems:
        return ExitCode.OK
    return ExitCode.NOT_FOUND if states and not any(states.values()) else ExitCode.FAILED


def _row(id: str, state: str) -> dict[str, Any]:
    return {"id": id, "state": state or None}


def _problem(id: str, state: str) -> str:
    if not state:
        return f"task {id} is unknown"
    if state == _CANCELLING:
        return f"task {id} has not ended yet: it is cancelled, 'task-run explain {id}' says more"
    if state == "dying":
        return f"task {id} is dying: it has failed, and waits for SQL"
    return f"task {id} is {state}: it had ended before, or before its worker heard of it"


def _tasks(number: int) -> str:
    return f"{number} task" + ("" if number == 1 else "s")
