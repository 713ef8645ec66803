"""``task-run cancel``: end tasks by id, group, class, label or tenant."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.actor import who
from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.cli.commands.task_arguments import labels_of
from nonet.cli.options import CancelReason, Json, OfClass, OfTenant, TaskIds, WithLabels
from nonet.cli.output import echo, print_json
from nonet.cli.process import is_at_terminal, print_error
from nonet.cli.progress import Progress
from nonet.cli.target import Target, operation
from nonet.cli.task_classes import unknown_here
from nonet.daemon.service import ExitCode
from nonet.rules.findings.remedies import of_task, of_workflow
from nonet.stores.queue.places import UNFINISHED, TaskFilter

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.stores.queue.places import TaskFilter

_CANCELLED, _CANCELLING = "cancelled", "cancelling"
# The interval of polling a group whose parent is still submitting children.
_POLL_SECONDS = 0.2


@operation
async def cancel(
    target: Target,
    ids: TaskIds = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Cancel the children of this group.")
    ] = None,
    task: OfClass = None,
    label: WithLabels = None,
    tenant: OfTenant = "",
    reason: CancelReason = "",
    wait: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Wait this many seconds for running tasks to end."
        ),
    ] = 15.0,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Cancel all tasks of a class, label or tenant without asking. Required if stdin "
            "is not a terminal.",
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Cancel tasks for good: queued, delayed, waiting or running.

    Cancelled tasks do not run again. A running coroutine is cancelled within a second. An attempt
    that has not ended after NONET_CANCEL_GRACE is killed if it has a child process, else it is
    abandoned in the worker's own process. A group counts a cancelled child as failed. The command
    'task-run events' shows who cancelled.

    Exit codes: 0 all tasks ended as cancelled, 1 a task ended otherwise or not within --wait, 2
    stdin is not a terminal and --yes is missing, 4 none of the named tasks is known, or no such
    class.

    \b
    task-run cancel 3f9d1c0a 77b2e5d1 --reason "wrong input"
    task-run cancel --task Transfer --label campaign=2026-07 --yes
    task-run cancel --tenant cms --yes
    """

    labels = labels_of(label)
    selection = TaskFilter(task or "", labels, UNFINISHED, tenant=tenant)
    _check(ids, group, is_filtered=selection.is_narrow, yes=yes)
    async with target.observer() as nonet:
        deadline = time.monotonic() + wait
        if ids:
            states = await nonet.client.cancel(list(dict.fromkeys(ids)), reason=reason)
        elif group:
            states = await _cancel_group(nonet, group, reason, deadline)
        else:
            return await _cancel_all(nonet, selection, reason, deadline, yes=yes, as_json=as_json)
        states = await _wait_for(nonet, states, deadline)
        others = [id for id, state in states.items() if state != _CANCELLED]
        workflows = [id for id in others if await nonet.stores.workflows.exists(id)]
        return _print_states(states, as_json, workflows)


def _check(ids: list[str] | None, group: str | None, *, is_filtered: bool, yes: bool) -> None:
    """Reject options that could select more tasks than the user meant."""
    ways = [bool(ids), bool(group), is_filtered]
    if sum(ways) > 1:
        raise ConfigurationError(
            "give either ids, or --group, or the filters --task, --label and --tenant"
        )
    if not any(ways):
        raise ConfigurationError(
            "which tasks? Name them (see 'task-run list'), or give --group, --task, --label or "
            "--tenant"
        )
    if is_filtered and not yes and not is_at_terminal():
        raise ConfigurationError(
            "--task, --label and --tenant select tasks that you did not name, and stdin is not a "
            "terminal, so nothing was cancelled. Add --yes to cancel all of them"
        )


async def _cancel_group(nonet: Nonet, group: str, reason: str, deadline: float) -> dict[str, str]:
    """Cancel the children, including new ones that the parent submits, and return their states."""
    states: dict[str, str] = {}
    while True:
        status = await nonet.stores.groups.status(group)
        new = set(await nonet.stores.groups.pending(group)) - set(states)
        if new:
            states |= await nonet.client.cancel(sorted(new), reason=reason)
        if status.state != "building":
            if not states:
                print_error(f"all children of group {group} have ended: it is {status.state}")
            return states
        if time.monotonic() >= deadline:
            print_error(f"group {group} is still being built: its parent may submit more children")
            return states
        await asyncio.sleep(_POLL_SECONDS)


async def _cancel_all(
    nonet: Nonet, selection: TaskFilter, reason: str, deadline: float, *, yes: bool, as_json: bool
) -> ExitCode:
    """Cancel the matching tasks after the user has confirmed."""
    cancellation = nonet.client.cancellation
    number: int | None = None
    if not yes:
        number = sum([len(page) async for page in cancellation.find(selection)])
        if number and not typer.confirm(f"cancel {_tasks(number)} {selection}?", err=True):
            print_error("nothing was cancelled")
            return ExitCode.FAILED
    with Progress("cancelling", number) as progress:
        tally = await cancellation.cancel_all(selection, who(), reason, advance=progress.advance)
    unknown = unknown_here(nonet, selection.task) if selection.task and not tally.number else None
    if unknown is not None:
        raise NotFoundError(f"{unknown[0]}, and no task has it.{unknown[1]}")
    ended = await _wait_for(nonet, dict.fromkeys(tally.running, _CANCELLING), deadline)
    others = {id: state for id, state in ended.items() if state != _CANCELLED}
    for id, state in others.items():
        print_error(_problem(id, state))
    number = tally.number - len(others)
    if as_json:
        rest = [_row(id, state) for id, state in others.items()]
        print_json({"cancelled": number, "others": rest})
    else:
        echo(f"{_tasks(number)} cancelled")
    return ExitCode.FAILED if others else ExitCode.OK


async def _wait_for(nonet: Nonet, states: Mapping[str, str], deadline: float) -> dict[str, str]:
    """Return the states once all running tasks have ended, or at the deadline."""
    found = dict(states)
    for id in [id for id, state in states.items() if state == _CANCELLING]:
        try:
            ended = await nonet.client.ended(id, max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            continue
        found[id] = ended.state if ended else ""
    return found


def _print_states(
    states: Mapping[str, str], as_json: bool, workflows: Collection[str] = ()
) -> ExitCode:
    """Print the state of each named task, and return the exit code."""
    problems = {id: _problem(id, state) for id, state in states.items() if state != _CANCELLED}
    for id in workflows:
        command = of_workflow("cancel", id)
        problems[id] = f"{id} is a workflow, not a task: {command!r} cancels its steps"
    for problem in problems.values():
        print_error(problem)
    if as_json:
        print_json([_row(id, state) for id, state in states.items()])
    else:
        for id in states:
            if id not in problems:
                echo(f"{id} {_CANCELLED}")
    if states and not problems:
        return ExitCode.OK
    return ExitCode.NOT_FOUND if states and not any(states.values()) else ExitCode.FAILED


def _row(id: str, state: str) -> dict[str, Any]:
    return {"id": id, "state": state or None}


def _problem(id: str, state: str) -> str:
    if not state:
        return f"task {id} is unknown"
    if state == _CANCELLING:
        return f"task {id} has not ended yet: '{of_task('explain', id)}' shows its state"
    if state == "dying":
        return f"task {id} is dying: it has failed, and waits for SQL"
    return f"task {id} is {state}: it ended before the cancellation reached it"


def _tasks(number: int) -> str:
    return f"{number} task" + ("" if number == 1 else "s")
