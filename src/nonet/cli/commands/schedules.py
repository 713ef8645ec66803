"""``task-run schedules``: show, add, remove, run, pause and resume entries; show the leader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.errors import ConfigurationError, NotFoundError, suggestion
from nonet.cli.commands.task_arguments import Args, Kwargs, Task
from nonet.cli.commands.task_building import given_arguments
from nonet.cli.completion import entry_classes, entry_names, entry_vos
from nonet.cli.options import Json
from nonet.cli.output import (
    cell,
    echo,
    print_answer,
    print_fields,
    print_json,
    print_line,
    print_table,
    print_view,
)
from nonet.cli.target import CodeTarget, Target, operation
from nonet.cli.task_classes import names_of, registry_here
from nonet.operate import entry_state, schedules
from nonet.operate.leader import leader_in_words
from nonet.operate.schedule_views import Kind, Rule
from nonet.operate.schedules import EntryQuery, Turned
from nonet.rules.findings.remedies import of_task
from nonet.tasks.periodic_policies import CatchUp
from nonet.tasks.task import PeriodicBaseTask, PeriodicVoAwareBaseTask

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.rules.periodic import EntryStatus
    from nonet.tasks.registry import Registry

app = typer.Typer(rich_markup_mode=None)

_COLUMNS = "task vo name source schedule state next last fired skipped missed"
_MORE = (
    "why suppressed paused late_seconds last_task=last_id last_task_state=last_state overlap "
    "catch_up jitter origin"
)
_LEADER = (
    "name term since lease_ends entries remembers waits_for config_version config_problem broken"
)


@dataclass(frozen=True, kw_only=True)
class EntrySelection:
    """The entries of a class that a command acts on."""

    task: Annotated[
        str,
        typer.Argument(
            metavar="CLASS",
            help="Name of the task class, category:Class or its bare name; or the id of a schedule "
            "in the database.",
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


@dataclass(frozen=True, kw_only=True)
class RuleOptions:
    """When a schedule fires: one of the first three."""

    cron: Annotated[
        str | None, typer.Option(metavar="FIELDS", help="Fire by cron: five fields or an @alias.")
    ] = None
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Fire at this interval: 30 (s), 15m, 2h.")
    ] = None
    rrule: Annotated[
        str | None, typer.Option(metavar="RULE", help="Fire by a rule of RFC 5545.")
    ] = None
    timezone: Annotated[
        str,
        typer.Option(metavar="ZONE", help="Time zone of --cron or --rrule.", show_default="UTC"),
    ] = ""

    def given(self) -> Rule:
        """Return the rule that was given.

        Raises:
            ConfigurationError: none or several were.
        """
        rules: dict[Kind, str | None] = {
            "cron": self.cron,
            "every": self.every,
            "rrule": self.rrule,
        }
        found = [(kind, rule) for kind, rule in rules.items() if rule is not None]
        if len(found) != 1:
            raise ConfigurationError("give one of --cron, --every and --rrule")
        return Rule(kind=found[0][0], rule=found[0][1], timezone=self.timezone)


@app.callback(invoke_without_command=True)
def entries(context: typer.Context) -> None:
    """Periodic entries: when they fire, their pauses, the leader.

    \b
    task-run schedules              # as 'task-run schedules list'
    """
    if context.invoked_subcommand is None:
        list_()


@app.command("list")
@operation
async def list_(target: Target, query: EntryQuery, as_json: Json = False) -> None:
    """List all periodic entries, including disabled ones.

    States: planned, waiting (the last occurrence has not started), running, paused, disabled,
    finished (the schedule has no more occurrences), broken (see 'schedules show').

    \b
    task-run schedules list
    """
    async with target.stores() as stores:
        found = await schedules.find(stores, query)
    least = ("skipped", "fired", "missed", "source", "last", "vo", "name")
    print_view(found, as_json, _COLUMNS, "no periodic entry is planned", least=least)
    if not as_json:
        refused = (f"{key} cannot be planned: {why}" for key, why in found.refused.items())
        for line in [leader_in_words(found.leader), *found.held_back, *refused]:
            print_line(line, err=True)


@app.command()
@operation
async def show(target: Target, wanted: EntrySelection, as_json: Json = False) -> None:
    """Show one periodic entry in full.

    'why' names the first condition that keeps the entry from running now, or the time when it
    fires. 'task-run config show' shows the arguments.

    Exit codes: 0 shown, 2 several entries match, 4 no such entry, or an ambiguous class name.

    \b
    task-run schedules show SubmitPilots --vo lhcb
    """
    async with target.observer() as nonet:
        item = _only(await _find(nonet, wanted))
        found = await schedules.get(nonet.client, item.entry)
    print_view(found, as_json, f"entry {_COLUMNS} {_MORE}")


@app.command()
@operation
async def leader(target: Target, as_json: Json = False) -> None:
    """Show which scheduler leads, and when each of its loops last ran.

    Exit codes: 0 shown, 4 no scheduler leads.

    \b
    task-run schedules leader
    """
    async with target.stores() as stores:
        found = await schedules.get_leader(stores)
    print_view(found, as_json, _LEADER)
    if not as_json:
        print_fields({name: _in_words(pulse) for name, pulse in found.loops.items()})


@app.command()
@operation
async def add(
    target: CodeTarget,
    id: Annotated[str, typer.Argument(metavar="ID", help="Its name. Add it again to change it.")],
    task: Task,
    rule: RuleOptions,
    args: Args = "[]",
    kwargs: Kwargs = "{}",
    tenant: Annotated[str, typer.Option(help="The tenant of its tasks.", show_default="none")] = "",
    catch_up: Annotated[
        CatchUp | None,
        typer.Option(
            help="What to submit of occurrences missed for longer than the misfire grace.",
            show_default="as the class says",
        ),
    ] = None,
    misfire_grace: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How late an occurrence still counts as in time.",
            show_default="as the class says",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a schedule to the database, or change the one with this id.

    The leader plans it within seconds. Exit codes: 0 created, changed or unchanged, 1 another entry
    has this name, 2 unknown class, invalid arguments, or no database.

    \b
    task-run schedules add digest-7 mail:SendDigest --args '[7]' --cron "0 8 * * *"
    """
    wanted = rule.given()
    async with target.application() as nonet:
        name, positional, named = given_arguments(nonet, task, args, kwargs)
        done = await schedules.put(
            nonet.client,
            id,
            name,
            (positional, named),
            wanted,
            tenant=tenant or None,
            catch_up=catch_up,
            misfire_grace=misfire_grace,
        )
    print_answer(done, f"{id} {done.change}", as_json)


@app.command()
@operation
async def preview(target: Target, rule: RuleOptions, as_json: Json = False) -> None:
    """Show when a rule would fire: the next ten times, and the next change of the clocks.

    \b
    task-run schedules preview --cron "30 2 * * *" --timezone Europe/Zurich
    """
    async with target.stores() as stores:
        found = await schedules.preview(stores, rule.given())
    print_view(found, as_json, "schedule rule")
    if not as_json:
        columns = ["next", *([found.zone] if found.zone != "UTC" else [])]
        print_table(columns, [[at, found.local(at)][: len(columns)] for at in found.upcoming])
    if not as_json and (change := found.clock_change):
        first = f"; the first one after: {found.local(change.first)}" if change.first else ""
        echo(f"the clocks change from {change.before} to {change.after}, {cell(change.at)}{first}")


@app.command()
@operation
async def remove(
    target: Target,
    id: Annotated[str, typer.Argument(metavar="ID", help="Its name.", autocompletion=entry_names)],
) -> None:
    """Remove a schedule from the database.

    An occurrence that has not started is withdrawn, a running one continues.

    Exit codes: 0 removed, 4 no such schedule in the database.

    \b
    task-run schedules remove digest-7
    """
    async with target.observer() as nonet:
        await schedules.remove(nonet.client, id)
    print_line(f"{id} removed")


@app.command("run-now")
@operation
async def run_now(target: CodeTarget, wanted: EntrySelection, as_json: Json = False) -> None:
    """Submit the task of one periodic entry now, and print its id.

    The schedule does not change, and a paused or disabled entry runs too. Locks apply as always: a
    class with a mutex waits while an occurrence runs.

    Exit codes: 0 submitted, 2 several entries match, 4 no such entry, or an ambiguous class name.

    \b
    task-run schedules run-now SubmitPilots --vo lhcb --name everywhere
    """
    async with target.application() as nonet:
        item = _only(await _find(nonet, wanted))
        handle = await schedules.run(nonet.client, item.entry)
    print_answer({"id": str(handle)}, handle, as_json)


@app.command()
@operation
async def pause(
    target: Target,
    wanted: EntrySelection,
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
        done = await schedules.pause(nonet.stores, [item.entry for item in found], reason)
    _print_changes(found, done, "paused", "was paused already", as_json)


@app.command()
@operation
async def resume(target: Target, wanted: EntrySelection, as_json: Json = False) -> None:
    """Let paused entries of a class fire again, from their next occurrence on.

    Exit codes: 0 resumed, 4 no such entry.

    \b
    task-run schedules resume SubmitPilots
    """
    async with target.observer() as nonet:
        found = await _find(nonet, wanted)
        done = await schedules.resume(nonet.stores, [item.entry for item in found])
    _print_changes(found, done, "resumed", "was not paused", as_json)


async def _find(nonet: Nonet, wanted: EntrySelection) -> list[EntryStatus]:
    """Return the entries that match.

    Raises:
        NotFoundError: none does, or classes of several categories have the bare name.
    """
    task, vo, name = wanted.task, wanted.vo, wanted.name
    known = await nonet.stores.periodic.statuses()
    of_class = [
        item
        for item in known
        if task in (*names_of(item.task), *((item.name,) if item.source == "database" else ()))
    ]
    if not of_class:
        raise NotFoundError(
            _none_of(task, known, registry_here(nonet), await schedules.held_up(nonet.stores))
        )
    if len({item.task for item in of_class}) > 1:
        full = " or ".join(sorted({item.task for item in of_class}))
        raise NotFoundError(f"the class name {task!r} is ambiguous: write {full}")
    found = [item for item in of_class if vo in (None, item.vo) and name in (None, item.name)]
    if not found:
        options = "; ".join(entry_state.options(item) for item in of_class)
        raise NotFoundError(f"{task} has no such entry, only: {options}")
    return found


def _none_of(task: str, known: Sequence[EntryStatus], registry: Registry, reason: str) -> str:
    """Explain why a class has no entry, as far as this process can tell."""
    from nonet.config.entries import NO_SCHEDULE, default_schedule  # slow; only this error needs it

    registered = {name: item.cls for item in registry for name in names_of(item.name)}
    cls = registered.get(task)
    if cls is not None and not issubclass(cls, PeriodicBaseTask):
        return f"{task} is not periodic: '{of_task('submit', task)}' submits one"
    if cls is not None:
        vo_hint = ", and is a VO configured" * issubclass(cls, PeriodicVoAwareBaseTask)
        otherwise = f"has the scheduler loaded the class (NONET_TASKS){vo_hint}?"
        if default_schedule(cls) is None:
            otherwise = f"it {NO_SCHEDULE}"
        return f"no entry of {task} is planned: {reason or otherwise}"
    periodic = [item.name for item in registry if issubclass(item.cls, PeriodicBaseTask)]
    names = sorted({item.task for item in known}.union(periodic))
    problem = f"no periodic entry of class {task!r}.{suggestion(task, names)}"
    if not known:
        problem += f" Nothing is planned yet: {reason or 'the leading scheduler has no entry'}"
    return problem


def _only(found: Sequence[EntryStatus]) -> EntryStatus:
    """Return the entry that matches.

    Raises:
        ConfigurationError: several do.
    """
    if len(found) > 1:
        listed = "; ".join(entry_state.options(item) for item in found)
        raise ConfigurationError(f"{len(found)} entries match, choose one: {listed}")
    return found[0]


def _print_changes(
    found: Sequence[EntryStatus], done: Turned, now: str, before: str, as_json: bool
) -> None:
    if as_json:
        print_json(done)
    words = dict.fromkeys(done.changed, now) | dict.fromkeys(done.gone, "exists no more")
    for item in [] if as_json else found:
        echo(f"{entry_state.options(item)} {words.get(item.entry, before)}")


def _in_words(pulse: Mapping[str, Any]) -> str:
    """Describe the state of one loop of the leader."""
    text = f"last tick {pulse['last'] or 'never'}, {pulse['failures']} failures"
    return f"{text}: {pulse['error']}" if pulse.get("error") else text
