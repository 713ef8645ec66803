"""``task-run locks`` and ``explain``: who holds what, who waits, and why a task does not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.errors import NotFoundError
from nonet.cli.common import (
    Debug,
    Json,
    Namespace,
    StateDir,
    names_of,
    observer,
    registry_here,
    run,
    say,
)
from nonet.cli.output import print_json, print_rows, printable
from nonet.daemon.service import ExitCode, who
from nonet.rules.explanation import named, span

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.stores.namespace.lock_board import LockStatus, Released

app = typer.Typer()


@app.callback(invoke_without_command=True)
def locks(
    chosen: typer.Context,
    object_type: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="Only of this type: Job, StorageElement, task …"),
    ] = None,
    show: Annotated[
        int, typer.Option(min=1, max=1000, help="Name so many holders and waiters of each.")
    ] = 5,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Show who holds locks and limiters, and who waits for them.

    All that are held or waited for are listed, the most wanted ones first: holders with the time
    until their lock ends by itself (they renew it), waiters in their order, those who were told
    first. A task that a lock refuses waits at all its locks. Limits are those that hold now.
    """
    if chosen.invoked_subcommand is not None:
        return

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            board = nonet.client.locks
            found = await board.in_use(object_type, show=show)
            refused = _refused_settles(await board.counters())
        if as_json:
            print_json(found)
        else:
            which = "" if object_type is None else f" of object type {object_type!r}"
            nothing = f"nothing{which} is held or waited for"
            print_rows([_row(item) for item in found], False, nothing)
        if refused:
            typer.echo(refused, err=True)
        return ExitCode.OK

    run(debug, command)


@app.command()
def release(
    lock: Annotated[str, typer.Argument(metavar="LOCK", help="As 'task-run locks' shows it.")],
    force: Annotated[
        bool, typer.Option("--force", help="Do it; without this it only says what it would do.")
    ] = False,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Take a lock from all who hold it, and offer it to those who wait.

    A task that held it is voided (cancelled at its next renewal, its settle is refused) and runs
    again. Until then it may still be at work, beside whoever takes the lock: be sure that it is
    not, or that it does no harm. A limiter is emptied, and the tasks that it counted go on. Exit
    codes: 0 released, 2 no --force, or no name of a lock, 4 nobody holds it.
    """

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            if not force:
                return await _say_what_it_would_do(nonet, lock)
            done = await nonet.client.locks.release(lock, who())
        if as_json:
            print_json(done)
        else:
            _print_released(done)
        return ExitCode.OK

    run(debug, command)


def explain(
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the task.")],
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Say why a task does not run, or where it is.

    The sentence names the first thing that keeps it now. Exit code 4: it is unknown. Of a periodic
    class see 'task-run schedules show CLASS'.
    """

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            try:
                found = await nonet.explain(id)
            except NotFoundError as error:
                raise NotFoundError(await _class_of(nonet, id) or str(error)) from None
        if as_json:
            print_json(found)
        else:
            typer.echo(printable(found.text))
        return ExitCode.OK

    run(debug, command)


async def _class_of(nonet: Nonet, id: str) -> str:
    """What to ask instead if somebody took a class for a task; empty: it is none."""
    from nonet.tasks.task import PeriodicBaseTask

    periodic = {item.task for item in await nonet.stores.periodic.statuses()}
    registered = registry_here(nonet)
    periodic |= {item.name for item in registered if issubclass(item.cls, PeriodicBaseTask)}
    if any(id in names_of(name) for name in periodic):
        return (
            f"{id} is a periodic class, not a task: 'task-run schedules show {id}' says why it "
            "does not run"
        )
    if any(id in names_of(item.name) for item in registered):
        return f"{id} is a class, not a task: 'task-run list --task {id}' shows its tasks"
    return ""


async def _say_what_it_would_do(nonet: Nonet, name: str) -> int:
    from nonet.stores.namespace.lock_board import (
        nobody_holds,  # redis is imported when it is needed
    )

    found = await nonet.client.locks.get(name)
    if not found.is_held:
        say(nobody_holds(name))
        return ExitCode.NOT_FOUND
    if found.used is None:
        for holder in found.holders:
            held = "" if holder.held_seconds is None else f" for {span(holder.held_seconds)}"
            typer.echo(f"would void {printable(named(holder))}, which has held it{held}", err=True)
        if found.holding > len(found.holders):
            typer.echo(f"and {found.holding - len(found.holders)} more", err=True)
        typer.echo(
            "warning: what still works under this lock may overlap with the next holder, until "
            "its next renewal tells it to stop",
            err=True,
        )
    else:
        typer.echo(f"would empty {name} of {found.used}; the tasks that it counts go on", err=True)
    typer.echo(f"{found.waiting} wait for it", err=True)
    say("nothing was released: add --force")
    return ExitCode.USAGE


def _print_released(done: Released) -> None:
    typer.echo(f"released {done.lock}")
    for holder in done.voided:
        again = ": it runs again" if holder.is_live and holder.task != "hold" else ""
        typer.echo(f"voided {printable(named(holder))}{again}")
    if done.dropped:
        typer.echo(f"emptied of {done.dropped}; the tasks that it counted go on")
    if done.woken:
        typer.echo(f"woken: {' '.join(map(printable, done.woken))}")


def _row(item: LockStatus) -> Mapping[str, Any]:
    used = None
    if item.used is not None:
        limit = "?" if item.limit is None else item.limit
        window = f" in {item.window_seconds:g} s" if item.window_seconds else ""
        used = f"{item.used} of {limit}{window}"
    holders = [f"{named(one)}, ends in {span(one.ttl_seconds)}" for one in item.holders]
    if item.back_seconds is not None:
        holders = [f"next token in {span(item.back_seconds)}"]
    waiters = [one.id + (" (woken)" if one.is_woken else "") for one in item.waiters]
    longest = item.longest_wait_seconds
    return {
        "lock": item.lock,
        "kind": item.side or item.kind,
        "used": used,
        "held_by": _some(holders, item.holding),
        "waiting": item.waiting,
        "longest": None if longest is None else span(longest),
        "in_order": _some(waiters, item.waiting),
    }


def _some(texts: list[str], count: int) -> str:
    more = count - len(texts)
    return "; ".join(texts) + (f" … {more} more" if more > 0 else "")


def _refused_settles(counters: Mapping[str, int]) -> str:
    """A sentence about what late owners tried, or nothing."""
    stale, lost = counters.get("settle:stale", 0), counters.get("settle:lost", 0)
    if not stale and not lost:
        return ""
    return (
        f"settles refused so far: {stale} by attempts that no longer owned their task, "
        f"{lost} by attempts that had lost a lock"
    )
