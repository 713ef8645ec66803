"""What in a task class is allowed, and hardly meant: attributes that nobody reads, no execute()."""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel

from nonet.tasks.task import BaseTask, PeriodicBaseTask, PeriodicVoAwareBaseTask

_OURS = PeriodicVoAwareBaseTask.__mro__
_OF_TASKS = tuple(inspect.get_annotations(BaseTask))
_OF_PERIODIC = tuple(inspect.get_annotations(PeriodicBaseTask))
_ASKED = ("execution_locks", "unique_key")
# Names that other task systems have, or that seem natural.
_INSTEAD = {
    "max_retries": "retry_policy = ExponentialBackoff(max_retries=…)",
    "retries": "retry_policy = ExponentialBackoff(max_retries=…)",
    "queue": "priority = … and size = …",
    "timeout": "soft_timeout = … or hard_timeout = …",
    "time_limit": "hard_timeout = …",
    "locks": "a property execution_locks",
}
_CUTOFF = 0.9
_METHODS = (types.FunctionType, classmethod, staticmethod)


def attributes_of(cls: type[BaseTask]) -> tuple[str, ...]:
    """The class attributes that Nonet reads of a class."""
    return _OF_TASKS + (_OF_PERIODIC if issubclass(cls, PeriodicBaseTask) else ())


def attribute_oversights(cls: type[BaseTask]) -> Iterator[str]:
    """What the class and its bases say that nobody reads, one sentence each."""
    for base in cls.__mro__:
        if base in _OURS or not issubclass(base, BaseTask):
            continue
        for name in _said(base):
            if meant := _meant(name, vars(base).get(name), cls):
                place = f"{base.__module__}.{base.__qualname__}"
                yield f"{place}: {name} means nothing: {meant}"


def lacks_execute(cls: type[BaseTask]) -> str:
    """That a class with no ``execute`` is no task, and what may be meant; empty: it is a base."""
    if inspect.isabstract(cls) or cls.__subclasses__():
        return ""
    own = [name for name, value in vars(cls).items() if isinstance(value, _METHODS)]
    found = difflib.get_close_matches("execute", own, n=1, cutoff=0.7)
    hint = f": did you mean its {found[0]}()?" if found else ""
    return f"{cls.__module__}.{cls.__qualname__} has no execute() and is no task{hint}"


def _said(cls: type) -> Iterable[str]:
    """The names of attributes that a class gives, without the arguments of its constructor."""
    annotated = inspect.get_annotations(cls)
    if issubclass(cls, BaseModel):  # which wants an annotation of each
        return [name for name in annotated if name not in cls.model_fields]
    return [name for name in vars(cls) if name not in annotated and not name.startswith("__")]


def _meant(name: str, value: Any, cls: type[BaseTask]) -> str:
    """What to write instead of an attribute that nobody reads; empty: it is the author's own."""
    is_periodic = issubclass(cls, PeriodicBaseTask)
    if name == "schedule" and hasattr(value, "next_occurrence"):
        return "did you mean _schedule?" if is_periodic else _not_periodic()
    if name in _OF_PERIODIC and not is_periodic and name.endswith("schedule"):
        return _not_periodic()
    if hasattr(PeriodicVoAwareBaseTask, name) or name in _ASKED:
        return ""
    is_asked = isinstance(value, (*_METHODS, property))
    if not is_asked and name in _INSTEAD:
        return f"write {_INSTEAD[name]}; if it is your own, annotate it: `{name}: ClassVar = …`"
    known = _ASKED if is_asked else attributes_of(cls)
    found = difflib.get_close_matches(name, known, n=1, cutoff=_CUTOFF)
    return f"did you mean {found[0]}?" if found else ""


def _not_periodic() -> str:
    return "the class is not periodic: give it PeriodicBaseTask as its base"
