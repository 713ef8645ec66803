"""``task-run schedules``: show, run, pause and resume periodic entries; show the leader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from nonet.base.actor import who
from nonet.base.errors import NotFoundError, suggestion
from nonet.cli.commands import schedules_view as view
from nonet.cli.completion import entry_classes, entry_names, entry_vos
from nonet.cli.options import Json
from nonet.cli.output import echo, print_answer, print_fields, print_json, print_line, print_rows
from nonet.cli.process import print_error
from nonet.cli.target import CodeTarget, Target, operation
from nonet.cli.task_classes import names_of, registry_here
from nonet.daemon.service import ExitCode
from nonet.operate import schedules as entries

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.stores.namespace.leadership import Leader
    from nonet.stores.namespace.periodic import EntryStatus
    from nonet.tasks.registry import Registry

app = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The entries of a class that a command acts on."""

    task: Annotated[
        str,
        typer.Argument(
            metavar="CLASS",
            help="Name of the task class, category:Class or its bare name.",
            autocompletion=entry_classes,
        ),
    ]
    vo: Annotated[
        str | None,
        typer.Option("--vo", help="Only the entry of this VO.", autocompletion=entry_vos),
    ] = None
    name: Annotated[
        str | None,
        typer.Option("--name", help="Only the entry with this name.", autocompletion=entry_names),
    ] = None


@app.callback(invoke_without_command=True)
def schedules(context: typer.Context) -> None:
    """Periodic entries: when they fire, their pauses, the leader.

    \b
    task-run schedules              # as 'task-run schedules list'
    """
    if context.invoked_subcommand is None:
        list_()


@app.command("list")
@operation
async def list_(target: Target, as_json: Json = False) -> None:
    """List all periodic entries, including disabled ones.

    States: planned, waiting (the last occurrence has not started), running, paused, disabled,
    finished (the schedule has no more occurrences), broken (see 'schedules show').

    \b
    task-run schedules list
    """
    async with target.stores() as stores:
        leader, found = await stores.leader(), await stores.periodic.statuses()
    rows = [view.row(item, leader) for item in found]
    least = ("skipped", "fired", "missed", "last", "vo", "name")
    print_rows(rows, as_json, "no periodic entry is planned", least=least)
    if not as_json:
        for line in [entries.in_words(leader), *entries.held_back(found)]:
            print_line(line, err=True)


@app.command()
@operation
async def show(target: Target, wanted: Wanted, as_json: Json = False) -> None:
    """Show the periodic entries of a class in full.

    'why' names the first condition that keeps an entry from running now, or the time when it fires.
    'task-run config show' shows the arguments.

    Exit codes: 0 shown, 4 no such entry.

    \b
    task-run schedules show SubmitPilots --vo lhcb
    """
    async with target.observer() as nonet:
        leader, found = await nonet.leader(), await _find(nonet, wanted)
        documents = [view.document(item, leader, await _occurrence(nonet, item)) for item in found]
    if as_json:
        print_json(documents)
    for number, document in enumerate([] if as_json else documents):
        if number:
            echo()
        print_fields(document)


@app.command()
@operation
async def leader(target: Target, as_json: Json = False) -> None:
    """Show which scheduler leads, and when each of its loops last ran.

    Exit codes: 0 shown, 4 no scheduler leads.

    \b
    task-run schedules leader
    """
    async with target.stores() as stores:
        found = await stores.leader()
    if found is None:
        raise NotFoundError(entries.NO_LEADER)
    told = {**json.loads(found.info), "term": found.term, "lease_ends": found.expiry}
    if as_json:
        print_json(told)
    else:
        loops = told.pop("loops", {})
        print_fields({**told, **{name: view.loop(pulse) for name, pulse in loops.items()}})


@app.command("run-now")
@operation
async def run_now(target: CodeTarget, wanted: Wanted, as_json: Json = False) -> int:
    """Submit the task of one periodic entry now, and print its id.

    The schedule does not change, and a paused or disabled entry runs too. Locks apply as always: a
    class with a mutex waits while an occurrence runs.

    Exit codes: 0 submitted, 2 several entries match, 4 no entry matches.

    \b
    task-run schedules run-now SubmitPilots --vo lhcb --name everywhere
    """
    async with target.application() as nonet:
        found = await _find(nonet, wanted)
        if len(found) > 1:
            options = "; ".join(entries.options(item) for item in found)
            print_error(f"{len(found)} entries of {wanted.task} match, choose one: {options}")
            return ExitCode.USAGE
        handle = await nonet.run_entry(found[0])
    print_answer({"id": str(handle), "entry": found[0].entry}, handle, as_json)
    return ExitCode.OK


@app.command()
@operation
async def pause(
    target: Target,
    wanted: Wanted,
    reason: Annotated[str, typer.Option(help="Reason, shown by 'schedules show'.")] = "",
    as_json: Json = False,
) -> None:
    """Stop periodic entries of a class from firing until they are resumed.

    Tasks that were submitted before still run. Occurrences missed during the pause are not caught
    up.

    Exit codes: 0 paused, 4 no such entry.

    \b
    task-run schedules pause SubmitPilots --reason "computing element is down"
    """
    async with target.observer() as nonet:
        found = await _find(nonet, wanted)
        keys = [item.entry for item in found]
        turned = await nonet.stores.periodic.pause(keys, who(), reason)
    _print_changes(found, turned, "paused", "was paused already", as_json)


@app.command()
@operation
async def resume(target: Target, wanted: Wanted, as_json: Json = False) -> None:
    """Let paused entries of a class fire again, from their next occurrence on.

    Exit codes: 0 resumed, 4 no such entry.

    \b
    task-run schedules resume SubmitPilots
    """
    async with target.observer() as nonet:
        found = await _find(nonet, wanted)
        turned = await nonet.stores.periodic.resume([item.entry for item in found], who())
    _print_changes(found, turned, "resumed", "was not paused", as_json)


async def _find(nonet: Nonet, wanted: Wanted) -> list[EntryStatus]:
    """Return the entries that match.

    Raises:
        NotFoundError: none does, or classes of several categories have the bare name.
    """
    task, vo, name = wanted.task, wanted.vo, wanted.name
    known = await nonet.stores.periodic.statuses()
    of_class = [item for item in known if task in names_of(item.task)]
    if not of_class:
        raise NotFoundError(_none_of(task, known, registry_here(nonet), await nonet.leader()))
    if len({item.task for item in of_class}) > 1:
        full = " or ".join(sorted({item.task for item in of_class}))
        raise NotFoundError(f"the class name {task!r} is ambiguous: write {full}")
    found = [item for item in of_class if vo in (None, item.vo) and name in (None, item.name)]
    if not found:
        options = "; ".join(entries.options(item) for item in of_class)
        raise NotFoundError(f"{task} has no such entry, only: {options}")
    return found


def _none_of(
    task: str, known: Sequence[EntryStatus], registry: Registry, leader: Leader | None
) -> str:
    """Explain why a class has no entry, as far as this process can tell."""
    from nonet.scheduler.periodic.entries import NO_SCHEDULE, default_schedule
    from nonet.tasks.task import PeriodicBaseTask, PeriodicVoAwareBaseTask

    registered = {name: item.cls for item in registry for name in names_of(item.name)}
    cls = registered.get(task)
    if cls is not None and not issubclass(cls, PeriodicBaseTask):
        from nonet.rules.findings.remedies import of_task

        return f"{task} is not periodic: '{of_task('submit', task)}' submits one"
    reason = entries.held_up(leader)
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
    """Describe where the last submitted task is, or what it waits for; empty if it has ended."""
    if not item.last_state:
        return ""
    try:
        return (await nonet.explain(item.last_id)).line
    except NotFoundError:  # it ended after the entry was read, and left no result
        return ""


def _print_changes(
    found: Sequence[EntryStatus], turned: Sequence[str], now: str, before: str, as_json: bool
) -> None:
    if as_json:
        print_json([{"entry": item.entry, "changed": item.entry in turned} for item in found])
    for item in [] if as_json else found:
        echo(f"{entries.options(item)} {now if item.entry in turned else before}")
