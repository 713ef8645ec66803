"""Signatures compiled into steps: who provides each parameter, and every mistake in that."""

from __future__ import annotations

import enum
import functools
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from nonet.base.errors import DependencyError
from nonet.tasks.injection.providers import Dependency, DependencyRegistry, Provider, Scope, name_of

_UNIONS = (typing.Union, types.UnionType)
# Where a float is wanted, an int will do: https://peps.python.org/pep-0484/#the-numeric-tower
_NUMBERS: Mapping[object, tuple[type, ...]] = {float: (float, int), complex: (complex, float, int)}


class Kind(enum.Enum):
    """How a step gets its value."""

    VALUE = enum.auto()  # given to `Injector.open`
    DIRECT = enum.auto()  # called in the loop: coroutine functions, classes
    THREAD = enum.auto()  # called in a worker thread: it may block
    YIELD = enum.auto()  # a generator, or a context manager made of one


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter, and the step whose value it gets.

    Attributes:
        name: of the parameter.
        owner: the function that has it.
        slot: index of the step.
        annotation: its type, for people.
        accepts: the value must be an instance of one of these; empty: any value will do.
    """

    name: str
    owner: Provider
    slot: int
    annotation: object
    accepts: tuple[type, ...]


@dataclass(frozen=True, slots=True)
class Made:
    call: Any  # a Provider; for a VALUE its type
    kind: Kind
    scope: Scope
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class Recipe:
    steps: tuple[Made, ...]
    arguments: tuple[Argument, ...]
    problems: tuple[str, ...]

    def filled(
        self, arguments: Sequence[Argument], made: Sequence[object], function: Provider
    ) -> dict[str, object]:
        """The values of parameters, each of the type with which it is annotated.

        Args:
            made: what the steps have given so far.
            function: what is provided for, bound to its task.

        Raises:
            DependencyError: a value is of another type.
        """
        for argument in arguments:
            value = made[argument.slot]
            if argument.accepts and not isinstance(value, argument.accepts):
                task = getattr(function, "__self__", None)
                owner = name_of(function if task is None else type(task))
                raise DependencyError(f"{owner}: {self._misfit(argument, value)}")
        return {argument.name: made[argument.slot] for argument in arguments}

    def _misfit(self, argument: Argument, value: object) -> str:
        wanted, call = name_of(argument.annotation), name_of(self.steps[argument.slot].call)
        came = "None" if value is None else f"an instance of {name_of(type(value))}"
        return (
            f"parameter {argument.name} of {name_of(argument.owner)} is annotated with {wanted}, "
            f"but {call} gave {came}; annotate what it gives, or call override_dependency({call}, "
            f"…) with what gives {wanted}, in an entry point nonet.dependencies"
        )


def compile_recipe(
    function: Provider,
    overrides: Mapping[Provider, Provider],
    registry: DependencyRegistry,
    values: Collection[type],
) -> Recipe:
    """The steps that provide the parameters of ``function``; executes nothing.

    Parameters: see `nonet.tasks.injection.Injector`; ``values`` are the types that have a value.
    """
    return _Compiler(overrides, registry, values).compile(function)


@dataclass(slots=True)
class _Compiler:
    """Turns the signatures that one function reaches into a `Recipe`."""

    overrides: Mapping[Provider, Provider]
    registry: DependencyRegistry
    values: Collection[type]
    _steps: list[Made] = field(default_factory=list)
    _slots: dict[tuple[Provider, Scope], int] = field(default_factory=dict)
    _doubles: set[int] = field(default_factory=set)
    _path: list[Provider] = field(default_factory=list)
    _problems: list[str] = field(default_factory=list)

    def compile(self, function: Provider) -> Recipe:
        arguments = self._arguments(_as_bound(function), "attempt")
        return Recipe(tuple(self._steps), arguments, tuple(dict.fromkeys(self._problems)))

    def _arguments(self, call: Provider, scope: Scope) -> tuple[Argument, ...]:
        found = []
        for parameter in _parameters(call):
            try:
                annotation = _annotation(call, parameter)
                slot = self._slot(call, parameter, annotation, scope)
            except DependencyError as error:
                self._problems.append(str(error))
                continue
            if slot is not None:
                # What an application or a test puts in its place may be a mere look-alike.
                accepts = () if slot in self._doubles else accepted(annotation)
                wanted, _ = _unwrapped(annotation)
                found.append(Argument(parameter.name, call, slot, wanted, accepts))
        return tuple(found)

    def _slot(
        self, owner: Provider, parameter: inspect.Parameter, annotation: object, scope: Scope
    ) -> int | None:
        """The step that provides this parameter; None keeps its default."""
        wanted, extras = _unwrapped(annotation)
        marker = _marker((*extras, parameter.default))
        optional = parameter.default is not parameter.empty
        title = f"parameter {parameter.name} of {name_of(owner)}"
        if parameter.kind is parameter.POSITIONAL_ONLY and (marker or not optional):
            raise DependencyError(f"{title}: it is positional-only; remove the '/' behind it")
        if marker and marker.dependency is not None:
            return self._dependency(title, marker.dependency, marker, scope)
        if wanted in self.values:
            return self._value(title, wanted, scope)
        if optional and not marker:
            return None
        provider = self._provider(title, wanted, extras)
        if provider is None and marker and wanted is not parameter.empty:
            provider = wanted
        if provider is not None:
            return self._dependency(title, provider, marker or Dependency(), scope)
        reason = f"nothing provides {name_of(wanted)}"
        if wanted is parameter.empty:
            reason = "it has no annotation"
        raise DependencyError(
            f"{title}: {reason}; annotate it with Annotated[..., Depends(...)], "
            "register a provider for its class or give it a default"
        )

    def _provider(self, title: str, wanted: object, extras: tuple[object, ...]) -> Provider | None:
        """What serves a class: the class itself if it is replaced, or what its provider gives."""
        if not isinstance(wanted, type):
            return None
        if wanted in self.overrides or wanted in self.registry.overrides:
            return wanted
        metadata = tuple(extra for extra in extras if not _is_marker(extra))
        try:
            return self.registry.find(wanted, metadata)
        except DependencyError as error:
            raise DependencyError(f"{title}: {error}") from error

    def _value(self, title: str, wanted: type, scope: Scope) -> int:
        if scope == "process":
            raise DependencyError(
                f"{title}: a process-scoped dependency cannot use {name_of(wanted)}, "
                "which belongs to one attempt"
            )
        return self._add(Made(wanted, Kind.VALUE, "attempt"))

    def _dependency(self, title: str, wanted: object, marker: Dependency, scope: Scope) -> int:
        call = _usable(title, wanted)
        if call not in self.overrides:
            call = self.registry.overrides.get(call, call)
        is_double = call in self.overrides
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
        slot = self._add(Made(call, _kind(call), marker.scope, arguments))
        if marker.use_cache:
            self._slots[call, marker.scope] = slot
        if is_double:
            self._doubles.add(slot)
        return slot

    def _add(self, step: Made) -> int:
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


def _marker(extras: Iterable[object]) -> Dependency | None:
    """The `Depends` among these: the last one, ours before a foreign one."""
    markers: list[Any] = [extra for extra in extras if _is_marker(extra)]
    ours = [marker for marker in markers if isinstance(marker, Dependency)]
    if ours or not markers:
        return ours[-1] if ours else None
    return Dependency(markers[-1].dependency, getattr(markers[-1], "use_cache", True))


def _is_marker(extra: object) -> bool:
    """Ours, or one that looks like FastAPI's."""
    if isinstance(extra, type) or not hasattr(extra, "dependency"):
        return False
    return extra.dependency is None or callable(extra.dependency)


def _unwrapped(annotation: object) -> tuple[Any, tuple[object, ...]]:
    """The annotation without ``Annotated`` and ``None``, and the metadata of ``Annotated``."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        wanted, extras = _unwrapped(inner[0])
        return wanted, (*extras, *inner[1:])
    if origin in _UNIONS:
        inner = tuple(arg for arg in inner if arg is not types.NoneType)
        return _unwrapped(inner[0]) if len(inner) == 1 else (annotation, ())
    return annotation, ()


def accepted(annotation: object) -> tuple[type, ...]:
    """Classes of which a value must be an instance; none if that cannot be known.

    Of ``dict[str, int]`` the content is not looked at. Not known are `Any`, type variables,
    ``NewType``, ``Literal``, typed dictionaries, protocols that are not ``runtime_checkable``, and
    unions with one of them. Who annotates with ``None`` alone does not use the value.

    >>> accepted(dict[str, int] | None), accepted(float), accepted(Any)
    ((<class 'dict'>, <class 'NoneType'>), (<class 'float'>, <class 'int'>), ())
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return accepted(inner[0])
    if origin in _UNIONS:
        members = [(arg,) if arg is types.NoneType else accepted(arg) for arg in inner]
        return tuple(itertools.chain(*members)) if all(members) else ()
    if annotation in (inspect.Parameter.empty, types.NoneType):
        return ()
    kind: Any = origin or annotation
    found = _NUMBERS.get(kind, (kind,))
    try:
        isinstance(object(), found)
    except TypeError:
        return ()
    return found


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
