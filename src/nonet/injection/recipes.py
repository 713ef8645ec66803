"""Signatures compiled into steps: who provides each parameter, and every mistake in that."""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
import typing
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from nonet.errors import DependencyError
from nonet.injection.providers import Dependency, DependencyRegistry, Provider, Scope, name_of


class Kind(enum.Enum):
    """How a step gets its value."""

    VALUE = enum.auto()  # given to `Injector.open`
    DIRECT = enum.auto()  # called in the loop: coroutine functions, classes
    THREAD = enum.auto()  # called in a worker thread: it may block
    YIELD = enum.auto()  # a generator, or a context manager made of one


@dataclass(frozen=True, slots=True)
class Step:
    call: Any  # a Provider; for a VALUE its type
    kind: Kind
    scope: Scope
    arguments: tuple[tuple[str, int], ...] = ()  # parameter, index of the step that provides it


@dataclass(frozen=True, slots=True)
class Recipe:
    steps: tuple[Step, ...]
    arguments: tuple[tuple[str, int], ...]
    problems: tuple[str, ...]


def compile_recipe(
    function: Provider,
    overrides: Mapping[Provider, Provider],
    registry: DependencyRegistry,
    values: Collection[type],
) -> Recipe:
    """The steps that provide the parameters of ``function``; executes nothing.

    Parameters: see `nonet.injection.Injector`; ``values`` are the types that have a value.
    """
    return _Compiler(overrides, registry, values).compile(function)


@dataclass(slots=True)
class _Compiler:
    """Turns the signatures that one function reaches into a `Recipe`."""

    overrides: Mapping[Provider, Provider]
    registry: DependencyRegistry
    values: Collection[type]
    _steps: list[Step] = field(default_factory=list)
    _slots: dict[tuple[Provider, Scope], int] = field(default_factory=dict)
    _path: list[Provider] = field(default_factory=list)
    _problems: list[str] = field(default_factory=list)

    def compile(self, function: Provider) -> Recipe:
        arguments = self._arguments(_as_bound(function), "attempt")
        return Recipe(tuple(self._steps), arguments, tuple(dict.fromkeys(self._problems)))

    def _arguments(self, call: Provider, scope: Scope) -> tuple[tuple[str, int], ...]:
        found = []
        for parameter in _parameters(call):
            try:
                slot = self._slot(call, parameter, scope)
            except DependencyError as error:
                self._problems.append(str(error))
            else:
                if slot is not None:
                    found.append((parameter.name, slot))
        return tuple(found)

    def _slot(self, owner: Provider, parameter: inspect.Parameter, scope: Scope) -> int | None:
        """The step that provides this parameter; None keeps its default."""
        annotation = _annotation(owner, parameter)
        marker = _marker(annotation, parameter.default)
        optional = parameter.default is not parameter.empty
        wanted = _bare(annotation)
        title = f"parameter {parameter.name} of {name_of(owner)}"
        if parameter.kind is parameter.POSITIONAL_ONLY and (marker or not optional):
            raise DependencyError(f"{title}: it is positional-only; remove the '/' behind it")
        if marker and marker.dependency is not None:
            return self._dependency(title, marker.dependency, marker, scope)
        if wanted in self.values:
            return self._value(title, wanted, scope)
        provider = self.registry.find(wanted) if marker or not optional else None
        if provider is not None:
            provider = self.overrides.get(wanted, provider)
            return self._dependency(title, provider, marker or Dependency(), scope)
        if marker and wanted is not parameter.empty:
            return self._dependency(title, wanted, marker, scope)
        if optional and not marker:
            return None
        reason = f"nothing provides {name_of(wanted)}"
        if wanted is parameter.empty:
            reason = "it has no annotation"
        raise DependencyError(
            f"{title}: {reason}; annotate it with Annotated[..., Depends(...)], "
            "register a provider for its class or give it a default"
        )

    def _value(self, title: str, wanted: type, scope: Scope) -> int:
        if scope == "process":
            raise DependencyError(
                f"{title}: a process-scoped dependency cannot use {name_of(wanted)}, "
                "which belongs to one attempt"
            )
        return self._add(Step(wanted, Kind.VALUE, "attempt"))

    def _dependency(self, title: str, wanted: object, marker: Dependency, scope: Scope) -> int:
        call = _usable(title, wanted)
        call = _usable(title, self.overrides.get(call, call))
        if scope == "process" and marker.scope != "process":
            raise DependencyError(
                f"{title}: it is process-scoped and cannot depend on {name_of(call)}, which is "
                "attempt-scoped; mark that Depends(..., scope='process') too"
            )
        if marker.use_cache and (call, marker.scope) in self._slots:
            return self._slots[call, marker.scope]
        if call in self._path:
            chain = [*self._path[self._path.index(call) :], call]
            raise DependencyError(f"{title}: a cycle: {' → '.join(map(name_of, chain))}")
        self._path.append(call)
        arguments = self._arguments(call, marker.scope)
        self._path.pop()
        slot = self._add(Step(call, _kind(call), marker.scope, arguments))
        if marker.use_cache:
            self._slots[call, marker.scope] = slot
        return slot

    def _add(self, step: Step) -> int:
        self._steps.append(step)
        return len(self._steps) - 1


def _usable(title: str, call: object) -> Provider:
    if not callable(call):
        raise DependencyError(f"{title}: {name_of(call)} is not callable")
    if not isinstance(call, Hashable):
        raise DependencyError(
            f"{title}: {name_of(call)} is not hashable, so its value cannot be cached; "
            "if it is a dataclass, make it frozen"
        )
    return call


def _as_bound(function: Provider) -> Provider:
    """``Class.execute`` as its instances will see it."""
    if inspect.isfunction(function) and "self" in list(inspect.signature(function).parameters)[:1]:
        return types.MethodType(function, object())
    return function


def _parameters(call: Provider) -> Iterator[inspect.Parameter]:
    """The parameters that somebody has to fill."""
    try:
        signature = inspect.signature(call)
    except ValueError:  # some built-ins have no signature
        return
    taken: set[str] = set()
    while isinstance(call, functools.partial):
        taken |= call.keywords.keys()
        call = call.func
    for parameter in signature.parameters.values():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not variadic and parameter.name not in taken:
            yield parameter


def _annotation(owner: Provider, parameter: inspect.Parameter) -> object:
    """The annotation with its strings resolved."""
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = _namespace(owner)
    try:
        hints = typing.get_type_hints(holder, names, include_extras=True)
    except Exception as error:
        text = str(parameter.annotation)
        if parameter.default is not parameter.empty and "Depends" not in text:
            return parameter.empty  # a default needs no annotation, a marker as default neither
        reason = f"cannot be read: {error}"
        if isinstance(error, NameError):
            reason = (
                f"{error.name} cannot be resolved; import or define it at module level, "
                "not in a function or under TYPE_CHECKING"
            )
        raise DependencyError(
            f"parameter {parameter.name} of {name_of(owner)}: in its annotation {text!r}, {reason}"
        ) from error
    return hints[parameter.name]


def _namespace(owner: Provider) -> dict[str, Any]:
    """Where the string annotations of ``owner`` look their names up."""
    target = inspect.unwrap(_function(owner))
    if not isinstance(target, type):
        return getattr(target, "__globals__", {})
    names: dict[str, Any] = {}
    for base in reversed(target.__mro__):  # a dataclass repeats the strings of its bases
        names |= getattr(sys.modules.get(base.__module__), "__dict__", {})
    return names


def _marker(annotation: object, default: object) -> Dependency | None:
    """The `Depends` of a parameter: the last one, ours before a foreign one."""
    extras = typing.get_args(annotation)[1:] if typing.get_origin(annotation) is Annotated else ()
    markers = [extra for extra in (*extras, default) if _is_marker(extra)]
    ours = [marker for marker in markers if isinstance(marker, Dependency)]
    if ours or not markers:
        return ours[-1] if ours else None
    return Dependency(markers[-1].dependency, getattr(markers[-1], "use_cache", True))


def _is_marker(extra: object) -> bool:
    """Ours, or one that looks like FastAPI's."""
    if isinstance(extra, type) or not hasattr(extra, "dependency"):
        return False
    return extra.dependency is None or callable(extra.dependency)


def _bare(annotation: object) -> Any:
    """The annotation without ``Annotated`` and ``None``."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _bare(inner[0])
    if origin in (typing.Union, types.UnionType):
        inner = tuple(arg for arg in inner if arg is not types.NoneType)
        return _bare(inner[0]) if len(inner) == 1 else annotation
    return annotation


def _function(call: Provider) -> Provider:
    """The function or class behind partials, bound methods and callable objects."""
    while isinstance(call, functools.partial):
        call = call.func
    if not isinstance(call, type) and not inspect.isroutine(call):
        call = type(call).__call__
    function: Provider = getattr(call, "__func__", call)
    return function


def _kind(call: Provider) -> Kind:
    outer = _function(call)
    if isinstance(outer, type):
        return Kind.DIRECT
    # A decorator such as `contextlib.contextmanager` hides what it wraps.
    layers = (outer, inspect.unwrap(outer))
    if any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in layers):
        return Kind.YIELD
    if any(inspect.iscoroutinefunction(f) for f in layers):
        return Kind.DIRECT
    return Kind.THREAD
