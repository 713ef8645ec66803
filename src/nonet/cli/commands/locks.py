"""``task-run locks`` and ``explain``: holders and waiters of locks, and why a task does not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.actor import who
from nonet.base.errors import NotFoundError
from nonet.cli.options import Json, TaskId
from nonet.cli.output import echo, print_json, print_line, print_rows
from nonet.cli.pages import page_at, with_page
from nonet.cli.process import print_error, run
from nonet.cli.target import Target, flat, operation
from nonet.cli.task_classes import names_of, registry_here
from nonet.daemon.service import ExitCode
from nonet.rules.findings import remedies
from nonet.rules.findings.refusal import lasting, named, span
from nonet.rules.page_paths import page_of

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.stores.namespace.lock_board import LockStatus, Released

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
@flat
def locks(
    context: typer.Context,
    target: Target,
    object_type: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="Only locks of this object type, such as Job."),
    ] = None,
    show: Annotated[
        int, typer.Option(min=1, max=1000, help="Name at most this many holders and waiters.")
    ] = 5,
    as_json: Json = False,
) -> None:
    """Show who holds locks and limiters, and who waits for them.

    All locks that are held or waited for are listed, the lock with the most waiters first. Each
    holder is shown with the time for which it has held the lock while its process renews it, or, if
    that process is dead or frozen, with the time until the lock expires. Waiters are shown in their
    order, woken ones first. A task that is refused by one lock waits in the queues of all its
    locks.

    \b
    task-run locks --object-type Job --show 50
    """
    if context.invoked_subcommand is None:
        run(target.debug, lambda: _show(target, object_type, show, as_json))


async def _show(target: Target, object_type: str | None, show: int, as_json: bool) -> None:
    async with target.observer() as nonet:
        board = nonet.stores.locks
        found = await board.in_use(object_type, show=show)
        refused = _refused_settles(await board.counters())
    if as_json:
        print_json(found)
    else:
        which = "" if object_type is None else f" of object type {object_type!r}"
        print_rows(
            [_row(item) for item in found],
            False,
            f"no lock{which} is held or waited for",
            least=("kind", "longest", "in_order", "used"),
        )
    if refused:
        echo(refused, err=True)


@app.command()
@operation
async def release(
    target: Target,
    lock: Annotated[
        str, typer.Argument(metavar="LOCK", help="Name of the lock, as 'task-run locks' shows it.")
    ],
    force: Annotated[
        bool,
        typer.Option("--force", help="Release the lock; without --force, print what would happen."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Take a lock from its holders, and give it to the next waiters.

    A task that held the lock is voided and runs again: it is cancelled at its next renewal, and its
    settle is refused. Until then it may still run beside the next holder, so first make sure that
    it is dead or that the overlap does no harm. If the lock is a limiter, it is emptied, and the
    tasks that it counted continue.

    Exit codes: 0 released, 2 no --force or not the name of a lock, 4 the lock is free.

    \b
    task-run locks release lock:mutex:job:7            # show what would happen
    task-run locks release lock:mutex:job:7 --force
    """
    async with target.observer() as nonet:
        if not force:
            return await _say_what_it_would_do(nonet, lock)
        done = await nonet.stores.locks.release(lock, who())
    if as_json:
        print_json(done)
    else:
        _print_released(done)
    return ExitCode.OK


@operation
async def explain(target: Target, id: TaskId, as_json: Json = False) -> None:
    """Explain why a task does not run, or where it runs.

    The answer names the first thing that keeps the task from running now. For a periodic class see
    'task-run schedules show CLASS'.

    Exit codes: 0 explained, 4 unknown id.

    \b
    task-run explain 3f9d1c0a
    """
    async with target.observer() as nonet:
        try:
            found = await nonet.explain(id)
        except NotFoundError as error:
            raise NotFoundError(await _class_of(nonet, id) or str(error)) from None
    page = page_at(page_of("task", id))
    if as_json:
        print_json(with_page(found, page))
    else:
        print_line(found.text)
        if found.next:
            echo(f"next: {found.next}")
        if page:
            echo(f"page: {page}")


async def _class_of(nonet: Nonet, id: str) -> str:
    """Return the command to use if the id is the name of a class; else an empty text."""
    from nonet.tasks.task import PeriodicBaseTask

    periodic = {item.task for item in await nonet.stores.periodic.statuses()}
    registered = registry_here(nonet)
    periodic |= {item.name for item in registered if issubclass(item.cls, PeriodicBaseTask)}
    if any(id in names_of(name) for name in periodic):
        show = remedies.of("task-run schedules show", id)
        return f"{id} is a periodic class, not a task: '{show}' says why it does not run"
    if any(id in names_of(item.name) for item in registered):
        show = remedies.command("task-run", "list", "--task", id)
        return f"{id} is a class, not a task: '{show}' shows its tasks"
    return ""


async def _say_what_it_would_do(nonet: Nonet, name: str) -> int:
    from nonet.operate.locks import consequences  # these import redis
    from nonet.stores.namespace.lock_board import not_held

    found = await nonet.stores.locks.get(name)
    if not found.is_held:
        print_error(not_held(name))
        return ExitCode.NOT_FOUND
    for sentence in consequences(found):
        echo(sentence, err=True)
    print_error("nothing was released: add --force")
    return ExitCode.USAGE


def _print_released(done: Released) -> None:
    echo(f"released {done.lock}")
    for holder in done.voided:
        again = ": it runs again" if holder.is_live and holder.task != "hold" else ""
        echo(f"voided {named(holder)}{again}")
    if done.dropped:
        echo(f"emptied of {done.dropped}; the tasks that it counted continue")
    if done.woken:
        echo(f"woken: {' '.join(done.woken)}")


def _row(item: LockStatus) -> Mapping[str, Any]:
    used = None
    if item.used is not None:
        limit = "?" if item.limit is None else item.limit
        window = f" in {item.window_seconds:g} s" if item.window_seconds else ""
        used = f"{item.used} of {limit}{window}"
    holders = [f"{named(one)}, {lasting(one)}" for one in item.holders]
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
    """Return a sentence about refused settles; empty if there are none."""
    stale, lost = counters.get("settle:stale", 0), counters.get("settle:lost", 0)
    if not stale and not lost:
        return ""
    return (
        f"settles refused so far: {stale} by attempts that no longer owned their task, "
        f"{lost} by attempts that had lost a lock"
    )
