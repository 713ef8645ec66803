"""What authors write to provide a parameter: `Depends`, or a provider for a class."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal, TypeAlias

from nonet.errors import RegistrationError

# Any: what a dependency takes and returns is known to its author alone.
Provider: TypeAlias = Callable[..., Any]
Scope: TypeAlias = Literal["attempt", "process"]


def Depends(
    dependency: Provider | None = None, *, use_cache: bool = True, scope: Scope = "attempt"
) -> Any:
    """Mark a parameter as provided by ``dependency``: in ``Annotated``, or as its default.

    Args:
        dependency: what to call; by default the annotated class, or the provider that
            `register_dependency` knows for it.
        use_cache: False calls it anew for this parameter instead of once per attempt.
        scope: ``"process"`` creates it once per process and closes it at shutdown; it may only
            depend on other process-scoped ones.

    Returns:
        A mark; for type checkers Any, so that ``db: FileDB = Depends(FileDB.session)`` fits.

    Raises:
        TypeError: `dependency` cannot be called.
        ValueError: the options contradict each other.

    Example:
        async def connection() -> AsyncIterator[JobDB]:
            yield JobDB()  # what follows is done when the attempt has ended

        class Clean(BaseTask):
            async def execute(self, db: Annotated[JobDB, Depends(connection)]) -> int:
                return await db.clean()

    >>> Depends(dict, use_cache=False)
    Dependency(dependency=<class 'dict'>, use_cache=False, scope='attempt')
    """
    return Dependency(dependency, use_cache, scope)


@dataclass(frozen=True, slots=True)
class Dependency:
    """What `Depends` returns."""

    dependency: Provider | None = None
    use_cache: bool = True
    scope: Scope = "attempt"

    def __post_init__(self) -> None:
        if self.dependency is not None and not callable(self.dependency):
            raise TypeError(f"Depends({self.dependency!r}): a dependency must be callable")
        if self.scope not in ("attempt", "process"):
            raise ValueError(f"Depends(scope={self.scope!r}): use 'attempt' or 'process'")
        if self.scope == "process" and not self.use_cache:
            raise ValueError("Depends(use_cache=False, scope='process') contradicts itself")


class DependencyRegistry:
    """Which provider serves the subclasses of a class, for parameters without `Depends`."""

    def __init__(self) -> None:
        self.version: int = 0  # raised by each change, so that compiled recipes can be dropped
        self._providers: dict[type, Callable[[type], Provider]] = {}
        self._found: dict[type, Provider | None] = {}
        self._loaded: set[str] = set()

    def register(self, base: type, provider: Callable[[type], Provider]) -> None:
        """See `register_dependency`."""
        if base in self._providers:
            raise RegistrationError(
                f"{name_of(base)} already has the dependency provider "
                f"{_place(self._providers[base])}; {_place(provider)} cannot be a second one"
            )
        self._providers[base] = provider
        self._changed()

    def find(self, wanted: object) -> Provider | None:
        """The dependency for a class: that of its nearest registered base, made once."""
        if not isinstance(wanted, type):
            return None
        if wanted not in self._found:
            base = next((base for base in wanted.__mro__ if base in self._providers), None)
            self._found[wanted] = self._providers[base](wanted) if base else None
        return self._found[wanted]

    def load(self, prefixes: Iterable[str]) -> None:
        """See `load_entry_points`."""
        for group in (f"{prefix}.dependencies" for prefix in prefixes):
            for entry in entry_points(group=group):
                title = f"entry point {entry.name!r} of {group} ({entry.value})"
                if title not in self._loaded:
                    try:
                        entry.load()()
                    except Exception as error:
                        raise RegistrationError(f"{title} failed: {error}") from error
                    self._loaded.add(title)

    def clear(self) -> None:
        """Forget all providers and entry points (for tests)."""
        self._providers.clear()
        self._loaded.clear()
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._found.clear()


REGISTRY = DependencyRegistry()


def register_dependency(base: type, provider: Callable[[Any], Provider]) -> None:
    """Provide each parameter that is annotated with a class or a subclass of it.

    Args:
        base: the class.
        provider: called once for each annotated class, with it; gives the dependency to call.

    Raises:
        TypeError: `base` is no class, or `provider` cannot be called.
        RegistrationError: `base` has a provider already; the message names both.

    Example:
        register_dependency(BaseDB, lambda cls: cls.session)

        class Count(BaseTask):
            async def execute(self, db: FileDB) -> int:  # a subclass of BaseDB
                return await db.count()
    """
    if not isinstance(base, type) or not callable(provider):
        raise TypeError(
            f"register_dependency({base!r:.100}, {provider!r:.100}): give a class, and a function "
            "that is called with it and gives the dependency"
        )
    REGISTRY.register(base, provider)


def load_entry_points(prefixes: Iterable[str] = ("nonet",)) -> None:
    """Call, once per process, the functions behind the entry points ``<prefix>.dependencies``.

    They take no argument and call `register_dependency`.

    Raises:
        RegistrationError: one cannot be imported or fails; the message names it.
    """
    REGISTRY.load(prefixes)


def name_of(thing: object) -> str:
    """What to call a function, class or object in a message."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    name = getattr(thing, "__qualname__", None)
    if name is None:
        name = str(thing) if typing.get_origin(thing) else f"{type(thing).__qualname__} object"
    return str(name).rpartition("<locals>.")[2]


def _place(function: Provider) -> str:
    """A name with where it is defined."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    line = f":{code.co_firstlineno}" if code else ""
    return f"{name_of(function)} (module {getattr(function, '__module__', '?')}{line})"
