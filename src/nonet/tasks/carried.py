"""`carry_context`: context variables, such as a request id, that travel with submitted tasks.

The values travel as labels. So they reach retries, child processes, dead letters and older workers
like any label, and one can search for them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar, overload

from msgspec import Struct

from nonet.base.errors import RegistrationError

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_MOST_NAMES = 16
_LONGEST_NAME = 64
_MOST_BYTES = 256
# Labels with a meaning for Nonet, and fields of log lines.
_RESERVED = {"priority", "size", "entry", "occurrence", "schedule"}
_RESERVED |= {"timestamp", "level", "logger", "event", "exception", "stack", "namespace", "worker"}
_RESERVED |= {"task_id", "task", "attempt", "trace_id", "span_id"}


class _Carried(Struct, frozen=True):
    """A declared variable.

    Attributes:
        decode: makes its value from text.
        place: where it was declared, for messages.
    """

    variable: ContextVar[Any]
    decode: Callable[[str], Any]
    place: str

    @property
    def text(self) -> str | None:
        """Its current value as text; None if it has none, even if the variable has a default."""
        value = self.variable.get(None)
        return None if value is None else str(value)


_carried: dict[str, _Carried] = {}


@overload
def carry_context(
    variable: ContextVar[str] | ContextVar[str | None], name: str | None = None
) -> None: ...


@overload
def carry_context(
    variable: ContextVar[_T], name: str | None = None, *, decode: Callable[[str], _T]
) -> None: ...


def carry_context(
    variable: ContextVar[Any], name: str | None = None, *, decode: Callable[[str], Any] = str
) -> None:
    """Let the value of a context variable travel with each task that is submitted.

    A submission stores the current value as a label. Each attempt of the task sets the variable
    again before the code of the task, its dependencies and middleware run, in child processes,
    too. So what the task submits has the same value. A label that the caller passes explicitly
    takes precedence. Log lines of daemons show the value.

    Call it at the top level of a module with tasks: programs that submit, daemons and child
    processes load that module.

    Args:
        variable: the variable. A value of None does not travel, nor does its default.
        name: name of the label and of the field in log lines, an identifier of at most 64
            characters; None: the name of the variable.
        decode: makes a value from its text, which is ``str(value)``.

    Raises:
        RegistrationError: the name is no identifier, is reserved, or is declared elsewhere; or more
            than 16 variables are declared.

    A submission raises `InvalidArgumentsError` if a value has more than 256 bytes of UTF-8.

    Example:
        request_id: ContextVar[str] = ContextVar("request_id")
        carry_context(request_id)

        request_id.set("4f1c")
        handle = await Add(1, 2).schedule()  # in its attempts request_id.get() is "4f1c"
    """
    name = variable.name if name is None else name
    frame = sys._getframe(1)
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if not name.isidentifier() or len(name) > _LONGEST_NAME or name in _RESERVED:
        why = "is reserved" if name in _RESERVED else "must be an identifier of 1 to 64 characters"
        raise RegistrationError(f"carry_context: {name!r:.100} {why}: pass another name=")
    known = _carried.get(name)
    if known is not None and known.place != place:  # a reloaded module declares it again
        raise RegistrationError(
            f"carry_context: {name!r} is declared twice: at {known.place} and at {place}"
        )
    if known is None and len(_carried) == _MOST_NAMES:
        raise RegistrationError(
            f"carry_context: {name!r} would be one more than {_MOST_NAMES} variables: declare fewer"
        )
    _carried[name] = _Carried(variable, decode, place)


def carried_names() -> frozenset[str]:
    """The names of declared variables that only the context of a program sets.

    ``vo`` is not one of them, because every submitter may choose the tenant.
    """
    return frozenset(_carried) - {"vo"}


def carried_texts() -> dict[str, str]:
    """The current values of all declared variables that have one, as text, by name."""
    if not _carried:
        return {}
    texts = ((name, item.text) for name, item in _carried.items())
    return {name: text for name, text in texts if text is not None}


def carried_problem(texts: Mapping[str, str]) -> str:
    """Why these values cannot travel; empty if they can.

    >>> carried_problem({"request_id": "4f1c"})
    ''
    """
    for name, text in texts.items():
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > _MOST_BYTES:
            return (
                f"context {name} has {size} bytes, the limit is {_MOST_BYTES}: let a shorter value "
                "travel, such as an id"
            )
    return ""


def enter_carried(labels: Mapping[str, Any]) -> None:
    """Set the declared variables from the labels of a task, in the current context.

    A value that cannot be decoded is logged and left out.
    """
    for name, item in _carried.items():
        value = labels.get(name)
        if value is None:
            continue
        try:
            item.variable.set(item.decode(str(value)))
        except Exception as error:  # the author's function can raise anything
            logger.warning(
                "context not set: name=%s error=%s: %s", name, type(error).__name__, error
            )
