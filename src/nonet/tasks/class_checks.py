"""Check task classes at registration: refuse some mistakes, and warn about others."""

from __future__ import annotations

import difflib
import inspect
import math
import types
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any

from nonet.base.amounts import format_bytes, parse_bytes
from nonet.base.errors import RegistrationError
from nonet.base.messages.terms import start_by_problem
from nonet.base.plain import is_model
from nonet.base.streams import Priority, Size
from nonet.tasks.task import (
    LEAST_MEMORY_LIMIT,
    BaseTask,
    Isolation,
    PeriodicBaseTask,
    PeriodicVoAwareBaseTask,
    has_default_policy,
)
from nonet.tasks.unique import Unique

_OURS = PeriodicVoAwareBaseTask.__mro__
_TASK_ATTRIBUTES = tuple(inspect.get_annotations(BaseTask))
_PERIODIC_ATTRIBUTES = tuple(inspect.get_annotations(PeriodicBaseTask))
_METHODS_WE_CALL = ("execution_locks", "unique_key")
# The names of these attributes in other task systems.
OTHER_NAMES = {
    "max_retries": "retry_policy = ExponentialBackoff(max_retries=…)",
    "retries": "retry_policy = ExponentialBackoff(max_retries=…)",
    "queue": "priority = … and size = …",
    "timeout": "soft_timeout = … or hard_timeout = …",
    "time_limit": "hard_timeout = …",
    "soft_time_limit": "soft_timeout = …",
    "expires": "start_by = …",
    "autoretry_for": "retry_policy = ExponentialBackoff(retry_on=…)",
    "dont_autoretry_for": "retry_policy = ExponentialBackoff(give_up_on=…)",
    "throws": "expected = (…,)",
    "retry_backoff": "retry_policy = ExponentialBackoff(base_delay_seconds=…)",
    "default_retry_delay": "retry_policy = ExponentialBackoff(base_delay_seconds=…)",
    "retry_backoff_max": "retry_policy = ExponentialBackoff(cap=…)",
    "retry_jitter": "retry_policy = ExponentialBackoff(jitter=…)",
    "acks_late": "nothing: a task is acknowledged when it ends",
    "abstract": "@abstractmethod above its execute()",
    "rate_limit": "a RateLimiter among its locks",
    "bind": "context() where self.request was",
    "locks": "a property execution_locks",
}
_OTHER_METHODS = ("on_failure", "on_success", "on_retry", "before_start", "after_return")
_SIMILAR = 0.88
_NOT_PERIODIC = "the class is not periodic: give it PeriodicBaseTask as its base"


def check_class(cls: type[BaseTask]) -> None:
    """Refuse a class whose tasks could not run.

    Without this check the mistake would show only when the first task is submitted or fails.

    Raises:
        RegistrationError: ``execute`` is missing or a generator, or an attribute has a wrong value.
    """
    if cls in _OURS or not callable(getattr(cls, "execute", None)):
        raise RegistrationError(f"{location_of(cls)} has no execute() method: define one")
    if inspect.isgeneratorfunction(cls.execute) or inspect.isasyncgenfunction(cls.execute):
        raise RegistrationError(
            f"{location_of(cls)}: execute() is a generator: return the result, do not yield it"
        )
    _check_spelling(cls)
    for name, is_valid, expected in _RULES:
        if name == "retry_policy" and has_default_policy(cls):
            continue
        _check_value(cls, name, getattr(cls, name), is_valid, expected)
    if issubclass(cls, PeriodicBaseTask):
        schedule = cls._schedule or cls.default_schedule
        is_valid = _or_none(_instance_with("next_occurrence"))
        _check_value(cls, "schedule", schedule, is_valid, "an instance of a TaskScheduleBase")
    _check_timeouts(cls)
    _check_limits(cls)
    _check_unique(cls)


def check_fields(cls: type[BaseTask], fields: Iterable[str]) -> None:
    """Refuse a field named like a class attribute, because Nonet reads it from the class.

    Raises:
        RegistrationError: there is such a field.
    """
    for name in fields:
        if name in attributes_of(cls):
            raise RegistrationError(
                f"{location_of(cls)}: {name} is a field, which is an argument of each task: write "
                f"`{name} = …`, or annotate it as ClassVar"
            )


def attributes_of(cls: type[BaseTask]) -> tuple[str, ...]:
    """The class attributes that Nonet reads."""
    return _TASK_ATTRIBUTES + (_PERIODIC_ATTRIBUTES if issubclass(cls, PeriodicBaseTask) else ())


def unread_attributes(cls: type[BaseTask]) -> Iterator[str]:
    """One warning per attribute that Nonet ignores although its name suggests otherwise."""
    for base in cls.__mro__:
        if base in _OURS or not issubclass(base, BaseTask):
            continue
        for name in _declared(base):
            if advice := _advice(name, vars(base).get(name), cls):
                yield f"{location_of(base)}: {name} {advice}"


def lacks_execute(cls: type[BaseTask]) -> str:
    """A warning that a class without ``execute`` is not a task; empty for a base class."""
    if inspect.isabstract(cls) or cls.__subclasses__():
        return ""
    return f"{location_of(cls)} has no execute() and is not a task"


def location_of(cls: type) -> str:
    """The name of a class with its module."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _one_of(names: type[StrEnum]) -> str:
    values = ", ".join(repr(str(value)) for value in names)
    return f"a nonet.{names.__name__} ({values})"


def _member(names: type[StrEnum]) -> Callable[[Any], bool]:
    return lambda value: value in list(names)


def _or_none(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_valid(value)


def _instance_with(method: str) -> Callable[[Any], bool]:
    return lambda value: not inspect.isclass(value) and hasattr(value, method)


def _is_duration(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


def _is_number_of_lines(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10_000


def _is_errors(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(item, type) and issubclass(item, BaseException) for item in value
    )


def _is_span(value: Any) -> bool:
    return not isinstance(value, datetime) and not start_by_problem(value)


_DURATION = (_or_none(_is_duration), "seconds above 0, or None")
_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("priority", _member(Priority), _one_of(Priority)),
    ("size", _member(Size), _one_of(Size)),
    ("retry_policy", _instance_with("schedule_retry"), "an instance of a RetryPolicyBase"),
    ("expected", _is_errors, "a tuple of exception classes, as (Declined,)"),
    ("soft_timeout", *_DURATION),
    ("hard_timeout", *_DURATION),
    ("cpu_limit", *_DURATION),
    (
        "unique",
        _or_none(lambda value: isinstance(value, Unique)),
        "a nonet.Unique, as Unique.until_done(), or None",
    ),
    ("start_by", _or_none(_is_span), "seconds or a timedelta above 0, at most ten years, or None"),
    ("isolation", _or_none(_member(Isolation)), f"{_one_of(Isolation)}, or None"),
    ("log_lines", _is_number_of_lines, "a number of lines, 0 to 10000"),
    ("encrypted", lambda value: isinstance(value, bool), "True or False"),
)


def _check_value(
    cls: type, name: str, value: Any, is_valid: Callable[[Any], bool], expected: str
) -> None:
    if not is_valid(value):
        raise RegistrationError(
            f"{location_of(cls)}: {name} is {value!r:.100}, but must be {expected}"
        )


def _check_spelling(cls: type[BaseTask]) -> None:
    """Refuse an attribute that is a misspelt one of Nonet's: it would have no effect."""
    for base in cls.__mro__:
        if base in _OURS or not issubclass(base, BaseTask):
            continue
        for name in _declared(base):
            if right := _misspelt(name, vars(base).get(name), cls):
                own = "" if is_model(base) else f", or annotate it: `{name}: ClassVar = …`"
                raise RegistrationError(
                    f"{location_of(base)}: Nonet reads no attribute {name}: did you mean {right}? "
                    f"If it is your own, rename it{own}"
                )


def _misspelt(name: str, value: Any, cls: type[BaseTask]) -> str:
    """The attribute that an author probably meant; empty if it is the author's own.

    >>> _misspelt("sizze", None, BaseTask), _misspelt("sizes", None, BaseTask)
    ('size', '')
    """
    if hasattr(PeriodicVoAwareBaseTask, name) or name in (*_METHODS_WE_CALL, *OTHER_NAMES):
        return ""
    known = _METHODS_WE_CALL if _is_method(value) else attributes_of(cls)
    found = difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR)
    return found[0] if found and name != f"{found[0]}s" else ""


def _is_method(value: Any) -> bool:
    return isinstance(value, types.FunctionType | classmethod | staticmethod | property)


def _check_timeouts(cls: type[BaseTask]) -> None:
    soft, hard = cls.soft_timeout, cls.hard_timeout
    if soft is not None and hard is not None and hard < soft:
        raise RegistrationError(
            f"{location_of(cls)}: hard_timeout is {hard:g} s, but must not be shorter than "
            f"soft_timeout, {soft:g} s"
        )


def _check_limits(cls: type[BaseTask]) -> None:
    location = location_of(cls)
    if cls.memory_limit is not None:
        try:
            allowed = parse_bytes(cls.memory_limit)
        except ValueError as error:
            raise RegistrationError(f"{location}: memory_limit: {error}") from None
        if allowed < LEAST_MEMORY_LIMIT:
            raise RegistrationError(
                f"{location}: memory_limit is {cls.memory_limit!r}, but a process alone needs "
                f"{format_bytes(LEAST_MEMORY_LIMIT)}"
            )
    limited = cls.memory_limit is not None or cls.cpu_limit is not None
    if cls.isolation == Isolation.LOOP and limited:
        name = "cpu_limit" if cls.memory_limit is None else "memory_limit"
        raise RegistrationError(
            f"{location}: {name} cannot be enforced with isolation LOOP, where many tasks share a "
            "process: use CHILD or FRESH"
        )


def _check_unique(cls: type[BaseTask]) -> None:
    problem = ""
    if cls.unique is not None and cls.durable:
        problem = "a durable task is kept in SQL before Redis can check its key; drop one"
    elif cls.unique is not None and issubclass(cls, PeriodicBaseTask):
        problem = "set _overlap, which controls overlapping occurrences of a periodic class"
    if problem:
        raise RegistrationError(f"{location_of(cls)}: unique: {problem}")


def _declared(cls: Any) -> Iterable[str]:
    """The names of class attributes, without the arguments of the constructor."""
    annotated = inspect.get_annotations(cls)
    if is_model(cls):  # pydantic requires an annotation for each
        return [name for name in annotated if name not in cls.model_fields]
    return [name for name in vars(cls) if name not in annotated and not name.startswith("__")]


def _advice(name: str, value: Any, cls: type[BaseTask]) -> str:
    """Why Nonet ignores an attribute, and what to write; empty if it is the author's own."""
    is_periodic = issubclass(cls, PeriodicBaseTask)
    if hasattr(value, "next_occurrence") and name.endswith("schedule"):
        if not is_periodic:
            return f"has no effect: {_NOT_PERIODIC}"
        return "" if name in _PERIODIC_ATTRIBUTES else "has no effect: did you mean _schedule?"
    if hasattr(PeriodicVoAwareBaseTask, name) or name in _METHODS_WE_CALL:
        return ""
    if _is_method(value):
        is_called = name not in _OTHER_METHODS
        return "" if is_called else "is not called by Nonet: write a middleware (nonet.Middleware)"
    if name in OTHER_NAMES:
        own = f"if it is your own, annotate it: `{name}: ClassVar = …`"
        return f"has no effect: write {OTHER_NAMES[name]}; {own}"
    return ""
