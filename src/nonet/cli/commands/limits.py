"""``task-run limits``: see which limits hold, and change them while tasks run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nonet.base.errors import ConfigurationError, NonetError, NotFoundError, suggestion
from nonet.cli.common import (
    Debug,
    Json,
    Namespace,
    StateDir,
    Tasks,
    observer,
    run,
    settings_options,
    stores,
)
from nonet.cli.output import print_rows, printable
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
    snake_case,
    window_problem,
)
from nonet.tasks.locks import TASK, LockedObjectType

app = typer.Typer(
    help="Limits: how many executions at a time, or in a window of time.",
    rich_markup_mode=None,
)

OFF = "off"

ObjectType = Annotated[
    str, typer.Argument(metavar="OBJECT_TYPE", help="Task, Job, StorageElement, or job …")
]
Key = Annotated[
    str,
    typer.Argument(metavar="KEY", help="Which object, or 'default'; of Task the class name."),
]
Action = Annotated[
    str | None,
    typer.Argument(metavar="ACTION", help="Further key of the limiter.", show_default=False),
]
Vo = Annotated[
    str | None, typer.Option(help="The own limit of this VO, counted apart.", show_default=False)
]


@app.command("list")
def list_(
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Show the limits that hold, from the configuration or set by hand.

    Of those that fit a limiter the first one holds: key and action, key, 'default' and action,
    'default'; the VO's own before the common ones. What no row limits follows its class.
    """

    async def command() -> int:
        async with stores(namespace, state_dir) as kept:
            found = await kept.limits.all()
        rows = [
            {
                "object_type": item.address.object_type,
                "key": item.address.key,
                "action": item.address.action or None,
                "vo": item.address.vo or None,
                "limiter": item.address.limiter,
                "limit": OFF if item.limit.limit is None else item.limit.limit,
                "window_seconds": item.limit.window_seconds,
                "used": item.used,
                "source": "override" if item.by else "configuration",
                "configured": _in_words(item.configured) if item.configured else None,
                "by": item.by or None,
                "since": item.since,
            }
            for item in found
        ]
        print_rows(rows, as_json, "no limit is set: those of the classes hold")
        return ExitCode.OK

    run(debug, command)


@app.command("set")
def set_(
    object_type: ObjectType,
    key: Key,
    action: Action = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar="N|off", help="At most so many at a time.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N|off", help="At most so many in any --window.")
    ] = None,
    window: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Length of the window of --rate.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Lift both, also those of the class.")] = False,
    vo: Vo = None,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Let a limit hold, whatever the configuration says of the same address.

    It counts for the next task that starts; a raise wakes those that wait, a cut lets those that
    run end. It holds until 'limits unset', or until Redis loses its data: write into the
    configuration what shall stay. 'task-run events' shows who changed what.

    \b
    task-run limits set StorageElement CERN-DST RemoveFile --concurrency 3
    task-run limits set Task SubmitPilots --rate 10 --window 3600 --vo lhcb
    task-run limits set Job default --off
    """

    async def command() -> int:
        values = _values(concurrency, rate, window, off)
        _refuse_empty(KEY=key, ACTION=action, **{"--vo": vo})
        found = _object_type(object_type, key, settings_options(tasks, namespace, state_dir))
        async with observer(namespace, state_dir) as nonet:
            for limiter, limit in values.items():
                address = LimitAddress(found, key, action or "", limiter, vo or "")
                await nonet.stores.limits.override(address, limit, who())
                typer.echo(f"{_name(address)}: {_in_words(limit)}", err=True)
        return ExitCode.OK

    run(debug, command)


@app.command()
def unset(
    object_type: ObjectType,
    key: Key,
    action: Action = None,
    concurrency: Annotated[
        bool, typer.Option("--concurrency", help="Only how many at a time.")
    ] = False,
    rate: Annotated[bool, typer.Option("--rate", help="Only how many in a window.")] = False,
    vo: Vo = None,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Let the configuration hold again. Exit code 4: there is no such override."""

    async def command() -> int:
        _refuse_empty(KEY=key, ACTION=action, **{"--vo": vo})
        found = _object_type(object_type, key, settings_options(tasks, namespace, state_dir))
        kinds = [kind for kind, wanted in ((CONCURRENCY, concurrency), (RATE, rate)) if wanted]
        addresses = [
            LimitAddress(found, key, action or "", kind, vo or "")
            for kind in kinds or (CONCURRENCY, RATE)
        ]
        async with observer(namespace, state_dir) as nonet:
            gone = [item for item in addresses if await nonet.stores.limits.go_back(item, who())]
        if not gone:
            raise NotFoundError(
                f"no override of {' or '.join(map(_name, addresses))}: 'task-run limits list' "
                "shows all"
            )
        for address in gone:
            typer.echo(f"{_name(address)}: as configured", err=True)
        return ExitCode.OK

    run(debug, command)


def _refuse_empty(**given: str | None) -> None:
    """An empty variable of a script must not become the limit of everybody."""
    for name, value in given.items():
        if value == "":
            raise ConfigurationError(f"{name} must not be empty: give a value or leave it out")


def _values(
    concurrency: str | None, rate: str | None, window: float | None, off: bool
) -> dict[str, Limit]:
    """The limits that the options of ``set`` mean, by limiter."""
    if off:
        if (concurrency, rate, window) != (None, None, None):
            raise ConfigurationError("--off lifts every limit: give no number beside it")
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


def _object_type(written: str, key: str, options: dict[str, Any]) -> str:
    """The name of an object type; what is not known here is a warning, for code is elsewhere."""
    classes = _task_classes(options)
    known = LockedObjectType.registered()
    found = find_object_type(written, known)
    if found is None:
        found = snake_case(written)
        if not found.isidentifier():
            raise ConfigurationError(f"object type {written!r} must be an identifier")
        _warn(f"object type {found!r} is not registered here.{suggestion(written, known)}")
    elif found == TASK and ":" in key:
        raise ConfigurationError(f"KEY: {class_problem(key, classes)}")
    elif found == TASK and key != DEFAULT and key not in classes:
        _warn(f"task class {key!r} is not registered here.{suggestion(key, classes)}")
    return found


def _task_classes(options: dict[str, Any]) -> set[str]:
    """Bare names of the task classes, as far as they can be loaded: limits need none of them."""
    from nonet.config.loading import load_registry
    from nonet.config.settings import load_settings

    try:
        registry = load_registry(load_settings(**options))
    except NonetError as error:
        _warn(str(error))
        return set()
    return {item.name.rpartition(":")[2] for item in registry}


def _warn(reason: str) -> None:
    typer.echo(f"warning: {printable(' '.join(reason.split()))}", err=True)


def _name(address: LimitAddress) -> str:
    parts = [address.limiter, address.object_type, address.key, address.action]
    vo = [f"of VO {address.vo}"] if address.vo else []
    return printable(" ".join(part for part in [*parts, *vo] if part))


def _in_words(limit: Limit) -> str:
    if limit.limit is None:
        return OFF
    if limit.window_seconds is None:
        return str(limit.limit)
    return f"{limit.limit} per {limit.window_seconds:g} s"
