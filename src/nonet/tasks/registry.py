"""Find task classes in entry points and modules, and register each under its full name."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Iterable, Iterator
from functools import cached_property
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from nonet.base import late_pydantic as pydantic
from nonet.base.errors import RegistrationError, UnknownTaskError
from nonet.base.versions import (
    Distribution,
    distribution_named,
    distribution_of,
    is_older,
    is_version,
)
from nonet.tasks.arguments import Arguments
from nonet.tasks.class_checks import (
    check_class,
    check_fields,
    lacks_execute,
    location_of,
    unread_attributes,
)
from nonet.tasks.entry_points import IMPORT_ERRORS, entries, import_problem, installed, load
from nonet.tasks.invoke import is_coroutine_function
from nonet.tasks.locks import LockedObjectType
from nonet.tasks.task import BaseTask

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_IN_MAIN = (
    "workers cannot import the script that you run: move the class into a module, and name that "
    "module in NONET_TASKS"
)


class TaskClass(Struct, frozen=True, dict=True):
    """A registered task class.

    Attributes:
        name: full name, ``category:Class``.
        cls: the class.
        package: the distribution or module that provides it.
        arguments: validates, packs and builds its arguments.
    """

    name: str
    cls: type[BaseTask]
    package: str
    arguments: Arguments

    @property
    def location(self) -> str:
        """Where the class is defined."""
        return location_of(self.cls)

    @cached_property
    def distribution(self) -> Distribution | None:
        """The installed distribution that provides the class, or None."""
        return distribution_named(self.package) or distribution_of(self.cls.__module__)

    @cached_property
    def is_plain(self) -> bool:
        """Whether ``execute`` is a plain function, which runs in a thread."""
        return not is_coroutine_function(self.cls.execute)

    @cached_property
    def takes_nothing(self) -> bool:
        """Whether ``execute`` has no parameter, so that nothing is injected."""
        return list(inspect.signature(self.cls.execute).parameters) == ["self"]

    def too_old_for(self, min_version: str) -> str:
        """Why this code must not run a task that requires a newer version; empty if it may.

        Args:
            min_version: ``min_version`` of the class where the task was submitted; empty: none.
        """
        if not min_version:
            return ""
        here = self.distribution
        if here and not is_older(here.version, min_version):
            return ""
        if here is None:
            return f"needs version {min_version}, but has none here"
        return f"needs {here.name} {min_version}, but {here.version} is installed here"

    @cached_property
    def _result(self) -> TypeAdapter[Any] | None:
        try:
            hint = typing.get_type_hints(self.cls.execute).get("return", Any)
            return pydantic.TypeAdapter(hint)
        except (NameError, TypeError, pydantic.PydanticUserError):
            return None

    def typed_result(self, value: Any) -> Any:
        """Convert a stored result to the return type of ``execute``, or return it unchanged."""
        if self._result is None:
            return value
        try:
            return self._result.validate_python(value, by_alias=True, by_name=True)
        except pydantic.ValidationError:
            return value


class Registry:
    """The task classes of one process, by full name.

    Args:
        extensions: distributions in order of precedence; the first wins where two define one name.
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
            RegistrationError: the class cannot run, its arguments cannot be serialised, or another
                class has the name and no precedence decides between them.
        """
        name = f"{category}:{cls.__name__}"
        known = self._classes.get(name)
        if known is not None and known.cls is cls:
            return known
        check_class(cls)
        added = TaskClass(name, cls, package or cls.__module__, Arguments(cls, name))
        if added.arguments.are_fields:
            check_fields(cls, added.arguments.names)
        _check_min_version(added)
        self._names[cls] = name
        if known is None or self._prefers(added, known):
            self._classes[name] = added
        return self._classes[name]

    def add_module(self, module_name: str, category: str = "") -> None:
        """Register every task class that a module defines.

        A module may define ``nonet_task_modules()`` instead: a function that returns the modules to
        load in its location, by category.

        Args:
            category: category of the classes; empty: the last part of the module name.

        Raises:
            RegistrationError: the module cannot be imported or defines no task.
        """
        module = import_named(module_name)
        if callable(others := getattr(module, "nonet_task_modules", None)):
            for name, other in others().items():
                self.add_module(other, name)
            return
        category = category or module_name.rpartition(".")[2]
        defined = [
            item
            for item in vars(module).values()
            if inspect.isclass(item)
            and issubclass(item, BaseTask)
            and item.__module__ == module.__name__
        ]
        found = [c for c in defined if hasattr(c, "execute") and not inspect.isabstract(c)]
        self._skipped |= dict.fromkeys(c for c in defined if not hasattr(c, "execute"))
        if not found and not _has_pipelines(module):
            reasons = [f": {reason}" for cls in defined[:1] if (reason := lacks_execute(cls))]
            raise RegistrationError(
                f"tasks module {module_name!r} defines no task (a BaseTask with execute())"
                + "".join(reasons)
            )
        for cls in found:
            self.add(cls, category)

    def add_entry_points(self, prefixes: Iterable[str]) -> None:
        """Register the classes of the entry points ``<prefix>.tasks.<category>``.

        The groups ``<prefix>.lock_object_types`` are imported first, because tasks use lock types.
        """
        prefixes = list(dict.fromkeys(prefixes))
        load_lock_types(prefixes)
        found = installed()
        for prefix in prefixes:
            for group in sorted(found.groups):
                category = group.removeprefix(f"{prefix}.tasks.")
                if category == group:
                    continue
                for entry in found.select(group=group):
                    cls = load(entry)
                    if not (inspect.isclass(cls) and issubclass(cls, BaseTask)):
                        raise RegistrationError(
                            f"entry point {entry.value!r} of {entry.group} is not a task class: "
                            "name a subclass of BaseTask"
                        )
                    self.add(cls, category, entry.dist.name if entry.dist else "")

    def warnings(self) -> list[str]:
        """Probable mistakes in the classes, one sentence each: misspelt attributes, no execute."""
        found = [text for item in self for text in unread_attributes(item.cls)]
        return list(dict.fromkeys([*found, *filter(None, map(lacks_execute, self._skipped))]))

    def versions(self) -> dict[str, str]:
        """The version of each registered class by its full name; empty without a distribution."""
        return {item.name: item.distribution.version if item.distribution else "" for item in self}

    def get(self, name: str) -> TaskClass:
        """The class of a full name, or of a bare class name that is unique.

        Raises:
            UnknownTaskError: no class has the name (the error suggests similar names), or several
                have (it lists them).
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
        """The class of a full name, or None."""
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
            RegistrationError: the class is not registered in this process.
        """
        name = self._names.get(cls)
        if name is None:
            problem = f"task class {location_of(cls)} is not registered"
            if cls.__module__ == "__main__":
                raise RegistrationError(f"{problem}: {_IN_MAIN}")
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
                f"{problem}. Rename one, or its module, whose last part is the category; or give "
                "it another category with an entry point in nonet.tasks.CATEGORY. To replace one "
                "by the other, rank them: "
                f"NONET_EXTENSIONS={added.package},{known.package} (the first wins)"
            )
        worst = len(self._rank)
        first, second = (worst if rank is None else rank for rank in ranks)
        return first < second


def load_lock_types(prefixes: Iterable[str]) -> None:
    """Import the entry points ``<prefix>.lock_object_types``, which register lock types.

    Raises:
        RegistrationError: one cannot be imported.
    """
    for entry in entries(prefixes, "lock_object_types"):
        load(entry)


def _has_pipelines(module: ModuleType) -> bool:
    """Whether a module defines pipelines, which need no tasks (`nonet.pipelines.Pipeline`)."""
    return any(getattr(item, "nonet_component", False) is True for item in vars(module).values())


def vos_from_entry_points(prefixes: Iterable[str]) -> list[str]:
    """Collect the VO names of the entry points ``<prefix>.vos``, each a list or a function."""
    names: list[str] = []
    for entry in entries(prefixes, "vos"):
        loaded = load(entry)
        try:
            names.extend(loaded() if callable(loaded) else loaded)
        except IMPORT_ERRORS as error:
            raise RegistrationError(
                f"entry point {entry.group}: {entry.value!r} gives no names: "
                f"{import_problem(error, entry.module)}"
            ) from error
    return list(dict.fromkeys(map(str, names)))


def import_named(module_name: str) -> ModuleType:
    """Import a module that the settings name.

    Raises:
        RegistrationError: it cannot be imported.
    """
    problem = f"tasks module {module_name!r}"
    if not all(module_name.split(".")):
        raise RegistrationError(f"{problem}: write the full name of a module, as package.module")
    if module_name == "__main__":
        raise RegistrationError(f"{problem}: {_IN_MAIN}")
    try:
        return importlib.import_module(module_name)
    except IMPORT_ERRORS as error:
        if isinstance(error, ModuleNotFoundError) and module_name.endswith(".py"):
            name = module_name.removesuffix(".py").replace("/", ".").strip(".")
            raise RegistrationError(
                f"{problem}: this is the name of a file: write the name of the module, {name}"
            ) from error
        raise RegistrationError(
            f"{problem} cannot be imported: {import_problem(error, module_name)}"
        ) from error


def _where(item: TaskClass) -> str:
    """Where a class is defined, with the file and line of its ``execute`` if known."""
    code = getattr(inspect.unwrap(vars(item.cls).get("execute", item.cls)), "__code__", None)
    line = f", {code.co_filename}:{code.co_firstlineno}" if code else ""
    return f"{item.location} ({item.package}{line})"


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _check_min_version(added: TaskClass) -> None:
    """Refuse a ``min_version`` that no worker could ever satisfy or compare."""
    location, least = added.location, added.cls.min_version
    if least is None:
        return
    if not isinstance(least, str) or not is_version(least):
        raise RegistrationError(
            f"{location}: min_version is {least!r:.100}, but must be a version as in '1.4' or "
            "'2.0.dev0' (PEP 440), or None"
        )
    if added.distribution is None:
        raise RegistrationError(
            f"{location}: min_version is {least!r}, but module {added.cls.__module__} is in no "
            "installed distribution, so workers have no version to compare: install it as a package"
        )
    if problem := added.too_old_for(least):
        raise RegistrationError(f"{location}: min_version: the class submitted here {problem}")


def locked_types(cls: type[BaseTask]) -> set[str]:
    """The lock types that the code of ``execution_locks`` mentions, in the class or a base.

    Read from the compiled code, because calling ``execution_locks`` needs an instance.
    """
    found: set[str] = set()
    for base in cls.__mro__:
        declared = vars(base).get("execution_locks")
        function = declared.fget if isinstance(declared, property) else declared
        if function is not None:
            # In a class that `task` made, it wraps the function that the author gave as `locks`.
            found |= set(_names_in(getattr(inspect.unwrap(function), "__code__", None)))
    return {name.lower() for name in found} & set(LockedObjectType.registered())


def _names_in(code: Any) -> Iterator[str]:
    """The globals and attributes that a code object and its comprehensions mention."""
    if isinstance(code, CodeType):
        yield from code.co_names
        for constant in code.co_consts:
            yield from _names_in(constant)
