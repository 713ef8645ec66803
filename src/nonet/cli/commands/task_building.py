"""Make a task of the arguments on a command line, or in a line of stdin."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nonet.base.errors import InvalidArgumentsError
from nonet.client.submitting import bound
from nonet.tasks.secrecy import secret_texts
from nonet.telemetry.masking import keep_secret

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.tasks.task import BaseTask


def build_task(nonet: Nonet, name: str, args: str, kwargs: str) -> tuple[str, BaseTask]:
    """Return the full name of a class, and a task made of JSON, without calling a server."""
    return bind_task(nonet, *given_arguments(nonet, name, args, kwargs))


def given_arguments(
    nonet: Nonet, name: str, args: str, kwargs: str
) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the full name of a class, and its arguments by position and by name."""
    full_name = nonet.registry.get(name).name
    positional = read_json(full_name, "--args", args, list)
    return full_name, positional, read_json(full_name, "--kwargs", kwargs, dict)


def bind_task(
    nonet: Nonet, name: str, positional: list[Any], named: dict[str, Any]
) -> tuple[str, BaseTask]:
    """Return the full name of a class, and a task with these arguments, which are validated."""
    task_class = nonet.registry.get(name)
    # Mask secret arguments in everything that this process prints from here on.
    given = dict(zip(task_class.arguments.names, positional, strict=False)) | named
    keep_secret(secret_texts(given, task_class.cls))
    return task_class.name, bound(task_class, positional, named)


def read_json(task: str, option: str, text: str, kind: type) -> Any:
    """Read an option with JSON.

    Args:
        task: what an error names.
        kind: ``list`` or ``dict``.
    """
    wanted = "an array, as in '[1, \"a\"]'" if kind is list else "an object, as in '{\"n\": 1}'"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"{option} is not JSON ({error}); it must be {wanted}"
        raise InvalidArgumentsError(task, [problem]) from None
    if not isinstance(value, kind):
        raise InvalidArgumentsError(task, [f"{option} must be {wanted}"])
    return value
