"""A task on the command line: its class, its arguments as JSON, and its labels."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from nonet.base.errors import ConfigurationError, InvalidArgumentsError
from nonet.cli.completion import classes
from nonet.cli.durations import duration

if TYPE_CHECKING:
    pass

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
Changes = Annotated[
    str,
    typer.Option(
        metavar="JSON",
        help="Arguments that replace those it had, as a JSON object. Give secrets again: a task "
        "with changes does not keep them.",
        show_default="none",
    ),
]


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
