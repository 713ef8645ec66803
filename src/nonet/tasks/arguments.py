"""Validate, pack and rebuild the constructor arguments of task classes.

Four kinds of classes are accepted: a ``@dataclass``; a pydantic model; a class with annotations but
no decorator, which becomes a dataclass on first use; and a class with its own ``__init__``, whose
call is recorded and replayed.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, Self

from typing_extensions import TypedDict

from nonet.base import late_pydantic as pydantic
from nonet.base.errors import InvalidArgumentsError, RegistrationError
from nonet.base.messages.message import decode, encode, pack, travels
from nonet.base.plain import is_model

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails


class Constructible:
    """Mixin of the task bases: records how an instance was made."""

    _body_has_init: ClassVar[bool] = False
    _prepared: ClassVar[_Form]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # This runs before any decorator, so an __init__ found here was written by the author and
        # not generated. A dataclass with slots is created twice; only the first time counts.
        if "_body_has_init" not in cls.__dict__:
            cls._body_has_init = "__init__" in cls.__dict__
        for base in cls.__bases__:  # the decorators of the bases have run by now
            if issubclass(base, Constructible):
                prepare(base)

    # Hidden from type checkers: `__init__` documents the arguments, and with a `__new__` that takes
    # anything pyright cannot infer the class of a task created inside a call.
    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **kwargs: Any) -> Self:
            form = cls.__dict__.get("_prepared") or prepare(cls)
            self = super().__new__(cls)
            if form is _Form.CALL:
                object.__setattr__(self, "_call", (args, kwargs))
            return self

    def serialize(self) -> tuple[Any, ...]:
        """The positional arguments that create an equal task.

        Override it to change what is stored. You may also return a mapping of arguments by name.

        Example:
            assert Add(1, 2).serialize() == (1, 2)
        """
        values = _values(self)
        parameters = _parameters(type(self))
        return tuple(values.get(name, parameters[name].default) for name in parameters)


def prepare(cls: type[Constructible]) -> _Form:
    """Turn a class with undecorated annotations into a dataclass; its bases must be prepared.

    Raises:
        RegistrationError: it cannot be a dataclass, for example because of a mutable default.
    """
    if "_prepared" not in cls.__dict__:
        form = _form(cls)
        if form is _Form.UNDECORATED:
            try:
                dataclasses.dataclass(cls)
            except (TypeError, ValueError) as error:
                raise RegistrationError(f"{_place(cls)}: {error}") from None
            form = _Form.DATACLASS
        if form is _Form.CALL:
            _refuse_mutable_defaults(cls)
        cls._prepared = form
    return cls._prepared


def _refuse_mutable_defaults(cls: type) -> None:
    """Refuse mutable defaults, as `dataclasses` does: all tasks would share one object."""
    for name, parameter in _signature(cls).parameters.items():
        if type(parameter.default).__hash__ is None:
            raise RegistrationError(
                f"{_place(cls)}: the default of argument {name}, {parameter.default!r:.100}, would "
                f"be shared by all tasks of a process: write {name}=None, and create the value in "
                "the body"
            )


class Arguments:
    """The constructor of a task class: its parameters, validation and serialisation.

    Attributes:
        is_model: whether the class is a pydantic model.
        are_fields: whether the arguments are annotated fields, not parameters of an ``__init__``.

    Args:
        name: name of the class in errors; by default its bare name.

    Raises:
        RegistrationError: a parameter has a type that cannot be serialised; the error names it.
    """

    def __init__(self, cls: type, name: str = "") -> None:
        prepare(cls)
        self.cls = cls
        self._name = name or cls.__name__
        self.is_model: bool = is_model(cls)
        self.are_fields: bool = prepare(cls) is not _Form.CALL
        self._signature = _signature(cls)
        self._parameters = _parameters(cls)
        self._by_position = any(p.kind is p.POSITIONAL_ONLY for p in self._parameters.values())
        self._plain = None if self._by_position else _plain_fields(cls, self._parameters)
        if self._plain is None:
            _refuse_unserialisable(cls, self._adapter)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        """The validator; of plain arguments, needed only for a value that does not fit."""
        return _adapter(self.cls, self._signature)

    def pack(self, task: Any) -> dict[str, Any]:
        """Validate the arguments of a task and pack them by name for the message.

        Raises:
            InvalidArgumentsError: a value does not fit its annotation or cannot be serialised.
        """
        if self._plain is not None and (plain := self._plain_values(task)) is not None:
            return plain
        packed: dict[str, Any] = {}
        problems: list[str] = []
        for name, value in dict(self._validate(self._serialized(task))).items():
            try:
                packed[name] = pack(value)
            except TypeError as error:
                problems.append(name + str(error).removeprefix("value"))
        if problems:
            raise InvalidArgumentsError(self._name, problems)
        return packed

    def build(self, values: Mapping[str, Any]) -> Any:
        """Create the task from arguments by name.

        Raises:
            InvalidArgumentsError: they do not fit the constructor.
        """
        if self.is_model:
            return self._validate(values)
        if self._are_plain(values):
            return self.cls(**values)
        validated = self._validate(values)
        if not self._by_position:
            return self.cls(**validated)
        bound = self._signature.bind_partial()
        bound.arguments.update(
            {name: validated[name] for name in self._parameters if name in validated}
        )
        return self.cls(*bound.args, **bound.kwargs)

    @property
    def names(self) -> list[str]:
        """The names of the arguments, in order."""
        return list(self._parameters)

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults in the signature, by name."""
        found = {name: parameter.default for name, parameter in self._parameters.items()}
        return {
            name: value for name, value in found.items() if value is not inspect.Parameter.empty
        }

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments; empty if one of their types has none."""
        try:
            return self._adapter.json_schema(by_alias=False)
        except pydantic.PydanticInvalidForJsonSchema:
            return {}

    def packed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Validate arguments by name and pack them, without calling the constructor.

        Raises:
            InvalidArgumentsError, TypeError: as `pack`.
        """
        return {name: pack(value) for name, value in dict(self._validate(values)).items()}

    def problems(self, values: Mapping[str, Any]) -> list[ErrorDetails]:
        """List what `build` would reject, without calling the constructor.

        The constructor itself may still raise.
        """
        try:
            self._adapter.validate_python(values, by_alias=True, by_name=True)
        except pydantic.ValidationError as error:
            return error.errors(include_url=False)
        return []

    def bind(self, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        """Create the task from positional and keyword arguments, as given on a command line.

        Raises:
            InvalidArgumentsError: there are too many, unknown, missing or wrong arguments.
        """
        if len(kwargs) > _MOST_NAMED:  # an error for each would cost seconds
            problem = f"takes at most {_MOST_NAMED} arguments by name, {len(kwargs)} given"
            raise InvalidArgumentsError(self._name, [problem])
        positional = [name for name, p in self._parameters.items() if p.kind is not p.KEYWORD_ONLY]
        if len(args) > len(positional):
            problem = f"takes {len(positional)} positional arguments, {len(args)} given"
            raise InvalidArgumentsError(self._name, [problem])
        values = dict(zip(positional, args, strict=False))
        doubled = sorted(values.keys() & kwargs.keys())
        if doubled:
            problem = f"{', '.join(doubled)}: given by position and by name"
            raise InvalidArgumentsError(self._name, [problem])
        return self.build({**values, **kwargs})

    def _plain_values(self, task: Any) -> dict[str, Any] | None:
        """Fast path of `pack`: the arguments if validation would not change them, or None."""
        packed: dict[str, Any] = {}
        for name, kind in self._plain or ():
            value: Any = getattr(task, name)
            packed[name] = value
            # The slow path refuses lone surrogates and packs longer integers differently.
            if (
                type(value) is not kind
                or (kind is int and not _LEAST_INT <= value <= _LARGEST_INT)
                or (kind is str and not value.isascii())
            ):
                return None
        return packed

    def _are_plain(self, values: Mapping[str, Any]) -> bool:
        """Fast path of `build`: whether validation would not change these arguments."""
        if self._plain is None or len(values) != len(self._plain):
            return False
        for name, kind in self._plain:
            value: Any = values.get(name)
            if type(value) is not kind or (kind is str and not value.isascii()):
                return False
        return True

    def _serialized(self, task: Any) -> dict[str, Any]:
        if type(task).serialize is Constructible.serialize:
            return _values(task)
        values = task.serialize()
        if isinstance(values, Mapping):
            return dict(values)
        if not isinstance(values, list | tuple):
            problem = f"serialize() must return a tuple or a mapping, not {type(values).__name__}"
            raise InvalidArgumentsError(self._name, [problem])
        if len(values) > len(self._parameters):
            problem = (
                f"serialize() returned {len(values)} values for {len(self._parameters)} arguments"
            )
            raise InvalidArgumentsError(self._name, [problem])
        return dict(zip(self._parameters, values, strict=False))

    def _validate(self, values: Mapping[str, Any]) -> Any:
        try:
            return self._adapter.validate_python(values, by_alias=True, by_name=True)
        except pydantic.ValidationError as error:
            problems = [
                f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}"
                for item in error.errors(include_url=False, include_input=False)
            ]
            raise InvalidArgumentsError(self._name, problems) from None


_MOST_NAMED = 1000
_PLAIN = (bool, int, float, str, bytes)
_LEAST_INT, _LARGEST_INT = -(2**63), 2**64 - 1


def _plain_fields(cls: Any, parameters: Mapping[str, Any]) -> tuple[tuple[str, Any], ...] | None:
    """Name and type of each argument of a dataclass that has only plain ones; otherwise None.

    Most classes are like this. Values of exactly these types need no validation.
    """
    if prepare(cls) is not _Form.DATACLASS or cls.serialize is not Constructible.serialize:
        return None
    hints = _hints(cls)
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    are_plain = all(any(hints.get(name) is kind for kind in _PLAIN) for name in names)
    if not are_plain or names != list(parameters):
        return None
    return tuple((name, hints[name]) for name in names)


def _values(task: Any) -> dict[str, Any]:
    """The constructor arguments of an instance, by name."""
    form = prepare(type(task))
    if form is _Form.MODEL:
        return dict(task)
    if form is _Form.DATACLASS:
        return {f.name: getattr(task, f.name) for f in dataclasses.fields(task) if f.init}
    args, kwargs = task._call
    signature = _signature(type(task))
    bound = signature.bind(*args, **kwargs)
    values = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            values.update(values.pop(name, {}))
    return values


class _Form(Enum):
    MODEL = auto()
    DATACLASS = auto()
    UNDECORATED = auto()
    CALL = auto()


def _form(cls: type) -> _Form:
    """Which of the four kinds a class is; the nearest base that decides wins."""
    if is_model(cls):
        return _Form.MODEL
    if any(base.__dict__.get("_body_has_init") for base in cls.__mro__):
        decorated = next((b for b in cls.__mro__ if _is_decorated(b)), None)
        own = next(b for b in cls.__mro__ if b.__dict__.get("_body_has_init"))
        # A dataclass derived from the class with the __init__ has generated a new one. The other
        # way round, the hand-written __init__ replaces the generated one.
        generated = decorated is not None and decorated is not own and issubclass(decorated, own)
        return _Form.DATACLASS if generated else _Form.CALL
    if any(_is_undecorated(base) for base in cls.__mro__):
        return _Form.UNDECORATED
    return _Form.DATACLASS if dataclasses.is_dataclass(cls) else _Form.CALL


def _is_decorated(cls: type) -> bool:
    params = cls.__dict__.get("__dataclass_params__")
    return params is not None and params.init


def _is_undecorated(cls: type) -> bool:
    if "__dataclass_params__" in cls.__dict__ or not issubclass(cls, Constructible):
        return False
    annotations = inspect.get_annotations(cls)
    return any("ClassVar" not in str(annotation) for annotation in annotations.values())


def _parameters(cls: Any) -> dict[str, inspect.Parameter]:
    """The named parameters in order; for a pydantic model, its fields."""
    if is_model(cls):
        kind = inspect.Parameter.KEYWORD_ONLY
        return {name: inspect.Parameter(name, kind) for name in cls.model_fields}
    return {
        name: parameter
        for name, parameter in _signature(cls).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


def _signature(cls: Any) -> inspect.Signature:
    if is_model(cls):
        return inspect.signature(cls)
    if cls.__init__ is object.__init__:
        return inspect.Signature()
    signature = inspect.signature(cls.__init__)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _adapter(cls: type, signature: inspect.Signature) -> TypeAdapter[Any]:
    """The validator of the arguments: the model itself, or a typed dict of the parameters.

    A typed dict rather than a model, because a model cannot have fields named ``json`` or ``copy``.
    """
    if is_model(cls):
        return _type_adapter(cls, cls)
    _refuse_nameless(cls, signature)
    hints = _hints(cls)
    fields: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        hint = hints.get(name, Any)
        if isinstance(hint, dataclasses.InitVar):
            raise RegistrationError(
                f"{_place(cls)}: field {name} is an InitVar, whose value is lost after "
                "construction; write an __init__ instead"
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = {"extra_items": hint}
        else:
            fields[name] = hint if parameter.default is parameter.empty else NotRequired[hint]
    make: Any = TypedDict
    shape = make(cls.__name__, fields, **extra)
    if not extra:
        shape.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    return _type_adapter(cls, shape)


def _type_adapter(cls: type, shape: Any) -> TypeAdapter[Any]:
    try:
        adapter: TypeAdapter[Any] = pydantic.TypeAdapter(shape)
        adapter.rebuild()  # reports a name in a model that cannot be resolved
        return adapter
    except (pydantic.PydanticUserError, NameError) as error:
        if (found := _unknown_type(cls)) is not None:
            raise RegistrationError(found) from None
        reason = str(error).split("\n")[0]
        raise RegistrationError(
            f"{_place(cls)}: its arguments cannot be serialised: {reason}"
        ) from None


def _unknown_type(cls: type) -> str | None:
    """The problem, if an argument has a type that pydantic does not know; otherwise None."""
    hints = _hints(cls)
    for name, hint in ((name, hints[name]) for name in _parameters(cls) if name in hints):
        try:
            pydantic.TypeAdapter(hint)
        except pydantic.PydanticUserError as error:
            if error.code == "schema-for-unknown-type":
                shown = hint.__qualname__ if inspect.isclass(hint) else hint
                return (
                    f"{_place(cls)}: argument {name} cannot be serialised ({shown}); use plain "
                    "data, a dataclass or a pydantic model; open a client with Depends"
                )
        except NameError:
            continue
    return None


def _refuse_nameless(cls: type, signature: inspect.Signature) -> None:
    """Refuse a constructor whose arguments cannot be stored by name."""
    kinds = {parameter.kind: name for name, parameter in signature.parameters.items()}
    if name := kinds.get(inspect.Parameter.VAR_POSITIONAL):
        raise RegistrationError(
            f"{_place(cls)}: *{name} of __init__ cannot be stored by name; declare each argument"
        )
    name = kinds.get(inspect.Parameter.POSITIONAL_ONLY)
    if name and inspect.Parameter.VAR_KEYWORD in kinds:
        raise RegistrationError(
            f"{_place(cls)}: positional-only {name} of __init__ may clash with a name in its "
            "keyword arguments; drop the / or the **"
        )


def _hints(cls: type) -> dict[str, Any]:
    constructor: Any = cls
    if constructor.__init__ is object.__init__:
        return {}
    source = cls if prepare(cls) is _Form.DATACLASS else constructor.__init__
    try:
        return typing.get_type_hints(source, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise RegistrationError(
            f"{_place(cls)}: an annotation cannot be resolved: {error}; "
            "import the name outside `if TYPE_CHECKING`"
        ) from None


def _refuse_unserialisable(cls: type, adapter: TypeAdapter[Any]) -> None:
    """Refuse a class with an argument that would not be equal after `pack` and `build`."""
    for name, field in _fields(adapter.core_schema).items():
        if reason := _unserialisable(field):
            raise RegistrationError(
                f"{_place(cls)}: argument {name} cannot be serialised ({reason}); "
                "use plain data, a dataclass or a pydantic model"
            )


def _unserialisable(node: Any) -> str | None:
    """Why a part of a pydantic core schema cannot be serialised, or None."""
    if isinstance(node, list | tuple):
        return next((reason for child in node if (reason := _unserialisable(child))), None)
    if not isinstance(node, Mapping):
        return None
    kind = node.get("type")
    if kind in ("callable", "is-subclass", "generator"):
        return f"{kind} schema"
    if kind == "is-instance" and not _keeps_class(node["cls"]):
        return f"instance of {node['cls'].__qualname__}"
    if kind == "enum":
        return _unserialisable_member(node["members"])
    if kind == "dataclass-field" and node.get("init_only"):
        return f"InitVar {node['name']}"
    children = (child for key, child in node.items() if key not in ("metadata", "serialization"))
    return next((reason for child in children if (reason := _unserialisable(child))), None)


def _keeps_class(cls: Any) -> bool:
    # A value annotated with an abstract collection such as Sequence arrives as a list.
    return travels(cls) if inspect.isclass(cls) else issubclass(list, cls)


def _unserialisable_member(members: Sequence[Enum]) -> str | None:
    for member in members:
        try:
            if decode(encode(pack(member))) == member.value:
                continue
        except TypeError:
            pass
        return f"value of {member!s} is a {type(member.value).__qualname__}"
    return None


def _fields(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "fields" not in schema:
        if "schema" not in schema:
            return {}
        schema = schema["schema"]
    fields = schema["fields"]
    return fields if isinstance(fields, Mapping) else {}


def _place(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
