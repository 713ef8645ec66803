"""A task on the command line: its class, its arguments as JSON, and its labels."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.errors import ConfigurationError, InvalidArgumentsError
from nonet.cli.completion import classes
from nonet.cli.durations import duration
from nonet.telemetry.masking import keep_secret

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.tasks.task import BaseTask

Task = Annotated[
    str,
    typer.Argument(
        metavar="CATEGORY:CLASS",
        help="Full name of the class, or its bare name if unique.",
        autocompletion=classes,
    ),
]
Args = Annotated[
    str, typer.Option(metavar="JSON", help="Arguments of the task by position, as a JSON array.")
]
Kwargs = Annotated[
    str, typer.Option(metavar="JSON", help="Arguments of the task by name, as a JSON object.")
]


def build_task(nonet: Nonet, name: str, args: str, kwargs: str) -> tuple[str, BaseTask]:
    """Return the full name of a class, and a task made of JSON, without calling a server."""
    full_name = nonet.registry.get(name).name
    positional = _json(full_name, "--args", args, list)
    return bind_task(nonet, full_name, positional, _json(full_name, "--kwargs", kwargs, dict))


def bind_task(
    nonet: Nonet, name: str, positional: list[Any], named: dict[str, Any]
) -> tuple[str, BaseTask]:
    """Return the full name of a class, and a task with these arguments, which are validated."""
    from nonet.operate.submitting import bound
    from nonet.tasks.secrecy import secret_texts  # it imports pydantic

    task_class = nonet.registry.get(name)
    # Mask secret arguments in everything that this process prints from here on.
    given = dict(zip(task_class.arguments.names, positional, strict=False)) | named
    keep_secret(secret_texts(given, task_class.cls))
    return task_class.name, bound(task_class, positional, named)


def _json(task: str, option: str, text: str, kind: type) -> Any:
    wanted = "an array, as in '[1, \"a\"]'" if kind is list else "an object, as in '{\"n\": 1}'"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"{option} is not JSON ({error}); it must be {wanted}"
        raise InvalidArgumentsError(task, [problem]) from None
    if not isinstance(value, kind):
        raise InvalidArgumentsError(task, [f"{option} must be {wanted}"])
    return value


def start_of(
    task: str, at: str | None, delay: str | float | None, prefix: str = ""
) -> tuple[datetime | None, timedelta | None]:
    """Parse the earliest start of a task, as an instant or as a delay.

    Args:
        prefix: of the names in errors: ``--`` for options.

    Raises:
        InvalidArgumentsError: a text is not an instant or a duration.
    """
    if at is not None and at.startswith("+"):
        problem = f"{prefix}at {at!r} is not ISO 8601: for a time from now use {prefix}delay"
        raise InvalidArgumentsError(task, [problem])
    try:
        instant = None if at is None else datetime.fromisoformat(at)
    except ValueError as error:
        problem = f"{prefix}at {at!r} is not ISO 8601: {error}"
        raise InvalidArgumentsError(task, [problem]) from None
    try:
        span = None if delay is None else duration(str(delay), default_unit="s")
    except typer.BadParameter as error:
        raise InvalidArgumentsError(task, [f"{prefix}delay: {error}"]) from None
    if instant is not None and instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return instant, span


def labels_of(pairs: list[str] | None) -> dict[str, str]:
    """Parse ``--label NAME=VALUE`` options.

    Raises:
        ConfigurationError: a pair has no name or no equals sign.
    """
    labels = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise ConfigurationError(f"--label {pair!r} must be NAME=VALUE")
        labels[name] = value
    return labels
