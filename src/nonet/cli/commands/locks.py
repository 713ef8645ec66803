"""``task-run locks``: holders and waiters of locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nonet.base.plain import counted
from nonet.cli.options import Json
from nonet.cli.output import echo, print_json, print_view
from nonet.cli.process import print_error, run
from nonet.cli.target import Target, flat, operation
from nonet.daemon.service import ExitCode
from nonet.operate import locks
from nonet.operate.locks import LockQuery
from nonet.rules.findings.refusal import named
from nonet.stores.namespace.lock_board import Released, not_held

if TYPE_CHECKING:
    from nonet.stores.stores import Stores

app = typer.Typer(rich_markup_mode=None)

_COLUMNS = "lock kind=kind_in_use used=usage held_by waiting longest in_order"

Name = Annotated[
    str, typer.Argument(metavar="LOCK", help="Name of the lock, as 'task-run locks' shows it.")
]


@app.callback(invoke_without_command=True)
@flat
def in_use(context: typer.Context, target: Target, query: LockQuery, as_json: Json = False) -> None:
    """Show who holds locks and limiters, and who waits for them.

    All locks that are held or waited for are listed, the lock with the most waiters first. Live
    holders show how long they have held the lock; dead or frozen ones show when it expires. Waiters
    are shown in their order, woken ones first. A task that is refused by one lock waits in the
    queues of all its locks.

    \b
    task-run locks --object-type Job --show 50
    """
    if context.invoked_subcommand is None:
        run(target.debug, lambda: _list(target, query, as_json))


async def _list(target: Target, query: LockQuery, as_json: bool) -> None:
    async with target.stores() as stores:
        found = await locks.find(stores, query)
    which = f" of object type {query.object_type!r}" if query.object_type else ""
    nothing = f"no lock{which} is held or waited for"
    print_view(found, as_json, _COLUMNS, nothing, least=("kind", "longest", "in_order", "used"))
    if not found.is_all:
        echo("there are too many keys to find all locks: 'locks show LOCK' shows one", err=True)
    if found.stale or found.lost:
        echo(
            f"results rejected so far: {found.stale} by attempts that no longer owned their task, "
            f"{found.lost} by attempts that had lost a lock",
            err=True,
        )


@app.command("show")
@operation
async def show_(
    target: Target,
    lock: Name,
    show: Annotated[
        int, typer.Option(min=1, max=1000, help="Name at most this many holders and waiters.")
    ] = 100,
    as_json: Json = False,
) -> None:
    """Show one lock, which may be free.

    Exit codes: 0 shown, 2 not the name of a lock.

    \b
    task-run locks show lock:mutex:job:7
    """
    async with target.stores() as stores:
        print_view(await locks.get(stores, lock, show), as_json, _COLUMNS)


@app.command()
@operation
async def release(
    target: Target,
    lock: Name,
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
    async with target.stores() as stores:
        if not force:
            return await _say_what_it_would_do(stores, lock)
        done = await locks.release(stores, lock)
    if as_json:
        print_json(done)
    else:
        _print_released(done)
    return ExitCode.OK


async def _say_what_it_would_do(stores: Stores, name: str) -> int:
    found = await locks.get(stores, name)
    if not found.is_held:
        print_error(not_held(name))
        return ExitCode.NOT_FOUND
    for sentence in locks.consequences(found):
        echo(sentence, err=True)
    print_error("nothing was released: add --force")
    return ExitCode.USAGE


def _print_released(done: Released) -> None:
    echo(f"released {done.lock}")
    for holder in done.voided:
        again = ": it runs again" if holder.is_live and holder.task != "hold" else ""
        echo(f"voided {named(holder)}{again}")
    if done.dropped:
        echo(f"released {counted(done.dropped, 'slot')}; the tasks that it counted continue")
    if done.woken:
        echo(f"woken: {' '.join(done.woken)}")
