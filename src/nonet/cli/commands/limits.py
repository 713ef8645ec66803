"""``task-run limits``: show limits, and change them while tasks run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from nonet.base.errors import ConfigurationError, NonetError, NotFoundError
from nonet.cli.options import Json
from nonet.cli.output import echo, print_view
from nonet.cli.process import warn
from nonet.cli.target import CodeTarget, Target, operation
from nonet.cli.task_classes import loaded
from nonet.operate import limits
from nonet.operate.limits import LimitQuery
from nonet.operate.lists import ListQuery
from nonet.rules.limit_changes import ParsedAddress, limit_of, parse_address
from nonet.rules.limits import CONCURRENCY, OFF, RATE, Limit, LimitAddress

if TYPE_CHECKING:
    from nonet.stores.stores import Stores

app = typer.Typer(
    help="Limits: how many tasks run at a time, or start in a window.", rich_markup_mode=None
)

_COLUMNS = "name limit=value used waiting source configured by since"
_LEAST = ("by", "since")

Name = Annotated[str, typer.Argument(help="The limiter, as 'locks' shows it: limiter:conc:job:7.")]
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
    str | None, typer.Option(help="Limit of this VO alone, counted separately.", show_default=False)
]


@app.command("list")
@operation
async def list_(target: Target, query: LimitQuery, as_json: Json = False) -> None:
    """Show the limits in force: configured, set by hand, or declared by a class and in use.

    The most specific limit that matches applies: key and action, then key, then 'default' and
    action, then 'default'; limits of the VO before common ones. Without a match, the limit of the
    class applies. Column 'source': 'override' was set by hand.

    \b
    task-run limits list
    """
    async with target.stores() as stores:
        found = await limits.find(stores, query)
    nothing = "no limit is set: task classes keep their own limits"
    print_view(found, as_json, _COLUMNS, nothing, least=_LEAST)


@app.command()
@operation
async def show(target: Target, name: Name, as_json: Json = False) -> None:
    """Show one limit, and how full it is.

    Exit codes: 0 shown, 4 no such limit.

    \b
    task-run limits show limiter:conc:job:7
    """
    async with target.stores() as stores:
        print_view(await limits.get(stores, parse_address(name, None).address), as_json, _COLUMNS)


@app.command()
@operation
async def ceilings(target: Target, query: ListQuery, as_json: Json = False) -> None:
    """Show how many tasks there are in each scope, and how many there may be.

    Submissions beyond a ceiling are refused; ceilings are set in the configuration.

    \b
    task-run limits ceilings
    """
    async with target.stores() as stores:
        print_view(await limits.ceilings(stores, query), as_json, "scope tasks=active ceiling")


@app.command("set")
@operation
async def set_(
    target: CodeTarget,
    object_type: ObjectType,
    key: Key = None,
    action: Action = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar="N|off", help="Run up to N at a time; off: no limit.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N|off", help="Start up to N per --window; off: no limit.")
    ] = None,
    window: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Window of --rate, in seconds.")
    ] = None,
    off: Annotated[
        bool, typer.Option("--off", help="Set both unlimited, overriding configuration and class.")
    ] = False,
    vo: Vo = None,
) -> None:
    """Set a limit that overrides the configuration.

    It applies to the next task that starts: a higher limit wakes waiting tasks, a lower one does
    not stop running tasks. It lasts until 'limits unset', or until Redis loses its data; put
    permanent limits into the configuration. 'task-run events' shows who changed what.

    The type must be registered by a loaded class (--tasks) or already used here: in the
    configuration, in other limits, or by locks in use.

    \b
    task-run limits set limiter:conc:storage_element:CERN-DST:RemoveFile --concurrency 3
    task-run limits set StorageElement CERN-DST RemoveFile --concurrency 3
    task-run limits set Task SubmitPilots --rate 10 --window 3600 --vo lhcb
    task-run limits set Job default --off
    """
    values = _values(concurrency, rate, window, off)
    parsed = _parsed(object_type, key, action, vo)
    if not values.keys() <= set(kinds := parsed.limiters):
        raise ConfigurationError(f"{object_type} is a {kinds[0]} limiter: give --{kinds[0]}")
    async with target.stores() as stores:
        where = await _resolved(parsed, target, stores)
        for limiter, value in values.items():
            address = replace(where, limiter=limiter)
            await limits.override(stores, address, value)
            echo(f"{address}: {value}", err=True)


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
) -> None:
    """Remove limits that were set by hand; the configuration applies again.

    Exit codes: 0 removed, 4 no such limit was set by hand.

    \b
    task-run limits unset StorageElement CERN-DST RemoveFile
    """
    parsed = _parsed(object_type, key, action, vo)
    kinds = [kind for kind, wanted in ((CONCURRENCY, concurrency), (RATE, rate)) if wanted]
    missing: list[str] = []
    async with target.stores() as stores:
        where = await _resolved(parsed, target, stores)
        addresses = [replace(where, limiter=kind) for kind in kinds or parsed.limiters]
        for address in addresses:
            try:
                await limits.unset(stores, address)
                echo(f"{address}: as configured", err=True)
            except NotFoundError as error:
                missing.append(str(error))
    if len(missing) == len(addresses):
        raise NotFoundError("; ".join(missing))


def _parsed(written: str, key: str | None, action: str | None, vo: str | None) -> ParsedAddress:
    _refuse_empty(KEY=key, ACTION=action, **{"--vo": vo})
    return parse_address(written, key, action or "", vo or "")


async def _resolved(parsed: ParsedAddress, target: CodeTarget, stores: Stores) -> LimitAddress:
    found, note = await limits.resolve(parsed, stores, _task_classes(target))
    if note:
        warn(note)
    return found


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
                "--off sets both to unlimited: it excludes --concurrency, --rate and --window"
            )
        return {CONCURRENCY: Limit(None), RATE: Limit(None)}
    if concurrency is None and rate is None:
        raise ConfigurationError("nothing to set: give --concurrency, --rate or --off")
    values: dict[str, Limit] = {}
    if concurrency is not None:
        values[CONCURRENCY] = _limit(CONCURRENCY, concurrency, None)
    if rate is not None:
        if rate != OFF and window is None:
            _limit(RATE, rate, 1.0)  # a wrong number is reported first
            raise ConfigurationError("--rate needs --window SECONDS")
        values[RATE] = _limit(RATE, rate, window)
    if window is not None and values.get(RATE, Limit(None)).limit is None:
        raise ConfigurationError("--window needs --rate and a number")
    return values


def _limit(limiter: str, number: str, window: float | None) -> Limit:
    try:
        return limit_of(limiter, number, window)
    except ConfigurationError as error:
        raise ConfigurationError(f"--{error}") from None


def _task_classes(target: CodeTarget) -> set[str]:
    """Return names of task classes; empty if they cannot be loaded: limits work without them."""
    try:
        registry = loaded(target.settings())
    except NonetError as error:
        warn(str(error))
        return set()
    return {item.name for item in registry}
