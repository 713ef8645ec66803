"""Check that the tasks of periodic entries can be constructed, argument by argument."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import ErrorDetails

from nonet.base.errors import InvalidArgumentsError, unknown_argument
from nonet.config.entries import all_vos, find_class, is_vo_aware, periodic_classes
from nonet.config.models import Config
from nonet.config.reading import Problem
from nonet.config.wording import dotted, value_reason
from nonet.rules.limits import Location
from nonet.rules.outcomes import summarize
from nonet.tasks.registry import Registry, TaskClass
from nonet.tasks.task import declared_locks

_VO = "vo"
_SOME_VO = "vo"  # stands for any VO


@dataclass(frozen=True, slots=True)
class _Written:
    """The arguments of one entry of the configuration.

    Attributes:
        at: where they are written.
        vos: the VOs for which its task is constructed; (None,) for the installation; empty if there
            is no VO yet.
    """

    at: Location
    task_class: TaskClass
    args: Mapping[str, Any]
    vos: tuple[str | None, ...]


def argument_problems(config: Config, registry: Registry, vos: Iterable[str]) -> list[Problem]:
    """Return the problems in the arguments of all configured entries, at most one per place.

    Args:
        vos: further virtual organisations, from entry points.
    """
    found: dict[tuple[Location, str], None] = {}
    for written in _all_written(config, registry, all_vos(config, vos)):
        for place, reason in _refusals(written):
            found.setdefault(((*written.at, *place), reason))
    return [(config.where(at), at, reason) for at, reason in found]


def made(task_class: TaskClass, args: Mapping[str, Any]) -> Any:
    """Construct the task with these arguments, and check its serialization and its locks.

    Raises:
        BaseException: whatever the author's constructor raises.
    """
    task = task_class.arguments.build(args)
    task_class.arguments.pack(task)
    declared_locks(task)
    return task


def refusal(task_class: TaskClass, args: Mapping[str, Any]) -> str:
    """Say in one line why these arguments are refused; empty if the task can be constructed."""
    reasons = [
        f"{dotted(place)}: {why}" if place else why for place, why in _problems_of(task_class, args)
    ]
    return "; ".join(reasons)


def _all_written(config: Config, registry: Registry, vos: Iterable[str]) -> Iterator[_Written]:
    classes, vos = periodic_classes(registry), tuple(vos)
    replacing = {
        vo: {find_class(name, classes) for name in section.periodic_tasks}
        for vo, section in config.vo_overrides.items()
    }
    for section_at, of_vo, section in config.sections:
        for written, entries in section.periodic_tasks.items():
            if (name := find_class(written, classes)) is None:
                continue
            its = (of_vo,) if of_vo else tuple(v for v in vos if name not in replacing.get(v, ()))
            for index, entry in enumerate(entries):
                at = (*section_at, "periodic-tasks", written, index, "args")
                yield _written(at, registry.get(name), entry.args, its)


def _written(
    at: Location, task_class: TaskClass, args: Mapping[str, Any], vos: tuple[str, ...]
) -> _Written:
    if not is_vo_aware(task_class.cls):
        return _Written(at, task_class, args, (None,))
    # A configured ``vo`` is reported as a problem of its own.
    return _Written(at, task_class, {k: v for k, v in args.items() if k != _VO}, vos)


def _refusals(written: _Written) -> Iterator[tuple[Location, str]]:
    for vo in written.vos:
        args = written.args if vo is None else {**written.args, _VO: vo}
        yield from _problems_of(written.task_class, args)
    if not written.vos:
        yield from _problems_without_vo(written)


def _problems_without_vo(written: _Written) -> Iterator[tuple[Location, str]]:
    """Check the arguments that do not depend on the VO, without calling the constructor."""
    try:
        found = _one_by_one(written.task_class, {**written.args, _VO: _SOME_VO})
    except BaseException:  # the author's validators may raise anything
        return
    yield from ((place, reason) for name, place, reason in found if name not in ("", _VO))


def _problems_of(task_class: TaskClass, args: Mapping[str, Any]) -> list[tuple[Location, str]]:
    try:
        if found := _one_by_one(task_class, args):
            return [(place, reason) for _, place, reason in found]
        made(task_class, args)
    except InvalidArgumentsError as error:
        return [((), "; ".join(error.problems))]
    except BaseException as error:  # the author's constructor may raise anything
        why = summarize(error)
        return [((), f"refused by {task_class.cls.__name__}: {why.text or why.type}")]
    return []


def _one_by_one(task_class: TaskClass, args: Mapping[str, Any]) -> list[tuple[str, Location, str]]:
    """Return name, place and reason of each argument that does not fit."""
    found: dict[tuple[str, Location], list[str]] = {}
    for details in task_class.arguments.problems(args):
        place, reason = _place_and_reason(task_class, args, details)
        name = str(details["loc"][0]) if details["loc"] else ""
        reasons = found.setdefault((name, place), [])
        if reason not in reasons:  # each alternative of a union reports one
            reasons.append(reason)
    return [(name, place, "; ".join(reasons)) for (name, place), reasons in found.items()]


def _place_and_reason(
    task_class: TaskClass, args: Mapping[str, Any], details: ErrorDetails
) -> tuple[Location, str]:
    path = details["loc"]
    if details["type"] == "missing":
        return _known_part(args, path[:-1]), f"{path[-1]}: is missing"
    if details["type"] == "extra_forbidden" and len(path) == 1:
        by_scheduler = {_VO} if is_vo_aware(task_class.cls) else set()
        known = [name for name in task_class.arguments.names if name not in by_scheduler]
        return path, unknown_argument(str(path[0]), known, task_class.cls.__name__)
    return _known_part(args, path), value_reason(details)


def _known_part(args: Any, path: Location) -> Location:
    """Return the part of a path that the configuration has; pydantic appends names of types."""
    node = args
    for length, part in enumerate(path):
        has_it = isinstance(node, Mapping) and part in node
        if not has_it and not (isinstance(node, list) and part in range(len(node))):
            return path[:length]
        node = node[part]
    return path
