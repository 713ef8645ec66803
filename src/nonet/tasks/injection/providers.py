"""Provide a parameter: `Depends`, or a provider for a class."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from nonet.base.errors import DependencyError, RegistrationError
from nonet.tasks.entry_points import entries

# Any, because only the author knows what a dependency takes and returns.
Provider: TypeAlias = Callable[..., Any]
Scope: TypeAlias = Literal["attempt", "process"]


def Depends(
    dependency: Provider | None = None, *, use_cache: bool = True, scope: Scope = "attempt"
) -> Any:
    """Mark a parameter as provided by ``dependency``, inside ``Annotated`` or as its default.

    Args:
        dependency: what to call. None: the annotated class, or its provider if one is registered
            with `register_dependency`.
        use_cache: False: call it again for this parameter, instead of once per attempt.
        scope: ``"attempt"``, or ``"process"``: create it once per process and close it at shutdown.
            A process-scoped dependency may depend only on other process-scoped ones.

    Returns:
        A marker; for type checkers Any, so that ``db: FileDB = Depends(FileDB.session)`` is valid.

    Raises:
        TypeError: `dependency` is not callable.
        ValueError: the options contradict each other.

    Example:
        async def connection() -> AsyncIterator[InvoiceDB]:
            yield InvoiceDB()  # the code after this runs when the attempt has ended

        class Clean(BaseTask):
            async def execute(self, db: Annotated[InvoiceDB, Depends(connection)]) -> int:
                return await db.clean()

    >>> Depends(dict, use_cache=False)
    Dependency(dependency=<class 'dict'>, use_cache=False, scope='attempt')
    """
    return Dependency(dependency, use_cache, scope)


class Dependency(Struct, frozen=True):
    """The marker that `Depends` returns."""

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
    """A provider that reads the metadata of ``Annotated``."""

    def __call__(self, cls: Any, /, *, metadata: tuple[Any, ...]) -> Provider: ...


class _ByClass(Struct, frozen=True):
    """A registered provider, and whether it has a parameter ``metadata``."""

    provide: Callable[..., Provider]
    reads_metadata: bool


class DependencyRegistry:
    """Providers by class, for parameters without `Depends`; each also serves subclasses.

    Attributes:
        version: incremented by each change, so that compiled recipes can be discarded.
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
                f"{_place(replacement)} cannot replace it as well"
            )
        self.overrides[dependency] = replacement
        self._changed()

    def find(self, wanted: object, metadata: tuple[object, ...] = ()) -> Provider | None:
        """The dependency for a class, from the provider of its nearest registered base, or None.

        The provider is called once per class and, if it reads metadata, per different metadata.

        Args:
            metadata: the metadata of the annotation.

        Raises:
            DependencyError: the provider failed, or the metadata are not hashable.
        """
        if not isinstance(wanted, type):
            return None
        base = next((base for base in wanted.__mro__ if base in self._providers), None)
        if base is None:
            return None
        by_class = self._providers[base]
        seen = metadata if by_class.reads_metadata else ()
        # Include the types: members of two string enumerations can be equal.
        key = (wanted, tuple((type(item), item) for item in seen))
        try:
            found = self._found.get(key)
        except TypeError as error:
            raise DependencyError(
                f"the metadata of Annotated[{name_of(wanted)}, …] cannot be cached ({error}); "
                "if it is a dataclass, make it frozen"
            ) from error
        if found is None:
            found = self._found[key] = _asked(by_class, wanted, seen)
        return found

    def load(self, prefixes: Iterable[str]) -> None:
        """See `load_entry_points`."""
        for entry in entries(prefixes, "dependencies"):
            title = f"entry point {entry.name!r} of {entry.group} ({entry.value})"
            if title not in self._loaded:
                try:
                    entry.load()()
                except Exception as error:
                    raise RegistrationError(f"{title} failed: {error}") from error
                self._loaded.add(title)

    def clear(self) -> None:
        """Remove all providers and overrides, and forget the loaded entry points (for tests)."""
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
    """Provide all parameters that are annotated with a class or a subclass of it.

    Args:
        base: the class.
        provider: called with the annotated class; returns the dependency to call. It is called once
            per class. With a parameter ``metadata`` it also gets the metadata of ``Annotated``,
            without `Depends`, as a tuple, and is called once per different metadata.

    Raises:
        TypeError: `base` is not a class, or `provider` is not callable.
        RegistrationError: `base` already has a provider; the message names both.

    Example:
        register_dependency(BaseDB, lambda cls: cls.session)

        class Count(BaseTask):
            async def execute(self, db: FileDB) -> int:  # a subclass of BaseDB
                return await db.count()
    """
    if not isinstance(base, type) or not callable(provider):
        raise TypeError(
            f"register_dependency({base!r:.100}, {provider!r:.100}): pass a class, and a function "
            "that takes it and returns the dependency"
        )
    REGISTRY.register(base, provider)


def override_dependency(dependency: Provider, replacement: Provider) -> None:
    """Replace a dependency in this process, at any depth.

    Call it in the function of an entry point ``nonet.dependencies``, or at the top level of a
    module with tasks: daemons, child processes and programs that submit load both. The
    ``dependency_overrides`` of a `nonet.Nonet` and of tests take precedence.

    Args:
        dependency: the function given to `Depends`; or a class, to replace what
            `register_dependency` provides for it.
        replacement: called instead; it may have dependencies of its own.

    Raises:
        TypeError: an argument is not callable, or `dependency` is not hashable.
        RegistrationError: `dependency` is already replaced; the message names both replacements.

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
            f"override_dependency({dependency!r:.100}, {replacement!r:.100}): pass two functions "
            "or other callables"
        )
    REGISTRY.override(dependency, replacement)


def load_entry_points(prefixes: Iterable[str] = ("nonet",)) -> None:
    """Call the functions of the entry points ``<prefix>.dependencies``, once per process.

    They take no argument and call `register_dependency` and `override_dependency`.

    Raises:
        RegistrationError: one cannot be imported or fails; the message names it.
    """
    REGISTRY.load(prefixes)


def name_of(thing: object) -> str:
    """The name of a function, class or object for messages."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    name = getattr(thing, "__qualname__", None)
    if name is None:
        name = str(thing) if typing.get_origin(thing) else f"{type(thing).__qualname__} object"
    return str(name).rpartition("<locals>.")[2]


def _place(function: Provider) -> str:
    """The name of a function with its module and line."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    line = f":{code.co_firstlineno}" if code else ""
    return f"{name_of(function)} (module {getattr(function, '__module__', '?')}{line})"
