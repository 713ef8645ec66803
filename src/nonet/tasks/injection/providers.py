"""What authors write to provide a parameter: `Depends`, or a provider for a class."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal, Protocol, TypeAlias

from nonet.base.errors import DependencyError, RegistrationError

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


class ReadsMetadata(Protocol):
    """A provider of `register_dependency` that reads the metadata of ``Annotated``."""

    def __call__(self, cls: Any, /, *, metadata: tuple[Any, ...]) -> Provider: ...


@dataclass(frozen=True, slots=True)
class _ByClass:
    """A provider of `register_dependency`, and whether it has a parameter ``metadata``."""

    provide: Callable[..., Provider]
    reads_metadata: bool


class DependencyRegistry:
    """Which provider serves the subclasses of a class, for parameters without `Depends`.

    Attributes:
        version: raised by each change, so that compiled recipes can be dropped.
        overrides: the replacements of `override_dependency`.
    """

    def __init__(self) -> None:
        self.version: int = 0
        self.overrides: dict[Provider, Provider] = {}
        self._providers: dict[type, _ByClass] = {}
        self._found: dict[object, Provider] = {}
        self._loaded: set[str] = set()

    def register(self, base: type, provider: Callable[[Any], Provider] | ReadsMetadata) -> None:
        """See `register_dependency`."""
        if base in self._providers:
            first = _place(self._providers[base].provide)
            raise RegistrationError(
                f"{name_of(base)} already has the dependency provider {first}; "
                f"{_place(provider)} cannot be a second one"
            )
        self._providers[base] = _ByClass(provider, _reads_metadata(provider))
        self._changed()

    def override(self, dependency: Provider, replacement: Provider) -> None:
        """See `override_dependency`."""
        if dependency in self.overrides:
            first = _place(self.overrides[dependency])
            raise RegistrationError(
                f"{name_of(dependency)} is already replaced by {first}; "
                f"{_place(replacement)} cannot replace it, too"
            )
        self.overrides[dependency] = replacement
        self._changed()

    def find(self, wanted: object, metadata: tuple[object, ...] = ()) -> Provider | None:
        """The dependency for a class: what the provider of its nearest registered base gives.

        The provider is asked once for each class, and for each metadata if it reads that.

        Args:
            metadata: what the annotation of the parameter has beside the class.

        Raises:
            DependencyError: the provider failed, or reads metadata that cannot be compared.
        """
        if not isinstance(wanted, type):
            return None
        base = next((base for base in wanted.__mro__ if base in self._providers), None)
        if base is None:
            return None
        by_class = self._providers[base]
        seen = metadata if by_class.reads_metadata else ()
        # By type, too: members of two enumerations may be equal.
        key = (wanted, tuple((type(item), item) for item in seen))
        try:
            found = self._found.get(key)
        except TypeError as error:
            raise DependencyError(
                f"the metadata of Annotated[{name_of(wanted)}, …] cannot be compared ({error}); "
                "if it is a dataclass, make it frozen"
            ) from error
        if found is None:
            found = self._found[key] = _asked(by_class, wanted, seen)
        return found

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
        """Forget all providers, overrides and entry points (for tests)."""
        self._providers.clear()
        self.overrides.clear()
        self._loaded.clear()
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._found.clear()


def _asked(by_class: _ByClass, wanted: type, metadata: tuple[object, ...]) -> Provider:
    options = {"metadata": metadata} if by_class.reads_metadata else {}
    try:
        return by_class.provide(wanted, **options)
    except Exception as error:
        raise DependencyError(
            f"the provider {_place(by_class.provide)} failed for {name_of(wanted)}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _reads_metadata(provider: Callable[..., Provider]) -> bool:
    try:
        return "metadata" in inspect.signature(provider).parameters
    except ValueError:  # some built-ins have no signature
        return False


REGISTRY = DependencyRegistry()


def register_dependency(base: type, provider: Callable[[Any], Provider] | ReadsMetadata) -> None:
    """Provide each parameter that is annotated with a class or a subclass of it.

    Args:
        base: the class.
        provider: called once for each annotated class, with it; gives the dependency to call. If
            it has a parameter ``metadata``, it is called once for each different metadata, and
            gets what ``Annotated`` has beside the class and `Depends`, as a tuple.

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


def override_dependency(dependency: Provider, replacement: Provider) -> None:
    """Replace a dependency in this process.

    Call it in the function of an entry point ``nonet.dependencies``, or at the top level of a
    module with tasks: daemons, child processes and programs that submit load both. It holds at
    any depth. ``dependency_overrides`` of a `nonet.Nonet`, and those of a test, go before it.

    Args:
        dependency: what `Depends` names; or a class, for what `register_dependency` provides.
        replacement: what is called instead; it may have dependencies of its own.

    Raises:
        TypeError: one of them cannot be called, or `dependency` is not hashable.
        RegistrationError: `dependency` is replaced already; the message names both.

    Example:
        def read_config() -> Config:
            return Config(region="eu")

        override_dependency(ConfigSource.create, read_config)

        class Sweep(BaseTask):
            async def execute(self, config: Annotated[Config, Depends(ConfigSource.create)]) -> str:
                return config.region
    """
    if not callable(replacement) or not callable(dependency):
        raise TypeError(
            f"override_dependency({dependency!r:.100}, {replacement!r:.100}): give two functions, "
            "or other things that can be called"
        )
    REGISTRY.override(dependency, replacement)


def load_entry_points(prefixes: Iterable[str] = ("nonet",)) -> None:
    """Call, once per process, the functions behind the entry points ``<prefix>.dependencies``.

    They take no argument and call `register_dependency` and `override_dependency`.

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
