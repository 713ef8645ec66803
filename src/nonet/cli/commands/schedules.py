"""``task-run schedules``: the periodic entries, and who fires them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from nonet.base.errors import NotFoundError, suggestion
from nonet.cli.commands import schedules_view as view
from nonet.cli.common import (
    Debug,
    Json,
    Namespace,
    StateDir,
    Tasks,
    application,
    names_of,
    observer,
    registry_here,
    run,
    say,
    stores,
)
from nonet.cli.output import print_fields, print_json, print_rows, printable
from nonet.daemon.service import ExitCode, who

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.stores.namespace.leadership import Leader
    from nonet.stores.namespace.periodic import EntryStatus
    from nonet.tasks.registry import Registry

app = typer.Typer()

Class = Annotated[str, typer.Argument(metavar="CLASS", help="Task class, full or bare name.")]
Vo = Annotated[str | None, typer.Option("--vo", help="Only the entry of this VO.")]
Name = Annotated[str | None, typer.Option("--name", help="Only the entry of this name.")]


@app.callback(invoke_without_command=True)
def schedules(context: typer.Context) -> None:
    """Periodic entries: what fires when, what is paused, who leads."""
    if context.invoked_subcommand is None:
        list_()


@app.command("list")
def list_(
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """List all periodic entries, disabled ones too.

    States: planned, waiting (an occurrence has not begun), running, paused, disabled, finished (its
    schedule has no more occurrences), broken (see 'schedules show').
    """

    async def command() -> int:
        async with stores(namespace, state_dir) as kept:
            leader, found = await kept.leader(), await kept.periodic.statuses()
        print_rows(
            [view.row(item, leader) for item in found], as_json, "no periodic entry is planned"
        )
        if not as_json:
            for line in [view.in_words(leader), *view.held_back(found)]:
                typer.echo(printable(line), err=True)
        return ExitCode.OK

    run(debug, command)


@app.command()
def show(
    task: Class,
    vo: Vo = None,
    name: Name = None,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Show the entries of a class with all that is known of them. Exit code 4: there is none.

    'why' is the first thing that keeps an entry from running now, or when it fires. For arguments
    see 'task-run config show'.
    """

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            leader, found = await nonet.leader(), await _find(nonet, task, vo, name)
            documents = [
                view.document(item, leader, await _occurrence(nonet, item)) for item in found
            ]
        if as_json:
            print_json(documents)
        for number, document in enumerate([] if as_json else documents):
            if number:
                typer.echo()
            print_fields(document)
        return ExitCode.OK

    run(debug, command)


@app.command()
def leader(
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Show which scheduler leads, and when each of its loops last came to an end.

    Exit code 4: none leads.
    """

    async def command() -> int:
        async with stores(namespace, state_dir) as kept:
            found = await kept.leader()
        if found is None:
            raise NotFoundError(view.NOBODY)
        told = {**json.loads(found.info), "term": found.term, "lease_ends": found.expiry}
        if as_json:
            print_json(told)
        else:
            loops = told.pop("loops", {})
            print_fields({**told, **{name: view.loop(pulse) for name, pulse in loops.items()}})
        return ExitCode.OK

    run(debug, command)


@app.command("run-now")
def run_now(
    task: Class,
    vo: Vo = None,
    name: Name = None,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Submit the task of one entry now, beside its schedule, and print its id.

    A paused or disabled entry runs, too. Its locks hold as always: while an occurrence runs, the
    task of a class with a mutex waits. Exit codes: 0 submitted, 2 several entries fit, 4 none does.
    """

    async def command() -> int:
        async with application(tasks, namespace, state_dir) as nonet:
            found = await _find(nonet, task, vo, name)
            if len(found) > 1:
                options = "; ".join(view.options(item) for item in found)
                say(f"{len(found)} entries of {task} fit: choose one of: {options}")
                return ExitCode.USAGE
            handle = await nonet.run_entry(found[0])
        if as_json:
            print_json({"id": str(handle), "entry": found[0].entry})
        else:
            typer.echo(handle)
        return ExitCode.OK

    run(debug, command)


@app.command()
def pause(
    task: Class,
    vo: Vo = None,
    name: Name = None,
    reason: Annotated[str, typer.Option(help="Why, for those who ask.")] = "",
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Let the entries of a class fire no more until they are resumed.

    What was submitted before runs. Occurrences of the meantime are not made up for. Exit code 4:
    there is no such entry.
    """

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            found = await _find(nonet, task, vo, name)
            keys = [item.entry for item in found]
            turned = await nonet.stores.periodic.pause(keys, who(), reason)
        return _tell(found, turned, "paused", "was paused already", as_json)

    run(debug, command)


@app.command()
def resume(
    task: Class,
    vo: Vo = None,
    name: Name = None,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Let paused entries of a class fire again, from their next occurrence on.

    Exit code 4: there is no such entry.
    """

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            found = await _find(nonet, task, vo, name)
            turned = await nonet.stores.periodic.resume([item.entry for item in found], who())
        return _tell(found, turned, "resumed", "was not paused", as_json)

    run(debug, command)


async def _find(nonet: Nonet, task: str, vo: str | None, name: str | None) -> list[EntryStatus]:
    """The entries that are meant."""
    known = await nonet.stores.periodic.statuses()
    of_class = [item for item in known if task in names_of(item.task)]
    if not of_class:
        raise NotFoundError(_none_of(task, known, registry_here(nonet), await nonet.leader()))
    if len({item.task for item in of_class}) > 1:
        full = " or ".join(sorted({item.task for item in of_class}))
        raise NotFoundError(f"the class name {task!r} is ambiguous: write {full}")
    found = [item for item in of_class if vo in (None, item.vo) and name in (None, item.name)]
    if not found:
        options = "; ".join(view.options(item) for item in of_class)
        raise NotFoundError(f"{task} has no such entry, only: {options}")
    return found


def _none_of(
    task: str, known: Sequence[EntryStatus], registry: Registry, leader: Leader | None
) -> str:
    """Why there is no entry of a class, as far as it can be said from here."""
    from nonet.scheduler.periodic.plan import NO_SCHEDULE, default_schedule
    from nonet.tasks.task import PeriodicBaseTask, PeriodicVoAwareBaseTask

    registered = {name: item.cls for item in registry for name in names_of(item.name)}
    cls = registered.get(task)
    if cls is not None and not issubclass(cls, PeriodicBaseTask):
        return f"{task} is not periodic: 'task-run submit {task}' submits one"
    reason = view.held_up(leader)
    if cls is not None:
        no_vo = " and a VO for it" * issubclass(cls, PeriodicVoAwareBaseTask)
        otherwise = f"the leading scheduler has none: does it have its code (NONET_TASKS){no_vo}?"
        if default_schedule(cls) is None:
            otherwise = f"it {NO_SCHEDULE}"
        return f"no entry of {task} is planned: {reason or otherwise}"
    periodic = [item.name for item in registry if issubclass(item.cls, PeriodicBaseTask)]
    names = sorted({item.task for item in known}.union(periodic))
    problem = f"no periodic entry of class {task!r}.{suggestion(task, names)}"
    if not known:
        problem += f" Nothing is planned yet: {reason or 'the leading scheduler has no entry'}"
    return problem


async def _occurrence(nonet: Nonet, item: EntryStatus) -> str:
    """What keeps the task that was submitted last, or where it is; empty: it has ended."""
    if not item.last_state:
        return ""
    try:
        return (await nonet.explain(item.last_id)).text
    except NotFoundError:  # it ended between the two looks, and left no result
        return ""


def _tell(
    found: Sequence[EntryStatus], turned: Sequence[str], now: str, before: str, as_json: bool
) -> int:
    if as_json:
        print_json([{"entry": item.entry, "changed": item.entry in turned} for item in found])
    for item in [] if as_json else found:
        typer.echo(f"{view.options(item)} {now if item.entry in turned else before}")
    return ExitCode.OK
