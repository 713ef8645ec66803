"""From task names to classes: entry points, modules, duplicates and what a class must offer."""

from __future__ import annotations

import dis
import importlib
import importlib.metadata
import inspect
import logging
import math
import re
import traceback
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from nonet.base.amounts import format_bytes, parse_bytes
from nonet.base.errors import NonetError, RegistrationError, UnknownTaskError
from nonet.base.streams import Priority, Size
from nonet.base.versions import (
    Distribution,
    distribution_named,
    distribution_of,
    is_older,
    is_version,
)
from nonet.messages.terms import start_by_problem
from nonet.tasks.arguments import Arguments
from nonet.tasks.locks import LockedObjectType
from nonet.tasks.oversights import attribute_oversights, attributes_of, lacks_execute
from nonet.tasks.task import (
    LEAST_MEMORY_LIMIT,
    BaseTask,
    Isolation,
    PeriodicBaseTask,
    PeriodicVoAwareBaseTask,
)
from nonet.tasks.unique import Unique

logger = logging.getLogger(__name__)

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_ATTR")
# What the import of an author's module may raise: anything, an exit included.
_FOREIGN = (Exception, SystemExit)
_OF_MAIN = (
    "no worker can import the script that runs here: move it into a module of its own, and name "
    "that in NONET_TASKS"
)
_ABSTRACT = (BaseTask, PeriodicBaseTask, PeriodicVoAwareBaseTask)


@dataclass(frozen=True)
class TaskClass:
    """One registered class.

    Attributes:
        name: full name, ``category:Class``.
        cls: the class.
        package: the distribution or module that brought it.
        arguments: its constructor.
    """

    name: str
    cls: type[BaseTask]
    package: str
    arguments: Arguments

    @property
    def place(self) -> str:
        """Where the class is defined."""
        return f"{self.cls.__module__}.{self.cls.__qualname__}"

    @cached_property
    def distribution(self) -> Distribution | None:
        """What was installed that brought the class; None of a module that came with none."""
        return distribution_named(self.package) or distribution_of(self.cls.__module__)

    def too_old_for(self, min_version: str) -> str:
        """Why this code must not run a task that needs a version of it; empty: it may.

        Args:
            min_version: of the class where the task was submitted; empty: any.
        """
        if not min_version:
            return ""
        here = self.distribution
        if here and not is_older(here.version, min_version):
            return ""
        if here is None:
            return f"needs version {min_version}, here it has none"
        return f"needs {here.name} {min_version}, here is {here.version}"

    @cached_property
    def _result(self) -> TypeAdapter[Any] | None:
        try:
            hint = typing.get_type_hints(self.cls.execute).get("return", Any)
            return TypeAdapter(hint)
        except (NameError, TypeError, PydanticUserError):
            return None

    def typed_result(self, value: Any) -> Any:
        """A stored result as the type that ``execute`` is annotated to return, if it fits."""
        if self._result is None:
            return value
        try:
            return self._result.validate_python(value, by_alias=True, by_name=True)
        except ValidationError:
            return value


class Registry:
    """The task classes of one process.

    Args:
        extensions: distributions in order of rank; the first wins where two define one name.
    """

    def __init__(self, extensions: Iterable[str] = ()) -> None:
        self._classes: dict[str, TaskClass] = {}
        self._names: dict[type, str] = {}
        self._skipped: dict[type[BaseTask], None] = {}
        self._rank = {_normal(name): rank for rank, name in enumerate(extensions)}

    def __iter__(self) -> Iterator[TaskClass]:
        return iter(sorted(self._classes.values(), key=lambda item: item.name))

    def add(self, cls: type[BaseTask], category: str, package: str = "") -> TaskClass:
        """Register a class as ``category:Class``.

        Raises:
            RegistrationError: it cannot be executed or serialised, uses an unregistered lock
                type, or its name is taken by another class that no rank decides about.
        """
        name = f"{category}:{cls.__name__}"
        known = self._classes.get(name)
        if known is not None and known.cls is cls:
            return known
        _check(cls)
        added = TaskClass(name, cls, package or cls.__module__, Arguments(cls, name))
        _check_fields(added)
        _check_min_version(added)
        self._names[cls] = name
        if known is None or self._prefers(added, known):
            self._classes[name] = added
        return self._classes[name]

    def add_module(self, module_name: str) -> None:
        """Register every task class that a module defines; its last part is the category.

        Raises:
            RegistrationError: the module cannot be imported or defines no task.
        """
        module = _import(module_name)
        category = module_name.rpartition(".")[2]
        defined = [
            item
            for item in vars(module).values()
            if inspect.isclass(item)
            and issubclass(item, BaseTask)
            and item.__module__ == module.__name__
        ]
        found = [c for c in defined if hasattr(c, "execute") and not inspect.isabstract(c)]
        self._skipped |= dict.fromkeys(c for c in defined if not hasattr(c, "execute"))
        if not found:
            hints = "".join(f": {told}" for cls in defined[:1] if (told := lacks_execute(cls)))
            raise RegistrationError(
                f"tasks module {module_name!r} defines no task (a BaseTask with execute()){hints}"
            )
        for cls in found:
            self.add(cls, category)

    def add_entry_points(self, prefixes: Iterable[str]) -> None:
        """Register what installed packages offer in groups ``<prefix>.tasks.<category>``.

        Groups ``<prefix>.lock_object_types`` are imported first: they register lock types.
        """
        prefixes = list(dict.fromkeys(prefixes))
        load_lock_types(prefixes)
        found = importlib.metadata.entry_points()
        for prefix in prefixes:
            for group in sorted(found.groups):
                category = group.removeprefix(f"{prefix}.tasks.")
                if category == group:
                    continue
                for entry in found.select(group=group):
                    cls = _load(entry)
                    if not (inspect.isclass(cls) and issubclass(cls, BaseTask)):
                        raise RegistrationError(
                            f"entry point {entry.value!r} of {entry.group} is no task class: name "
                            "one that has BaseTask as a base"
                        )
                    self.add(cls, category, entry.dist.name if entry.dist else "")

    def oversights(self) -> list[str]:
        """What these classes say and hardly mean, one sentence each; it stops nobody."""
        told = [text for item in self for text in attribute_oversights(item.cls)]
        return list(dict.fromkeys([*told, *filter(None, map(lacks_execute, self._skipped))]))

    def versions(self) -> dict[str, str]:
        """The names that this process knows, and which version each class is of; or empty."""
        return {item.name: item.distribution.version if item.distribution else "" for item in self}

    def get(self, name: str) -> TaskClass:
        """The class of a full name, or of a bare class name that is unique.

        Raises:
            UnknownTaskError: there is none, and the nearest names are given; or there are several,
                and all are given.
        """
        if name in self._classes:
            return self._classes[name]
        bare = [full for full in self._classes if full.rpartition(":")[2] == name]
        if len(bare) == 1:
            return self._classes[bare[0]]
        skipped = [cls for cls in self._skipped if cls.__name__ == name.rpartition(":")[2]]
        reason = "".join(map(lacks_execute, skipped[:1]))
        raise UnknownTaskError(name, self._classes, matching=bare, reason=reason)

    def find(self, name: str) -> TaskClass | None:
        """`get` by full name, or None."""
        return self._classes.get(name)

    def of(self, task: BaseTask) -> TaskClass:
        """The registration of a task's class.

        Raises:
            RegistrationError: the class is not registered in this process.
        """
        name = self._names.get(type(task))
        return self.of_class(type(task)) if name is None else self._classes[name]

    def of_class(self, cls: type[BaseTask]) -> TaskClass:
        """The registration of a class.

        Raises:
            RegistrationError: it is not registered in this process.
        """
        name = self._names.get(cls)
        if name is None:
            problem = f"task class {cls.__module__}.{cls.__qualname__} is not registered"
            if cls.__module__ == "__main__":
                raise RegistrationError(f"{problem}: {_OF_MAIN}")
            raise RegistrationError(
                f"{problem}: add its module to NONET_TASKS ({cls.__module__}) or give it an entry "
                "point"
            )
        return self._classes[name]

    def _prefers(self, added: TaskClass, known: TaskClass) -> bool:
        ranks = [self._rank.get(_normal(item.package)) for item in (added, known)]
        if ranks == [None, None] or ranks[0] == ranks[1]:
            problem = f"task {added.name!r} is defined twice: {_where(known)} and {_where(added)}"
            if _normal(known.package) == _normal(added.package):
                raise RegistrationError(f"{problem}; rename one")
            raise RegistrationError(
                f"{problem}; rename one, or rank the packages with NONET_EXTENSIONS=first,second"
            )
        worst = len(self._rank)
        first, second = (worst if rank is None else rank for rank in ranks)
        return first < second


def load_lock_types(prefixes: Iterable[str]) -> None:
    """Import what registers lock types: groups ``<prefix>.lock_object_types``.

    Raises:
        RegistrationError: one cannot be imported.
    """
    for prefix in dict.fromkeys(prefixes):
        for entry in importlib.metadata.entry_points(group=f"{prefix}.lock_object_types"):
            _load(entry)


def vos_from_entry_points(prefixes: Iterable[str]) -> list[str]:
    """VO names from groups ``<prefix>.vos``: each entry is a list of names or returns one."""
    names: list[str] = []
    for prefix in dict.fromkeys(prefixes):
        for entry in importlib.metadata.entry_points(group=f"{prefix}.vos"):
            loaded = _load(entry)
            try:
                names.extend(loaded() if callable(loaded) else loaded)
            except _FOREIGN as error:
                raise RegistrationError(
                    f"entry point {entry.group}: {entry.value!r} gives no names: {_reason(error)}"
                ) from error
    return list(dict.fromkeys(map(str, names)))


def _load(entry: importlib.metadata.EntryPoint) -> Any:
    try:
        return entry.load()
    except _FOREIGN as error:
        raise RegistrationError(
            f"entry point {entry.group}: {entry.value!r} cannot be loaded: "
            f"{_reason(error)}{_line_in(entry.module, error)}"
        ) from error


def _import(module_name: str) -> ModuleType:
    problem = f"tasks module {module_name!r}"
    if not all(module_name.split(".")):
        raise RegistrationError(
            f"{problem}: this is no full name of a module, as in package.module"
        )
    if module_name == "__main__":
        raise RegistrationError(f"{problem}: {_OF_MAIN}")
    try:
        return importlib.import_module(module_name)
    except _FOREIGN as error:
        if isinstance(error, ModuleNotFoundError) and module_name.endswith(".py"):
            name = module_name.removesuffix(".py").replace("/", ".").strip(".")
            raise RegistrationError(
                f"{problem}: a module goes by its name, not by its file: write {name}"
            ) from error
        raise RegistrationError(
            f"{problem} cannot be imported: {_reason(error)}{_line_in(module_name, error)}"
        ) from error


def _reason(error: BaseException) -> str:
    """What went wrong in code that is not ours; an error of ours says it all itself."""
    return str(error) if isinstance(error, NonetError) else f"{type(error).__name__}: {error}"


def _line_in(module_name: str, error: BaseException) -> str:
    """The line of a module, or of its package, that an error came through last; or nothing."""
    top = module_name.partition(".")[0]
    lines = [
        f" ({Path(frame.f_code.co_filename).name}:{number})"
        for frame, number in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == top
    ]
    # A syntax error says itself where it is.
    return lines[-1] if lines and not isinstance(error, SyntaxError) else ""


def _where(item: TaskClass) -> str:
    """Where a class is defined, with file and line if its own ``execute`` tells them."""
    code = getattr(inspect.unwrap(vars(item.cls).get("execute", item.cls)), "__code__", None)
    line = f", {code.co_filename}:{code.co_firstlineno}" if code else ""
    return f"{item.place} ({item.package}{line})"


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _check(cls: type[BaseTask]) -> None:
    place = f"{cls.__module__}.{cls.__qualname__}"
    if cls in _ABSTRACT or not callable(getattr(cls, "execute", None)):
        raise RegistrationError(f"{place} has no execute() method: define one")
    execute = cls.execute
    if inspect.isgeneratorfunction(execute) or inspect.isasyncgenfunction(execute):
        raise RegistrationError(f"{place}: execute() is a generator; it must return its result")
    _check_attributes(cls, place)
    declared = inspect.getattr_static(cls, "execution_locks")
    _check_lock_types(place, declared.fget if isinstance(declared, property) else declared)


def _check_attributes(cls: type[BaseTask], place: str) -> None:
    """Refuse at once what would else show when the first task is queued or has failed."""
    schedule = getattr(cls, "_schedule", None) or getattr(cls, "default_schedule", None)
    wanted = {
        "priority": (cls.priority, cls.priority in list(Priority), _one_of(Priority)),
        "size": (cls.size, cls.size in list(Size), _one_of(Size)),
        "retry_policy": (
            cls.retry_policy,
            not inspect.isclass(cls.retry_policy) and hasattr(cls.retry_policy, "schedule_retry"),
            "an instance of a RetryPolicyBase",
        ),
        "schedule": (
            schedule,
            schedule is None
            or not issubclass(cls, PeriodicBaseTask)
            or (not inspect.isclass(schedule) and hasattr(schedule, "next_occurrence")),
            "an instance of a TaskScheduleBase",
        ),
        **{
            name: (limit := getattr(cls, name), _is_duration(limit), "seconds above 0, or None")
            for name in ("soft_timeout", "hard_timeout", "cpu_limit")
        },
        "unique": (
            cls.unique,
            cls.unique is None or isinstance(cls.unique, Unique),
            "a nonet.Unique, as Unique.until_done(), or None",
        ),
        "start_by": (
            cls.start_by,
            cls.start_by is None
            or (not isinstance(cls.start_by, datetime) and not start_by_problem(cls.start_by)),
            "seconds or a timedelta above 0, at most ten years, or None",
        ),
        "isolation": (
            cls.isolation,
            cls.isolation is None or cls.isolation in list(Isolation),
            f"{_one_of(Isolation)}, or None",
        ),
    }
    for name, (value, fits, kind) in wanted.items():
        if not fits:
            raise RegistrationError(f"{place}: {name} is {value!r:.100}, but must be {kind}")
    soft, hard = cls.soft_timeout, cls.hard_timeout
    if soft is not None and hard is not None and hard < soft:
        raise RegistrationError(
            f"{place}: hard_timeout is {hard:g} s, but must not be shorter than soft_timeout, "
            f"{soft:g} s"
        )
    _check_limits(cls, place)
    _check_unique(cls, place)


def _one_of(names: type[StrEnum]) -> str:
    """An enumeration with its values: what is misspelt is seen beside them."""
    values = ", ".join(repr(str(value)) for value in names)
    return f"a nonet.{names.__name__} ({values})"


def _check_unique(cls: type[BaseTask], place: str) -> None:
    problem = ""
    if cls.unique is not None and cls.durable:
        problem = "a durable task is kept in SQL before Redis can tell who has its key; drop one"
    elif cls.unique is not None and issubclass(cls, PeriodicBaseTask):
        problem = "of a periodic class _overlap says what its occurrences do to each other"
    if problem:
        raise RegistrationError(f"{place}: unique: {problem}")


def _check_limits(cls: type[BaseTask], place: str) -> None:
    if cls.memory_limit is not None:
        try:
            allowed = parse_bytes(cls.memory_limit)
        except ValueError as error:
            raise RegistrationError(f"{place}: memory_limit: {error}") from None
        if allowed < LEAST_MEMORY_LIMIT:
            raise RegistrationError(
                f"{place}: memory_limit is {cls.memory_limit!r}, but a process alone needs "
                f"{format_bytes(LEAST_MEMORY_LIMIT)}"
            )
    limited = cls.memory_limit is not None or cls.cpu_limit is not None
    if cls.isolation == Isolation.LOOP and limited:
        name = "cpu_limit" if cls.memory_limit is None else "memory_limit"
        raise RegistrationError(
            f"{place}: {name} cannot hold with isolation LOOP, where many tasks share a process: "
            "use CHILD or FRESH"
        )


def _check_fields(added: TaskClass) -> None:
    """Refuse an argument in the place of a class attribute, which would be read all the same."""
    if not added.arguments.are_fields:
        return
    for name in added.arguments.names:
        if name in attributes_of(added.cls):
            raise RegistrationError(
                f"{added.place}: {name} is a field, which is an argument of each task: write "
                f"`{name} = …`, or annotate it as ClassVar"
            )


def _check_min_version(added: TaskClass) -> None:
    """Refuse what would be handed on for ever, or would mean nothing."""
    place, least = added.place, added.cls.min_version
    if least is None:
        return
    if not isinstance(least, str) or not is_version(least):
        raise RegistrationError(
            f"{place}: min_version is {least!r:.100}, but must be a version as in '1.4' or "
            "'2.0.dev0' (PEP 440), or None"
        )
    if added.distribution is None:
        raise RegistrationError(
            f"{place}: min_version is {least!r}, but module {added.cls.__module__} came with no "
            "installed distribution, so that workers have no versions to compare: install it as one"
        )
    if problem := added.too_old_for(least):
        raise RegistrationError(f"{place}: min_version: this class itself {problem}")


def _is_duration(value: object) -> bool:
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < math.inf


def locked_types(cls: type[BaseTask]) -> set[str]:
    """Names of the object types that the locks of a class, and of its bases, mention by name.

    Found in the byte code, because the locks themselves need an instance.
    """
    found: set[str] = set()
    for base in cls.__mro__:
        declared = vars(base).get("execution_locks")
        function = declared.fget if isinstance(declared, property) else declared
        found |= {name.lower() for name in _lock_types_named(getattr(function, "__code__", None))}
    return found & set(LockedObjectType.registered())


def _check_lock_types(place: str, function: Any) -> None:
    """Refuse ``LockedObjectType.X`` in the locks of a class when X is not registered.

    Found in the byte code, because the locks themselves need an instance.
    """
    known = LockedObjectType.registered()
    for name in _lock_types_named(getattr(function, "__code__", None)):
        if name.isupper() and name.lower() not in known:
            raise RegistrationError(
                f"{place} locks LockedObjectType.{name}, which is not registered: call "
                f"register_locked_object_type({name.lower()!r}) before; known are "
                + ", ".join(f"{name.upper()} ({where})" for name, where in known.items())
            )


def _lock_types_named(code: Any) -> Iterator[str]:
    """Every ``X`` of ``LockedObjectType.X`` in a code object and its comprehensions."""
    if not isinstance(code, CodeType):
        return
    previous = None
    for step in dis.get_instructions(code):
        if previous == "LockedObjectType" and step.opname == "LOAD_ATTR":
            yield str(step.argval)
        if not step.opname.startswith(("CACHE", "EXTENDED_ARG")):
            previous = step.argval if step.opname in _LOADS else None
    for part in code.co_consts:
        yield from _lock_types_named(part)
