"""``task-run limits``: show limits, and change them while tasks run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.errors import ConfigurationError, NonetError, NotFoundError, suggestion
from nonet.cli.options import Json
from nonet.cli.output import print_rows, printable
from nonet.cli.process import warn
from nonet.cli.target import CodeTarget, Target, operation
from nonet.daemon.service import ExitCode, who
from nonet.rules.limits import (
    CONCURRENCY,
    DEFAULT,
    RATE,
    Limit,
    LimitAddress,
    class_problem,
    find_object_type,
    limit_problem,
    window_problem,
)
from nonet.tasks.locks import TASK, LockedObjectType

if TYPE_CHECKING:
    from nonet.app import Nonet

app = typer.Typer(
    help="Limits: how many tasks run at a time, or start in a window.",
    rich_markup_mode=None,
)

OFF = "off"
# Tasks of a limiter that are searched for the limit that their class declares.
_SHOWN = 50

ObjectType = Annotated[
    str,
    typer.Argument(
        metavar="OBJECT_TYPE",
        help="Type of locked object, such as Task or Job; or a whole limiter, as 'locks' and "
        "'explain' show it or as TYPE:KEY:ACTION.",
    ),
]
Key = Annotated[
    str | None,
    typer.Argument(
        metavar="[KEY]",
        help="The object, or 'default' for all; for type Task, the bare name of a class.",
        show_default=False,
    ),
]
Action = Annotated[
    str | None,
    typer.Argument(metavar="ACTION", help="The action, if limiters name one.", show_default=False),
]
Vo = Annotated[
    str | None,
    typer.Option(help="Limit of this VO alone, counted separately.", show_default=False),
]


@app.command("list")
@operation
async def list_(
    target: Target,
    as_json: Json = False,
) -> int:
    """Show the limits in force: configured, set by hand, or declared by a class and in use.

    The most specific limit that matches applies: key and action, then key, then 'default' and
    action, then 'default'; limits of the VO before common ones. Without a match, the limit of the
    class applies. Column 'source': 'override' was set by hand.

    \b
    task-run limits list
    """
    from nonet.stores.namespace.limits import declared  # it imports redis

    async with target.stores() as stores:
        found = await stores.limits.all()
        found += declared(await stores.locks.in_use(show=_SHOWN), found)
    rows: list[dict[str, Any]] = [
        {
            "object_type": item.address.object_type,
            "key": item.address.key,
            "action": item.address.action or None,
            "vo": item.address.vo or None,
            "limiter": item.address.limiter,
            "limit": OFF if item.limit.limit is None else item.limit.limit,
            "window_seconds": item.limit.window_seconds,
            "used": item.used,
            "source": item.source,
            "configured": _in_words(item.configured) if item.configured else None,
            "by": item.by or None,
            "since": item.since,
        }
        for item in found
    ]
    if not as_json:
        rows = [_short(row) for row in rows]
    print_rows(rows, as_json, "no limit is set: task classes keep their own limits")
    return ExitCode.OK


@app.command("set")
@operation
async def set_(
    target: CodeTarget,
    object_type: ObjectType,
    key: Key = None,
    action: Action = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar="N|off", help="Run at most this many tasks at a time.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N|off", help="Start at most this many in any --window.")
    ] = None,
    window: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Window of --rate, in seconds.")
    ] = None,
    off: Annotated[
        bool,
        typer.Option("--off", help="Remove both limits, including the class default."),
    ] = False,
    vo: Vo = None,
) -> int:
    """Set a limit that overrides the configuration.

    It applies to the next task that starts: a higher limit wakes waiting tasks, a lower one does
    not stop running tasks. It lasts until 'limits unset', or until Redis loses its data; put
    permanent limits into the configuration. 'task-run events' shows who changed what.

    An object type is refused unless a class registers it here (see --tasks) or the namespace knows
    it: from its configuration, from other limits, or from locks in use.

    \b
    task-run limits set limiter:conc:storage_element:CERN-DST:RemoveFile --concurrency 3
    task-run limits set StorageElement CERN-DST RemoveFile --concurrency 3
    task-run limits set Task SubmitPilots --rate 10 --window 3600 --vo lhcb
    task-run limits set Job default --off
    """
    values = _values(concurrency, rate, window, off)
    where, kinds = _place(object_type, key, action, vo)
    if not values.keys() <= set(kinds):
        raise ConfigurationError(f"{object_type} is a {kinds[0]} limiter: give --{kinds[0]}")
    async with target.observer() as nonet:
        where = replace(where, object_type=await _object_type(where, target, nonet))
        for limiter, limit in values.items():
            address = replace(where, limiter=limiter)
            await nonet.stores.limits.override(address, limit, who())
            typer.echo(f"{_name(address)}: {_in_words(limit)}", err=True)
    return ExitCode.OK


@app.command()
@operation
async def unset(
    target: CodeTarget,
    object_type: ObjectType,
    key: Key = None,
    action: Action = None,
    concurrency: Annotated[
        bool, typer.Option("--concurrency", help="Remove only the concurrency limit.")
    ] = False,
    rate: Annotated[bool, typer.Option("--rate", help="Remove only the rate limit.")] = False,
    vo: Vo = None,
) -> int:
    """Remove limits that were set by hand; the configuration applies again.

    Exit codes: 0 removed, 4 no such limit was set by hand.

    \b
    task-run limits unset StorageElement CERN-DST RemoveFile
    """
    where, both = _place(object_type, key, action, vo)
    kinds = [kind for kind, wanted in ((CONCURRENCY, concurrency), (RATE, rate)) if wanted]
    async with target.observer() as nonet:
        where = replace(where, object_type=await _object_type(where, target, nonet))
        addresses = [replace(where, limiter=kind) for kind in kinds or both]
        gone = [item for item in addresses if await nonet.stores.limits.go_back(item, who())]
    if not gone:
        raise NotFoundError(
            f"no override of {' or '.join(map(_name, addresses))}: 'task-run limits list' shows all"
        )
    for address in gone:
        typer.echo(f"{_name(address)}: as configured", err=True)
    return ExitCode.OK


def _place(
    written: str, key: str | None, action: str | None, vo: str | None
) -> tuple[LimitAddress, tuple[str, ...]]:
    """Return the address that the arguments name, and the limiters that it may be of."""
    _refuse_empty(KEY=key, ACTION=action, **{"--vo": vo})
    if key is not None:
        return LimitAddress(written, key, action or "", vo=vo or ""), (CONCURRENCY, RATE)
    named = LimitAddress.of_counter(written)
    kinds = (CONCURRENCY, RATE) if named is None else (named.limiter,)
    named = named or LimitAddress.of_counter(f"limiter:conc:{written}")
    if named is None:
        raise ConfigurationError(
            f"KEY is missing: give it after {written!r}, or give the name of a limiter as "
            "'task-run locks' shows it"
        )
    if vo and named.vo not in ("", vo):
        raise ConfigurationError(f"--vo {vo}: {written} is of VO {named.vo}")
    if kinds == (named.limiter,) and named.counter != written:
        warn(f"a limit names one action at most: this one is for all actions of {named.key}")
    return replace(named, vo=vo or named.vo), kinds


def _refuse_empty(**given: str | None) -> None:
    """Reject empty arguments: an empty shell variable would change the common limit."""
    for name, value in given.items():
        if value == "":
            raise ConfigurationError(f"{name} must not be empty: give a value or leave it out")


def _values(
    concurrency: str | None, rate: str | None, window: float | None, off: bool
) -> dict[str, Limit]:
    """Return the limits that the options of ``set`` describe, by limiter."""
    if off:
        if (concurrency, rate, window) != (None, None, None):
            raise ConfigurationError(
                "--off removes every limit: it excludes --concurrency, --rate and --window"
            )
        return {CONCURRENCY: Limit(None), RATE: Limit(None)}
    if concurrency is None and rate is None:
        raise ConfigurationError("nothing to set: give --concurrency, --rate or --off")
    values: dict[str, Limit] = {}
    if concurrency is not None:
        values[CONCURRENCY] = Limit(_number("--concurrency", concurrency))
    if rate is not None:
        limit = _number("--rate", rate)
        if limit is not None and window is None:
            raise ConfigurationError("--rate needs --window SECONDS")
        if limit is not None and (problem := window_problem(window)):
            raise ConfigurationError(f"--window: {problem}")
        values[RATE] = Limit(limit, window)
    if window is not None and values.get(RATE, Limit(None)).limit is None:
        raise ConfigurationError("--window needs --rate and a number")
    return values


def _number(option: str, text: str) -> int | None:
    if text == OFF:
        return None
    number: object = int(text) if text.isascii() and text.isdigit() else text
    if problem := limit_problem(number):
        raise ConfigurationError(f"{option}: {problem}; or '{OFF}'")
    return int(text)


async def _object_type(where: LimitAddress, target: CodeTarget, nonet: Nonet) -> str:
    """Return the name of an object type that is registered here, or known to the namespace."""
    classes = _task_classes(target)
    written, key = where.object_type, where.key
    known: Collection[str] = LockedObjectType.registered()
    found = find_object_type(written, known)
    if found is None:
        limits = {item.address.object_type for item in await nonet.stores.limits.all()}
        known = {*known, *limits, *await nonet.stores.locks.object_types()}
        found = find_object_type(written, known)
    if found is None:
        raise ConfigurationError(
            f"unknown object type {written!r}, known are {', '.join(sorted(known))}."
            + (suggestion(written, known) or " Load the module that registers it with --tasks")
        )
    if found == TASK and ":" in key:
        raise ConfigurationError(f"KEY: {class_problem(key, classes)}")
    elif found == TASK and key != DEFAULT and key not in classes:
        warn(f"task class {key!r} is not registered here.{suggestion(key, classes)}")
    return found


def _task_classes(target: CodeTarget) -> set[str]:
    """Return bare names of task classes; empty if they cannot be loaded, which limits allow."""
    from nonet.config.loading import load_registry

    try:
        registry = load_registry(target.settings())
    except NonetError as error:
        warn(str(error))
        return set()
    return {item.name.rpartition(":")[2] for item in registry}


def _name(address: LimitAddress) -> str:
    parts = [address.limiter, address.object_type, address.key, address.action]
    vo = [f"of VO {address.vo}"] if address.vo else []
    return printable(" ".join(part for part in [*parts, *vo] if part))


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose header fits 80 columns."""
    if row["window_seconds"] is not None:
        row["limit"] = f"{row['limit']} per {row['window_seconds']:g} s"
    del row["window_seconds"]
    return {"type": row.pop("object_type"), **row}


def _in_words(limit: Limit) -> str:
    if limit.limit is None:
        return OFF
    if limit.window_seconds is None:
        return str(limit.limit)
    return f"{limit.limit} per {limit.window_seconds:g} s"
