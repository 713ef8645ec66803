"""What a viewer sees of tasks, dead letters and events: types of errors, but no texts. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from msgspec import Struct, structs

from nonet.rules.permissions import Principal
from nonet.rules.workflows import names_steps

HIDDEN = "(hidden: it needs the role operator)"

_View = TypeVar("_View")
_TYPE = re.compile(r"[^\W\d][\w.]*(?=:|$)")
# What the error of an ended task ends with if its message is in the quarantine.
_QUARANTINED = " (quarantined)"
# These ends say who ended the task and why, instead of an error that the task raised.
_TOLD = ("cancelled", "expired")
# Kinds of events whose text quotes an error; and those that quote a search, for labels or errors.
_QUOTING = ("config-refused", "overflow-hook", "startup-hook")
_SEARCHED = ("tasks-cancelled", "tasks-resubmitted")


def seen(view: _View, who: Principal) -> _View:
    """Return a view as `who` may see it."""
    return view if who.sees_texts else for_viewer(view)


def for_viewer(view: _View) -> _View:
    """Return a view without the texts in which tasks may put secrets.

    It reaches into dataclasses, structs, models, mappings and sequences, and goes by the names of
    their fields. Errors become their types; labels, tracebacks, logs and progress texts
    are left out.
    """
    found: Any = view
    if isinstance(found, Mapping):
        changes = _changes(found, found.get)
        return {**found, **changes} if changes else found  # type: ignore[return-value]
    if isinstance(found, list | tuple):
        items = [for_viewer(item) for item in found]
        if all(new is old for new, old in zip(items, found, strict=True)):
            return view
        kind: Any = type(found)
        seen: _View = kind(*items) if hasattr(found, "_fields") else kind(items)
        return seen
    names, change = _fields(found)
    changes = _changes(names, lambda name: getattr(found, name, None))
    return change(found, changes) if changes else view


def _fields(view: Any) -> tuple[Iterable[str], Callable[..., Any]]:
    """Return the names of the fields of a view, and what makes a changed copy of it."""
    if is_dataclass(view):
        return [item.name for item in fields(view)], lambda old, new: replace(old, **new)
    if isinstance(view, Struct):
        return view.__struct_fields__, lambda old, new: structs.replace(old, **new)
    models = getattr(type(view), "model_fields", {})
    return models, lambda old, new: old.model_copy(update=new)


def _changes(names: Iterable[Any], field: Callable[[Any], Any]) -> dict[Any, Any]:
    """Return the fields of a view that look different to a viewer."""
    seen = ((name, field(name)) for name in names)
    return {name: new for name, old in seen if (new := _seen(name, old, field)) is not old}


def _seen(name: Any, value: Any, field: Callable[[Any], Any]) -> Any:
    """Return the value of a field; `field` returns its siblings."""
    match name:
        case "labels" if value:
            return {}
        case "broken" | "failed_hooks" if value:
            return {key: error_type(error) for key, error in value.items()}
        case "problems" if value:
            return []
        case "progress" if value:
            return "" if isinstance(value, str) else replace(value, text="", data=None)
    if not (isinstance(value, str) and value):
        return for_viewer(value)
    match name:
        case "error" if field("state") in _TOLD:
            return value
        case "error" if field("error_type") is not None:
            return ""
        case "error" | "last_error" | "letters":
            return error_type(value)
        case "problem" if field("letters") is not None or field("problems") is not None:
            return error_type(value)  # of a pipeline, or of a change of many letters
        case "dying_error":
            task, comma, error = value.partition(", ")
            return task + comma + error_type(error)
        case "traceback" | "error_message" | "log":
            return ""
        case "config_problem":
            return HIDDEN
        case "note" if field("state") is not None:  # why the result of a task was not kept
            return HIDDEN
        case "reason" | "refused" if field("stream_entry") is not None:  # of the quarantine
            return HIDDEN
        case "blocker":
            return value if _is_plain(value) else HIDDEN
        case "text" if field("kind") in _QUOTING:
            return HIDDEN
        case "text" if field("kind") in _SEARCHED:
            number, colon, _ = value.partition(": ")
            return f"{number}: {HIDDEN}" if colon else number
    return value


def _is_plain(blocker: str) -> bool:
    """Return whether a task waits for a lock or for steps; else the text may quote an error."""
    return blocker.startswith(("lock:", "limiter:")) or names_steps(blocker)


def error_type(line: str) -> str:
    """Return the type of an error that is written as ``Type: text``, or `HIDDEN`.

    >>> error_type("ValueError: the password is hunter2"), error_type("")
    ('ValueError', '')
    >>> error_type("its process was killed")
    '(hidden: it needs the role operator)'
    """
    found = _TYPE.match(line)
    end = _QUARANTINED if line.endswith(_QUARANTINED) else ""
    return (found[0] if found else HIDDEN if line else "") + end
