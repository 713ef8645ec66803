"""How a task class is built from its arguments, and how they travel.

Four forms of class are accepted: ``@dataclass``; a pydantic model; annotated but undecorated
(made a dataclass on first use); an own ``__init__`` (its call is recorded and replayed).
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, ClassVar, NotRequired, cast

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from nonet.errors import InvalidArgumentsError, RegistrationError
from nonet.message import pack

_UNTRAVELLED = {"callable", "is-instance", "is-subclass", "generator"}
# A Path is_instance(Path) only to Python code that is strict: what travels takes the other branch.
_NOT_FOR_TRAVEL = {"metadata", "serialization", "python_schema", "strict_schema"}


class Constructible:
    """Mixin of the task bases: remembers how an instance was made."""

    _body_has_init: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Looked at before any decorator runs: a generated __init__ is not an own one.
        cls._body_has_init = "__init__" in cls.__dict__

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        prepare(cls)
        self = super().__new__(cls)
        if not issubclass(cls, BaseModel):
            object.__setattr__(self, "_call", (args, kwargs))
        return self

    def serialize(self) -> tuple[Any, ...]:
        """The positional arguments that make an equal task; override it to travel differently."""
        values = _values(self)
        return tuple(values[name] for name in Arguments(type(self)).names if name in values)


def prepare(cls: type) -> None:
    """Make an annotated but undecorated class, and such bases of it, a dataclass."""
    if _form(cls) is not _Form.UNDECORATED:
        return
    for base in reversed(cls.__mro__):
        if _is_undecorated(base):
            dataclasses.dataclass(base)


class Arguments:
    """The constructor of one task class: its parameters, validation and transport.

    Raises:
        RegistrationError: a parameter has a type that cannot travel; it is named.
    """

    def __init__(self, cls: type) -> None:
        prepare(cls)
        self.cls = cls
        self.is_model = issubclass(cls, BaseModel)
        self._signature = _signature(cls)
        self.names = [name for name, p in self._signature.parameters.items() if _is_named(p)]
        self._by_position = any(
            p.kind is p.POSITIONAL_ONLY for p in self._signature.parameters.values()
        )
        self._adapter: TypeAdapter[Any] = _adapter(cls, self._signature)
        _refuse_untravelled(cls, self._adapter)

    def pack(self, task: Any) -> dict[str, Any]:
        """The task's arguments by name, validated and packed for the envelope.

        Raises:
            InvalidArgumentsError: a value does not fit its annotation or cannot travel.
        """
        values = self._serialized(task)
        validated = values if self.is_model else self._validate(values)
        try:
            return cast(dict[str, Any], pack(validated))
        except TypeError as error:
            reason = str(error).removeprefix("value")
            raise InvalidArgumentsError(self.cls.__name__, [reason]) from None

    def build(self, values: Mapping[str, Any]) -> Any:
        """The task made of arguments by name.

        Raises:
            InvalidArgumentsError: they do not fit the constructor.
        """
        if self.is_model:
            return self._validate(values)
        validated = self._validate(values)
        if not self._by_position:
            return self.cls(**validated)
        bound = self._signature.bind_partial()
        bound.arguments.update({name: validated[name] for name in self.names if name in validated})
        return self.cls(*bound.args, **bound.kwargs)

    def bind(self, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        """The task made of a call's arguments, as a command line gives them.

        Raises:
            InvalidArgumentsError: too many, unknown, missing or wrong arguments.
        """
        positional = [
            name
            for name in self.names
            if self._signature.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        if len(args) > len(positional):
            problem = f"takes {len(positional)} positional arguments, {len(args)} given"
            raise InvalidArgumentsError(self.cls.__name__, [problem])
        values = dict(zip(positional, args, strict=False))
        doubled = sorted(values.keys() & kwargs.keys())
        if doubled:
            problem = f"{', '.join(doubled)}: given by position and by name"
            raise InvalidArgumentsError(self.cls.__name__, [problem])
        return self.build({**values, **kwargs})

    def _serialized(self, task: Any) -> dict[str, Any]:
        if type(task).serialize is Constructible.serialize:
            return _values(task)
        try:
            return dict(self._signature.bind(*task.serialize()).arguments)
        except TypeError as error:
            raise InvalidArgumentsError(self.cls.__name__, [f"serialize(): {error}"]) from None

    def _validate(self, values: Mapping[str, Any]) -> Any:
        try:
            return self._adapter.validate_python(values, by_alias=True, by_name=True)
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}"
                for item in error.errors(include_url=False, include_input=False)
            ]
            raise InvalidArgumentsError(self.cls.__name__, problems) from None


def _values(task: Any) -> dict[str, Any]:
    """The constructor arguments of an instance, by name."""
    form = _form(type(task))
    if form is _Form.MODEL:
        return {name: getattr(task, name) for name in type(task).model_fields}
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
    """Which of the four forms a class has, by the nearest base that decides it."""
    if issubclass(cls, BaseModel):
        return _Form.MODEL
    if any(base.__dict__.get("_body_has_init") for base in cls.__mro__):
        decorated = next((b for b in cls.__mro__ if _is_decorated(b)), None)
        own = next(b for b in cls.__mro__ if b.__dict__.get("_body_has_init"))
        # A dataclass below the own __init__ generated its own; the other way round it did not.
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


def _is_named(parameter: inspect.Parameter) -> bool:
    return parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)


def _signature(cls: type) -> inspect.Signature:
    if issubclass(cls, BaseModel):
        return inspect.signature(cls)
    if cls.__init__ is object.__init__:
        return inspect.Signature()
    signature = inspect.signature(cls.__init__)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _adapter(cls: type, signature: inspect.Signature) -> TypeAdapter[Any]:
    """What validates the arguments: the model itself, or a typed dict of the parameters.

    A typed dict, because fields of a model may not be called ``json`` or ``copy``.
    """
    if issubclass(cls, BaseModel):
        return TypeAdapter(cls)
    hints = _hints(cls)
    fields: dict[str, Any] = {}
    extra: typing.Literal["allow", "forbid"] = "forbid"
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise RegistrationError(
                f"{_place(cls)}: *{name} of __init__ cannot be stored by name; "
                "declare the arguments one by one"
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
            continue
        hint = hints.get(name, Any)
        if isinstance(hint, dataclasses.InitVar):
            raise RegistrationError(
                f"{_place(cls)}: field {name} is an InitVar, whose value is gone after "
                "construction; give the class an own __init__"
            )
        fields[name] = hint if parameter.default is parameter.empty else NotRequired[hint]
    make: Any = TypedDict
    shape = make(cls.__name__, fields)
    shape.__pydantic_config__ = ConfigDict(extra=extra)
    try:
        return TypeAdapter(shape)
    except PydanticUserError as error:
        reason = str(error).split("\n")[0]
        raise RegistrationError(
            f"{_place(cls)}: its arguments cannot be serialised: {reason}"
        ) from None


def _hints(cls: type) -> dict[str, Any]:
    constructor: Any = cls
    source = cls if _form(cls) is _Form.DATACLASS else constructor.__init__
    try:
        return typing.get_type_hints(source, include_extras=True)
    except NameError as error:
        raise RegistrationError(
            f"{_place(cls)}: an annotation cannot be resolved: {error}; "
            "import the name outside `if TYPE_CHECKING`"
        ) from None
    except TypeError:
        return {}


def _refuse_untravelled(cls: type, adapter: TypeAdapter[Any]) -> None:
    def search(node: Any) -> str | None:
        if isinstance(node, Mapping):
            kind = node.get("type")
            if kind in _UNTRAVELLED:
                return str(kind)
            travelling = (child for key, child in node.items() if key not in _NOT_FOR_TRAVEL)
            return next((hit for child in travelling if (hit := search(child))), None)
        if isinstance(node, list | tuple):
            return next((hit for child in node if (hit := search(child))), None)
        return None

    schema: Mapping[str, Any] = adapter.core_schema
    for name, field in _fields(schema).items():
        if hit := search(field):
            raise RegistrationError(
                f"{_place(cls)}: argument {name} cannot be serialised ({hit} schema); "
                "use plain data, a dataclass or a pydantic model"
            )


def _fields(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "fields" not in schema:
        if "schema" not in schema:
            return {}
        schema = schema["schema"]
    fields = schema["fields"]
    return fields if isinstance(fields, Mapping) else {}


def _place(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
