"""Compile signatures into steps that provide the parameters, and report their mistakes."""

from __future__ import annotations

import enum
import functools
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Struct, field

from nonet.base.errors import DependencyError
from nonet.tasks.injection.providers import Dependency, DependencyRegistry, Provider, Scope, name_of

_UNIONS = (typing.Union, types.UnionType)
# An int is valid for a float: https://peps.python.org/pep-0484/#the-numeric-tower
_NUMBERS: Mapping[object, tuple[type, ...]] = {float: (float, int), complex: (complex, float, int)}


class Kind(enum.Enum):
    """How a step gets its value."""

    VALUE = enum.auto()  # passed to `Injector.open`
    DIRECT = enum.auto()  # called in the event loop: coroutine functions, classes
    THREAD = enum.auto()  # called in a thread, because it may block
    YIELD = enum.auto()  # a generator, or a context manager made from one


class Argument(Struct, frozen=True):
    """A parameter, and the step that provides its value.

    Attributes:
        name: name of the parameter.
        owner: the function that it belongs to.
        slot: index of the step.
        annotation: its type, for messages.
        accepts: the value must be an instance of one of these; empty: any value is valid.
    """

    name: str
    owner: Provider
    slot: int
    annotation: object
    accepts: tuple[type, ...]


class Made(Struct, frozen=True):
    call: Any  # a Provider, or the type of a VALUE
    kind: Kind
    scope: Scope
    arguments: tuple[Argument, ...] = ()


class Recipe(Struct, frozen=True):
    steps: tuple[Made, ...]
    arguments: tuple[Argument, ...]
    problems: tuple[str, ...]

    def filled(
        self, arguments: Sequence[Argument], made: Sequence[object], function: Provider
    ) -> dict[str, object]:
        """The values of the parameters, checked against their annotations.

        Args:
            made: the values of the steps so far.
            function: the function that gets the dependencies, bound to its task.

        Raises:
            DependencyError: a value has another type than the annotation.
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
            f"but {call} returned {came}; correct the annotation, or replace the dependency with "
            f"override_dependency({call}, …) in an entry point nonet.dependencies"
        )


def compile_recipe(
    function: Provider,
    overrides: Mapping[Provider, Provider],
    registry: DependencyRegistry,
    values: Collection[type],
) -> Recipe:
    """Compile the steps that provide the parameters of ``function``; nothing is executed.

    Args:
        overrides: replacements by dependency, as for `Injector`.
        values: the types that `Injector.open` will be given values for.
    """
    return _Compiler(overrides, registry, values).compile(function)


class _Compiler(Struct):
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
                # The replacement of an application or a test may be a mock of any type.
                accepts = () if slot in self._doubles else accepted(annotation)
                wanted, _ = _unwrapped(annotation)
                found.append(Argument(parameter.name, call, slot, wanted, accepts))
        return tuple(found)

    def _slot(
        self, owner: Provider, parameter: inspect.Parameter, annotation: object, scope: Scope
    ) -> int | None:
        """The step that provides this parameter; None: keep its default."""
        wanted, extras = _unwrapped(annotation)
        marker = _marker((*extras, parameter.default))
        optional = parameter.default is not parameter.empty
        title = f"parameter {parameter.name} of {name_of(owner)}"
        if parameter.kind is parameter.POSITIONAL_ONLY and (marker or not optional):
            raise DependencyError(f"{title}: it is positional-only; remove the '/' after it")
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
        """The provider of a class: the class itself if it is overridden, or a registered one."""
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
    """``Class.execute`` as a bound method, without the parameter ``self``."""
    if inspect.isfunction(function) and "self" in list(inspect.signature(function).parameters)[:1]:
        return types.MethodType(function, object())
    return function


def _parameters(call: Provider) -> Iterator[inspect.Parameter]:
    """The parameters that have to be filled."""
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
    """The annotation of a parameter, with strings resolved."""
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = _namespace(owner)
    try:
        hints = typing.get_type_hints(holder, names, include_extras=True)
    except Exception as error:
        text = str(parameter.annotation)
        if parameter.default is not parameter.empty and "Depends" not in text:
            return parameter.empty  # a parameter with a default needs no annotation
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
    """The names that the string annotations of ``owner`` can refer to."""
    target = inspect.unwrap(_function(owner))
    if not isinstance(target, type):
        return getattr(target, "__globals__", {})
    names: dict[str, Any] = {}
    for base in reversed(target.__mro__):  # a dataclass copies string annotations of its bases
        names |= getattr(sys.modules.get(base.__module__), "__dict__", {})
    return names


def _marker(extras: Iterable[object]) -> Dependency | None:
    """The `Depends` marker among these: the last one, ours before a foreign one."""
    markers: list[Any] = [extra for extra in extras if _is_marker(extra)]
    # After a bare `Depends()` as the default, the annotation determines what is called.
    markers = [marker for marker in markers if marker.dependency is not None] or markers
    ours = [marker for marker in markers if isinstance(marker, Dependency)]
    if ours or not markers:
        return ours[-1] if ours else None
    return Dependency(markers[-1].dependency, getattr(markers[-1], "use_cache", True))


def is_injected(function: Provider, parameter: inspect.Parameter) -> bool:
    """Whether a parameter is marked with `Depends`, in its annotation or as its default."""
    if _is_marker(parameter.default):
        return True
    try:
        annotation = _annotation(function, parameter)
    except DependencyError:  # the annotation names something that is defined later
        return "Depends" in str(parameter.annotation)
    return any(map(_is_marker, _unwrapped(annotation)[1]))


def _is_marker(extra: object) -> bool:
    """Whether this is our marker or one like FastAPI's."""
    if isinstance(extra, type) or not hasattr(extra, "dependency"):
        return False
    return extra.dependency is None or callable(extra.dependency)


def _unwrapped(annotation: object) -> tuple[Any, tuple[object, ...]]:
    """Split an annotation into the type without ``Annotated`` and ``None``, and the metadata."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        wanted, extras = _unwrapped(inner[0])
        return wanted, (*extras, *inner[1:])
    if origin in _UNIONS:
        inner = tuple(arg for arg in inner if arg is not types.NoneType)
        return _unwrapped(inner[0]) if len(inner) == 1 else (annotation, ())
    return annotation, ()


def accepted(annotation: object) -> tuple[type, ...]:
    """The classes that a value must be an instance of; empty if that cannot be checked.

    The contents of ``dict[str, int]`` are not checked. These annotations cannot be checked: `Any`,
    type variables, ``NewType``, ``Literal``, typed dictionaries, protocols that are not
    ``runtime_checkable``, and unions with one of them. A parameter annotated with ``None`` alone
    ignores its value.

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
    # A decorator such as `contextlib.contextmanager` hides the generator that it wraps.
    layers = (outer, inspect.unwrap(outer))
    if any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in layers):
        return Kind.YIELD
    if any(inspect.iscoroutinefunction(f) for f in layers):
        return Kind.DIRECT
    return Kind.THREAD
