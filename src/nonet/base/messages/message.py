"""Encode and decode the envelopes, results and errors of tasks.

The format is MessagePack with a closed list of extension types: no pickle, and no import by name.
Lua never decodes an envelope. Values that scripts need are stored beside it.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, TypeVar, get_type_hints

import msgspec
from msgspec.msgpack import Ext
from typing_extensions import TypedDict

from nonet.base import late_pydantic as pydantic
from nonet.base.errors import MalformedMessageError
from nonet.base.messages.encryption import EXTENSION, Encrypted
from nonet.base.messages.formats import FORMAT
from nonet.base.messages.signing import Signer, unsigned
from nonet.base.plain import is_model
from nonet.base.versions import is_version

if TYPE_CHECKING:  # a program whose tasks have plain arguments does without pydantic
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

HARD_LIMIT_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64
# Bounds memory: an element takes one byte in a message, but up to 90 bytes once decoded. A message
# of fewer bytes than this cannot exceed the limit, so its elements are not counted.
MAX_ELEMENTS = 100_000
# The document and its mapping of arguments are two more levels.
_MAX_DECODED_DEPTH = MAX_DEPTH + 2
_CONTAINERS = (dict, list, tuple)
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_LONGEST_NAME = 255
_Moment = TypeVar("_Moment", datetime, time)
_END_OF_TIME = 253_402_300_800  # the year 10000


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """The message of a task. Fields are encoded in this order; only append new ones.

    Every version begins with version, id and name. A worker that cannot read the other fields can
    then still hand the task on.

    Attributes:
        version: the format of the task, see `nonet.base.messages.formats`.
        id: id of the task.
        name: full task name, ``category:Class``.
        args: keyword arguments of the constructor, packed by `pack`; or encrypted, see
            `nonet.base.messages.documents`.
        labels: the caller's labels.
        submitted: time of the first submission by the client's clock, Unix seconds. Only people
            read it.
        parent: id of the task that submitted this one, or empty.
        group: id of the callback group whose callback this is, or empty.
        min_version: oldest version (PEP 440) of the distribution that provides the class which may
            run the task; empty: any.
        trace: W3C context of the span that submitted the task, see `nonet.telemetry.tracing`;
            empty: not traced.
        resubmitted_from: row of the dead letter that this task repeats; 0: none.
        is_step: whether it is a step of a workflow.

    Empty fields at the end, from `trace` on, are not encoded.
    """

    version: int
    id: str
    name: str
    args: dict[str, Any]
    labels: dict[str, Any]
    submitted: float
    parent: str = ""
    group: str = ""
    min_version: str = ""
    trace: str = ""
    resubmitted_from: int = 0
    is_step: bool = False


class _Head(msgspec.Struct, array_like=True, frozen=True):
    """The first fields of an envelope of any version. The decoder skips the others."""

    version: int
    id: str
    name: str


class Usage(msgspec.Struct, array_like=True, frozen=True):
    """The resources that an attempt used; None: unknown. Only append new fields.

    Attributes:
        wall: seconds from its start to its end.
        cpu: seconds of CPU time, measured only if the attempt had a process of its own.
        rss: peak memory of this process, in bytes.

    Example:
        usage = (await handle.status()).usage
        if usage is not None and usage.rss is not None:
            print(f"{usage.rss / 2**20:.0f} MiB")
    """

    wall: float | None = None
    cpu: float | None = None
    rss: int | None = None

    def __iter__(self) -> Iterator[tuple[str, float | None]]:
        """Yield name and value of each field as a pydantic model does: FastAPI expects that."""
        return iter(msgspec.structs.asdict(self).items())

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Describe the fields to pydantic, which does not support msgspec."""
        hints = {name: NotRequired[hint] for name, hint in get_type_hints(cls).items()}
        make: Any = TypedDict
        fields = handler.generate_schema(make(cls.__name__, hints))
        return pydantic.core_schema.no_info_wrap_validator_function(
            lambda value, check: value if isinstance(value, cls) else cls(**check(value)),
            fields,
            serialization=pydantic.core_schema.plain_serializer_function_ser_schema(
                msgspec.structs.asdict, return_schema=fields
            ),
        )


class ResultDocument(msgspec.Struct, array_like=True, frozen=True):
    """The result of a task that has ended. Only append new fields.

    Attributes:
        name: full task name.
        attempt: number of attempts that were used.
        finished: time of the end by the worker's clock, Unix seconds. Only people read it.
        value: the packed result of a task that is done.
        error_type, error: exception class and text of the last failure.
        reason: why the task is dead, see `nonet.rules.outcomes.Reason`.
        note: why a task that is done has no value, or empty.
        usage: resources used by the last attempt, if known.
        crashes: number of processes that died while running no other task.
        deaths: number of workers that died while running it.
        traceback: traceback of the last failure, see `nonet.rules.tracebacks`.
        progress, doing: fraction and text of the last report of its last attempt, if there is one.
    """

    name: str
    attempt: int
    finished: float
    value: Any = None
    error_type: str = ""
    error: str = ""
    reason: str = ""
    note: str = ""
    usage: Usage | None = None
    crashes: int = 0
    deaths: int = 0
    traceback: str = ""
    progress: float | None = None
    doing: str = ""


class ErrorDocument(msgspec.Struct, array_like=True, frozen=True):
    """The error of a failed attempt; a dying task keeps it for its row in SQL. Only append fields.

    Attributes:
        reason: see `nonet.rules.outcomes.Reason`.
        error_type, error, traceback: the failure, see `nonet.rules.outcomes.ErrorSummary`.
        attempt: number of attempts that were used.
        at: time of the failure by the worker's clock, Unix seconds.
        usage: resources used by this attempt, if known.
    """

    reason: str
    error_type: str
    error: str
    traceback: str
    attempt: int
    at: float
    usage: Usage | None = None


class Reference(msgspec.Struct, frozen=True):
    """Stands for the result of a step among the packed arguments of another step.

    Attributes:
        place: place of the step in its workflow.
        added: the results of the steps that it added, instead of its own.
    """

    place: str
    added: bool = False


class _Codes:
    """Extension codes of `pack`. They are part of the wire format: never renumber them."""

    BIG_INT: ClassVar[int] = 1
    TEXT: ClassVar[int] = 2  # with lone surrogates: not valid UTF-8
    DATETIME: ClassVar[int] = 3
    DATE: ClassVar[int] = 4
    TIME: ClassVar[int] = 5
    TIMEDELTA: ClassVar[int] = 6
    DECIMAL: ClassVar[int] = 7
    UUID: ClassVar[int] = 8
    PATH: ClassVar[int] = 9
    PATTERN: ClassVar[int] = 10
    ENCRYPTED: ClassVar[int] = EXTENSION  # 11
    REFERENCE: ClassVar[int] = 12


def pack(value: Any) -> Any:
    """Convert `value` to types that MessagePack can encode.

    Besides plain data it accepts datetime (with its offset), date, time, timedelta, Decimal, UUID,
    Path (any bytes), compiled patterns, enums (as their value), integers of any length, text with
    lone surrogates, sets and tuples (as lists), and dataclasses and pydantic models (as mappings).

    Raises:
        TypeError: a value has another type; the message says where it is.

    Example:
        >>> pack({"at": Decimal("1.10"), "n": 3})["n"]
        3
    """
    if value is None:  # what most tasks return
        return None
    return _pack(value, "value", 0)


def encode(value: Any) -> bytes:
    """Encode a packed value, or one of the documents of this module.

    Raises:
        TypeError: it has more than `MAX_ELEMENTS` elements, so `decode` would refuse it.
    """
    data = _ENCODER.encode(value)
    if type(value) is Envelope and not value.is_step:
        # Leave out the empty fields at the end, one byte each: most tasks have none of them.
        empty = 1 if value.resubmitted_from else 2 if value.trace else 3
        data = bytes((data[0] - empty,)) + data[1:-empty]
    if len(data) > MAX_ELEMENTS and _has_too_many_elements(data):
        raise TypeError(f"the value has more than {MAX_ELEMENTS:,} elements")
    return data


def is_id(text: str) -> bool:
    """Return whether `text` can be a task id: 1 to 128 printable ASCII characters, no blanks.

    >>> is_id("b7-1"), is_id("b 7"), is_id("")
    (True, False, False)
    """
    return _ID.fullmatch(text) is not None


def decode(data: bytes, *, limit_bytes: int = HARD_LIMIT_BYTES) -> Any:
    """Decode a value; its extension types are restored.

    Raises:
        MalformedMessageError: `data` is too long, too deep or not MessagePack, or has too many
            elements or an unknown extension type.
    """
    _check_length(data, limit_bytes)
    return _decode(_VALUE_DECODER, data)


def decode_envelope(data: bytes) -> Envelope:
    """Decode an envelope without verifying its signature.

    If it has a newer version that cannot be read here, only version, id and name are filled.

    Raises:
        MalformedMessageError: `data` is too long, or not an envelope.
    """
    _check_length(data, HARD_LIMIT_BYTES)
    return _envelope(unsigned(data))


def open_envelope(data: bytes, id: str, signer: Signer, *, limit_bytes: int) -> Envelope:
    """Check the length and signature of a message, then decode the envelope of task `id`.

    An envelope of a newer version may be incomplete, see `decode_envelope`.

    Raises:
        MalformedMessageError: `data` is too long or not an envelope, `signer` rejects the
            signature, or the envelope belongs to another task.
    """
    if len(data) > limit_bytes:
        _check_length(data, limit_bytes)
    envelope = _envelope(signer.opened(data))
    if envelope.id != id:
        raise MalformedMessageError(f"the message belongs to another task, {envelope.id}")
    return envelope


def decode_result(data: bytes) -> ResultDocument:
    """Decode a result document.

    Raises:
        MalformedMessageError: `data` is not a result document.
    """
    _check_length(data, HARD_LIMIT_BYTES)
    document: ResultDocument = _decode(_RESULT_DECODER, data)
    return document


def decode_error(data: bytes) -> ErrorDocument:
    """Decode an error document.

    Raises:
        MalformedMessageError: `data` is not an error document.
    """
    _check_length(data, HARD_LIMIT_BYTES)
    document: ErrorDocument = _decode(_ERROR_DECODER, data)
    return document


def _check_length(data: bytes, limit_bytes: int) -> None:
    if len(data) > limit_bytes:
        raise MalformedMessageError(f"message of {len(data)} bytes exceeds {limit_bytes} bytes")


def _envelope(data: bytes) -> Envelope:
    try:
        envelope: Envelope = _decode(_ENVELOPE_DECODER, data)
        problem = _problem_of(envelope)
        if problem:
            raise MalformedMessageError(f"message of {len(data)} bytes: {problem}")
    except MalformedMessageError:
        newer = _newer(data)
        if newer is None:
            raise
        return newer
    return envelope


def _newer(data: bytes) -> Envelope | None:
    """Decode version, id and name of an envelope of a newer version; None if it is not one."""
    try:
        head = _HEAD_DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    envelope = Envelope(head.version, head.id, head.name, {}, {}, 0.0)
    return envelope if head.version > FORMAT and not _problem_of(envelope) else None


def _problem_of(envelope: Envelope) -> str:
    """Return why the values of an envelope are invalid, without quoting them; empty if valid."""
    if envelope.version < 1:
        return "its version is invalid"
    if not _ID.fullmatch(envelope.id):
        return "its id is invalid"
    if not 1 <= len(envelope.name) <= _LONGEST_NAME or not envelope.name.isprintable():
        return "its name is invalid"
    parent, group = envelope.parent, envelope.group
    if (parent and not is_id(parent)) or (group and not is_id(group)):
        return "the id of its parent or group is invalid"
    if not 0 <= envelope.submitted < _END_OF_TIME:  # refuses NaN too
        return "its time of submission is invalid"
    if envelope.min_version and not is_version(envelope.min_version):
        return "its min_version is invalid"
    return ""


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    if len(data) > MAX_ELEMENTS and _has_too_many_elements(data):
        raise MalformedMessageError(
            f"message of {len(data)} bytes has more than {MAX_ELEMENTS} elements"
        )
    try:
        document = decoder.decode(data)
    except msgspec.DecodeError as error:
        raise MalformedMessageError(f"message of {len(data)} bytes: {error}") from None
    # Extension types raise errors of many classes (a pattern: re.error). Do not quote their text:
    # it contains the invalid value, which may be an argument.
    except Exception as error:
        kind = type(error).__name__
        raise MalformedMessageError(
            f"message of {len(data)} bytes: a value in it cannot be read ({kind})"
        ) from None
    # Fast path: each level begins with a byte that starts a list or mapping. Few messages have
    # enough such bytes to be too deep.
    may_begin = len(data.translate(None, _BEGIN_NOTHING))
    if may_begin > _MAX_DECODED_DEPTH and _is_deep(document):
        raise MalformedMessageError(f"message of {len(data)} bytes is nested too deeply")
    return document


def references(packed: Any) -> Iterator[Reference]:
    """Yield the references in decoded arguments, in their order."""
    if isinstance(packed, Reference):
        yield packed
    else:
        for item in _children(packed):
            yield from references(item)


def resolved(packed: Any, value_of: Callable[[Reference], Any]) -> Any:
    """Replace the references in decoded arguments."""
    if isinstance(packed, Reference):
        return value_of(packed)
    if isinstance(packed, dict):
        return {name: resolved(item, value_of) for name, item in packed.items()}
    if isinstance(packed, list):
        return [resolved(item, value_of) for item in packed]
    return packed


def _has_too_many_elements(data: bytes) -> bool:
    """Return whether encoded data has more than `MAX_ELEMENTS` elements, without decoding it.

    In valid data the elements follow each other, whatever their nesting. For invalid data the
    answer does not matter, because the decoder refuses it.
    """
    at, end, room, lengths, widths = 0, len(data), MAX_ELEMENTS, _LENGTHS, _WIDTHS
    while at < end:
        if not room:
            return True
        room -= 1
        first = data[at]
        at += lengths[first]
        width = widths[first]
        if width:
            at += int.from_bytes(data[at - width : at], "big") + (first in _EXTENSIONS)
    return False


def _is_deep(document: Any) -> bool:
    """Return whether decoded data is too deep for `pack`; even its ``repr()`` could fail."""
    level = [document]
    for _ in range(_MAX_DECODED_DEPTH):
        level = [
            child for item in level for child in _children(item) if isinstance(child, _CONTAINERS)
        ]
        if not level:
            return False
    return True


def _children(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return itertools.chain(item.keys(), item.values())
    if isinstance(item, msgspec.Struct):
        return msgspec.structs.astuple(item)
    return item if isinstance(item, _CONTAINERS) else ()


def travels(cls: type) -> bool:
    """Return whether instances of a class keep their type through `pack` and `decode`."""
    return cls in _PACKERS or issubclass(cls, PurePath | dict) or _is_secret(cls)


def _pack(value: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise TypeError(f"{where} is nested deeper than {MAX_DEPTH} levels")
    packer = _PACKERS.get(type(value)) or _inherited_packer(value)
    if packer is None:
        raise TypeError(
            f"{where} is a {type(value).__qualname__}, which cannot be serialised: use plain "
            "data, a dataclass or a pydantic model"
        )
    return packer(value, where, depth)


def _inherited_packer(value: Any) -> Callable[[Any, str, int], Any] | None:
    if isinstance(value, enum.Enum):
        return lambda v, where, depth: _pack(v.value, where, depth)
    if is_model(type(value)):
        if isinstance(value, pydantic.RootModel):
            return lambda v, where, depth: _pack(v.root, where, depth)
        return lambda v, where, depth: _pack(dict(v), where, depth)
    if _is_secret(type(value)):
        return lambda v, where, depth: _pack(v.get_secret_value(), where, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _pack_dataclass
    return next((_PACKERS[base] for base in type(value).__mro__ if base in _PACKERS), None)


def _is_secret(cls: type) -> bool:
    if "pydantic" not in sys.modules:
        return False
    return issubclass(cls, pydantic.SecretStr | pydantic.SecretBytes)


def _pack_dataclass(value: Any, where: str, depth: int) -> Any:
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    return _pack(fields, where, depth)


def _pack_items(value: Any, where: str, depth: int) -> Any:
    return [_pack(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]


def _pack_set(value: Any, where: str, depth: int) -> Any:
    """Sort the items, because Python orders a set differently in each process."""
    return sorted(_pack_items(value, where, depth), key=encode)


def _pack_mapping(value: Any, where: str, depth: int) -> Any:
    return {
        _pack_key(key, f"key of {where}", depth + 1): _pack(item, f"{where}[{key!r}]", depth + 1)
        for key, item in value.items()
    }


class _Key:
    """A hashable wrapper, so that an `Ext` can be a key of a mapping."""

    __slots__ = ("ext",)

    def __init__(self, ext: Ext) -> None:
        self.ext = ext


def _pack_key(key: Any, where: str, depth: int) -> Any:
    packed = _hashable(_pack(key, where, depth))
    if isinstance(packed, dict):
        raise TypeError(f"{where} is a {type(key).__qualname__}, which cannot be a key")
    return packed


def _hashable(packed: Any) -> Any:
    """Make a packed key hashable: lists become tuples, at every level."""
    if isinstance(packed, Ext):
        return _Key(packed)
    return tuple(map(_hashable, packed)) if isinstance(packed, list) else packed


def _pack_int(value: int, where: str, depth: int) -> Any:
    if -(2**63) <= value < 2**64:
        return int(value)
    # Not as decimal digits, because Python refuses to convert more than 4,300 of them.
    size = value.bit_length() // 8 + 1
    return Ext(_Codes.BIG_INT, value.to_bytes(size, "big", signed=True))


def _pack_text(value: str, where: str, depth: int) -> Any:
    if value.isascii():
        return str(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        return Ext(_Codes.TEXT, value.encode("utf-8", "surrogatepass"))
    return str(value)


def _pack_path(value: PurePath, where: str, depth: int) -> Any:
    try:
        return Ext(_Codes.PATH, os.fsencode(value))
    except UnicodeEncodeError:
        raise TypeError(f"{where} is a path that no file can have") from None


def _as(code: int, to_text: Callable[[Any], str]) -> Callable[[Any, str, int], Any]:
    return lambda value, where, depth: Ext(code, to_text(value).encode("utf-8", "surrogatepass"))


def _plain(value: Any, where: str, depth: int) -> Any:
    return value


def _moment(value: datetime | time) -> str:
    """Format in ISO 8601; a ``~`` at the end marks a naive time with ``fold=1``."""
    is_marked = value.fold and value.tzinfo is None
    return f"{value.isoformat()}~" if is_marked else value.isoformat()


def _unmoment(kind: type[_Moment], text: str) -> _Moment:
    made = kind.fromisoformat(text.removesuffix("~"))
    return made.replace(fold=1) if text.endswith("~") else made


def _seconds(value: timedelta) -> str:
    return f"{value.days},{value.seconds},{value.microseconds}"


def _pattern(value: re.Pattern[Any]) -> str:
    kind = "b" if isinstance(value.pattern, bytes) else "s"
    text = value.pattern.decode("latin-1") if kind == "b" else value.pattern
    return f"{kind}{value.flags}:{text}"


def _unpattern(text: str) -> re.Pattern[Any]:
    head, _, pattern = text.partition(":")
    flags = int(head[1:]) & ~re.DEBUG  # DEBUG prints the pattern
    if head[0] == "b":
        return re.compile(pattern.encode("latin-1"), flags)
    return re.compile(pattern, flags)


_PACKERS: dict[type, Callable[[Any, str, int], Any]] = {
    type(None): _plain,
    bool: _plain,
    float: _plain,
    bytes: _plain,
    bytearray: lambda value, where, depth: bytes(value),
    int: _pack_int,
    str: _pack_text,
    list: _pack_items,
    tuple: _pack_items,
    set: _pack_set,
    frozenset: _pack_set,
    dict: _pack_mapping,
    datetime: _as(_Codes.DATETIME, _moment),
    date: _as(_Codes.DATE, date.isoformat),
    time: _as(_Codes.TIME, _moment),
    timedelta: _as(_Codes.TIMEDELTA, _seconds),
    Decimal: _as(_Codes.DECIMAL, str),
    uuid.UUID: _as(_Codes.UUID, str),
    PurePath: _pack_path,
    re.Pattern: _as(_Codes.PATTERN, _pattern),
    Reference: _as(_Codes.REFERENCE, lambda value: f"{'*' * value.added}{value.place}"),
    Encrypted: _plain,
}

_UNPACKERS: dict[int, Callable[[str], Any]] = {
    _Codes.TEXT: str,
    _Codes.DATETIME: lambda text: _unmoment(datetime, text),
    _Codes.DATE: date.fromisoformat,
    _Codes.TIME: lambda text: _unmoment(time, text),
    _Codes.TIMEDELTA: lambda text: timedelta(*map(int, text.split(","))),
    _Codes.DECIMAL: Decimal,
    _Codes.UUID: uuid.UUID,
    _Codes.PATTERN: _unpattern,
    _Codes.REFERENCE: lambda text: Reference(text.removeprefix("*"), text.startswith("*")),
}


def _unpack(code: int, data: memoryview) -> Any:
    if code == _Codes.BIG_INT:
        return int.from_bytes(data, "big", signed=True)
    if code == _Codes.PATH:
        return Path(os.fsdecode(bytes(data)))
    if code == _Codes.ENCRYPTED:
        return Encrypted(bytes(data))
    if code not in _UNPACKERS:
        raise ValueError(f"unknown extension type {code}")
    return _UNPACKERS[code](bytes(data).decode("utf-8", "surrogatepass"))


def _ext_of(item: _Key | Encrypted) -> Ext:
    return item.ext


def _lengths() -> tuple[list[int], list[int]]:
    """Return two tables indexed by the first byte of an element, to skip from one to the next.

    The first is the length in bytes that follows from the first byte alone, without nested
    elements. The second is how many bytes at the end of that part hold the length of the content.
    """
    lengths, widths = [1] * 256, [0] * 256
    lengths[0xA0:0xC0] = range(1, 33)  # short texts
    lengths[0xCA:0xD4] = (5, 9, 2, 3, 5, 9, 2, 3, 5, 9)  # floats and integers
    lengths[0xD4:0xD9] = (3, 4, 6, 10, 18)  # extensions of a fixed length
    lengths[0xDC:0xE0] = (3, 5, 3, 5)  # lists and mappings; their elements follow
    for first in (0xC4, 0xC7, 0xD9):  # bytes, extensions and texts of any length
        lengths[first : first + 3] = (2, 3, 5)
        widths[first : first + 3] = (1, 2, 4)
    return lengths, widths


_LENGTHS, _WIDTHS = _lengths()
_EXTENSIONS = frozenset((0xC7, 0xC8, 0xC9))  # these have one more byte, the type
_BEGIN_NOTHING = bytes(set(range(256)) - set(range(0x80, 0xA0)) - set(range(0xDC, 0xE0)))

_ENCODER = msgspec.msgpack.Encoder(enc_hook=_ext_of)
_VALUE_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_unpack)
_ENVELOPE_DECODER = msgspec.msgpack.Decoder(Envelope, ext_hook=_unpack)
_HEAD_DECODER = msgspec.msgpack.Decoder(_Head)
_RESULT_DECODER = msgspec.msgpack.Decoder(ResultDocument, ext_hook=_unpack)
_ERROR_DECODER = msgspec.msgpack.Decoder(ErrorDocument, ext_hook=_unpack)
