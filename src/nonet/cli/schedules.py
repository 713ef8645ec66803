"""``task-run schedules``: the periodic entries, and who fires them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.cli.common import (
    Debug,
    Json,
    Namespace,
    StateDir,
    Tasks,
    application,
    observer,
    run,
    say,
)
from nonet.cli.output import print_fields, print_json, print_rows
from nonet.errors import NotFoundError, suggestion
from nonet.service import ExitCode, who

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.stores.leadership import Leader
    from nonet.stores.periodic import EntryStatus

app = typer.Typer()

Class = Annotated[str, typer.Argument(metavar="CLASS", help="Task class, full or bare name.")]
Vo = Annotated[str | None, typer.Option("--vo", help="Only the entry of this VO.")]
Name = Annotated[str | None, typer.Option("--name", help="Only the entry of this name.")]


@app.callback(invoke_without_command=True)
def schedules(context: typer.Context) -> None:
    """Periodic entries: what fires when, what is paused, and who leads."""
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
        async with observer(namespace, state_dir) as nonet:
            leader, found = await nonet.leader(), await nonet.periodic.statuses()
        print_rows([_row(item, leader) for item in found], as_json, "no periodic entry is planned")
        if not as_json:
            typer.echo(_in_words(leader), err=True)
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

    For their arguments see 'task-run config show'.
    """

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            leader, found = await nonet.leader(), await _find(nonet, task, vo, name)
        documents = [_document(item, leader) for item in found]
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
        async with observer(namespace, state_dir) as nonet:
            found = await nonet.leader()
        if found is None:
            raise NotFoundError("no scheduler leads: is a task-scheduler running?")
        told = {**json.loads(found.info), "term": found.term, "lease_ends": found.expiry}
        if as_json:
            print_json(told)
        else:
            loops = told.pop("loops", {})
            print_fields({**told, **{name: _loop(pulse) for name, pulse in loops.items()}})
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
    task of a class with a mutex waits.
    """

    async def command() -> int:
        async with application(tasks, namespace, state_dir) as nonet:
            found = await _find(nonet, task, vo, name)
            if len(found) > 1:
                options = "; ".join(_options(item) for item in found)
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

    What was submitted before runs. Occurrences of the meantime are not made up for.
    """

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            found = await _find(nonet, task, vo, name)
            keys = [item.entry for item in found]
            turned = await nonet.periodic.pause(keys, who(), reason)
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
    """Let paused entries of a class fire again, from their next occurrence on."""

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            found = await _find(nonet, task, vo, name)
            turned = await nonet.periodic.resume([item.entry for item in found], who())
        return _tell(found, turned, "resumed", "was not paused", as_json)

    run(debug, command)


async def _find(nonet: Nonet, task: str, vo: str | None, name: str | None) -> list[EntryStatus]:
    """The entries that are meant."""
    known = await nonet.periodic.statuses()
    of_class = [item for item in known if task in (item.task, item.task.rpartition(":")[2])]
    if not of_class:
        names = {item.task.rpartition(":")[2] for item in known} | {item.task for item in known}
        raise NotFoundError(f"no periodic entry of class {task!r}.{suggestion(task, names)}")
    if len({item.task for item in of_class}) > 1:
        full = " or ".join(sorted({item.task for item in of_class}))
        raise NotFoundError(f"the class name {task!r} is ambiguous: write {full}")
    found = [item for item in of_class if vo in (None, item.vo) and name in (None, item.name)]
    if not found:
        options = "; ".join(_options(item) for item in of_class)
        raise NotFoundError(f"{task} has no such entry, only: {options}")
    return found


def _tell(
    found: Sequence[EntryStatus], turned: Sequence[str], now: str, before: str, as_json: bool
) -> int:
    if as_json:
        print_json([{"entry": item.entry, "changed": item.entry in turned} for item in found])
    for item in [] if as_json else found:
        typer.echo(f"{_options(item)} {now if item.entry in turned else before}")
    return ExitCode.OK


def _options(item: EntryStatus) -> str:
    """An entry as the options of a command name it."""
    vo = f" --vo {item.vo}" if item.vo else ""
    return f"{item.task}{vo} --name {item.name}"


def _row(item: EntryStatus, leader: Leader | None) -> dict[str, Any]:
    return {
        "task": item.task,
        "vo": item.vo,
        "name": item.name,
        "schedule": item.schedule,
        "state": _state(item, _broken(leader)),
        "next": item.next if item.enabled else None,
        "last": item.last,
        "fired": item.fired,
        "skipped": item.skipped,
        "missed": item.missed,
    }


def _document(item: EntryStatus, leader: Leader | None) -> dict[str, Any]:
    return {
        "entry": item.entry,
        **_row(item, leader),
        "suppressed": item.suppressed,
        "paused": item.paused,
        "problem": _broken(leader).get(item.entry, ""),
        "last_task": item.last_id,
        "last_task_state": item.last_state,
        "overlap": item.overlap or "skip if it takes a mutex, else allow",
        "catch_up": item.catch_up,
        "jitter": item.jitter,
        "origin": item.origin,
    }


def _state(item: EntryStatus, broken: dict[str, str]) -> str:
    if not item.enabled:
        return "disabled"
    if item.paused:
        return "paused"
    if item.entry in broken:
        return "broken"
    if item.last_state:
        return "running" if item.last_state in ("running", "dying") else "waiting"
    return "planned" if item.next else "finished"


def _broken(leader: Leader | None) -> dict[str, str]:
    info: dict[str, Any] = json.loads(leader.info) if leader and leader.info else {}
    broken: dict[str, str] = info.get("broken", {})
    return broken


def _in_words(leader: Leader | None) -> str:
    """Who leads, since when, and whether the loop that fires entries goes on."""
    if leader is None:
        return "no scheduler leads: nothing fires, is a task-scheduler running?"
    info = json.loads(leader.info or "{}")
    text = f"leader {info.get('name', leader.owner)}, term {leader.term}"
    if info.get("since"):
        text += f", since {info['since']}"
    pulse = info.get("loops", {}).get("periodic entries", {})
    if pulse.get("last"):
        ago = (datetime.now(UTC) - datetime.fromisoformat(pulse["last"])).total_seconds()
        text += f", last tick {max(0.0, ago):.1f} s ago"
    if info.get("waits_for"):
        text += f"; nothing fires yet: {info['waits_for']}"
    return text


def _loop(pulse: dict[str, Any]) -> str:
    text = f"last tick {pulse['last'] or 'never'}, {pulse['failures']} failures"
    return f"{text}: {pulse['error']}" if pulse.get("error") else text
