"""The envelope: the immutable bytes of a task, and the codec for its values.

Only data travels: msgpack with a closed list of extension types, no pickle, no import by name.
Lua never decodes an envelope; what scripts need travels beside it.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, ClassVar, NotRequired, TypeVar, get_type_hints

import msgspec
from msgspec.msgpack import Ext
from pydantic import BaseModel, GetCoreSchemaHandler, RootModel, SecretBytes, SecretStr
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from nonet.base.errors import MalformedMessageError
from nonet.base.versions import is_version
from nonet.messages.formats import FORMAT
from nonet.messages.signing import Signer, unsigned

VERSION = FORMAT  # what an envelope begins with
HARD_LIMIT_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64
# An element takes up to 90 bytes of memory and only one of a message. No message of fewer bytes
# than this has more elements, so that ordinary ones need not be counted.
MAX_ELEMENTS = 100_000
# A document and its mapping of arguments are levels of their own.
_MAX_DECODED_DEPTH = MAX_DEPTH + 2
_CONTAINERS = (dict, list, tuple)
# How MessagePack begins a list of the fields of an envelope without the last one, or the last two.
_NO_REPEAT, _UNTRACED = b"\x9a", b"\x99"
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_LONGEST_NAME = 255
_SECOND_PASS = re.compile(r"[^.]+\.[0-9]{6}1")
_Moment = TypeVar("_Moment", datetime, time)
_END_OF_TIME = 253_402_300_800  # the year 10000


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """What is submitted, in the order in which it is encoded; append only.

    Every layout begins with version, id and name, so that a worker can hand on what else it cannot
    read.

    Attributes:
        version: the format of the task, see `nonet.messages.formats`; a worker hands on what
            it cannot read.
        id: the task's id, for life.
        name: full task name, ``category:Class``.
        args: keyword arguments of the constructor, packed by `pack`.
        labels: the caller's labels.
        submitted: first submission by the client's clock, Unix seconds (for people only).
        parent: id of the task that submitted this one, or empty.
        group: id of the callback group whose callback this is, or empty.
        min_version: which version of the distribution that provides the class a worker must have
            at least (PEP 440), or empty: any.
        trace: W3C context of the span that submitted it, see `nonet.telemetry.tracing`; empty: it
            was not traced. It is left out then; workers that do not know it skip it.
        resubmitted_from: row of the dead letter that it repeats; 0: none. It is left out then, as
            `trace` is.
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


class _Head(msgspec.Struct, array_like=True, frozen=True):
    """How an envelope of any version begins; what follows is skipped, whatever it is."""

    version: int
    id: str
    name: str


class Usage(msgspec.Struct, array_like=True, frozen=True):
    """What an attempt took; None: nobody knows. Append only.

    Attributes:
        wall: seconds from its beginning to its end.
        cpu: seconds of CPU time, of a process that it had for itself.
        rss: most memory that this process had, in bytes.

    Example:
        usage = (await handle.status()).usage
        if usage is not None and usage.rss is not None:
            print(f"{usage.rss / 2**20:.0f} MiB")
    """

    wall: float | None = None
    cpu: float | None = None
    rss: int | None = None

    def __iter__(self) -> Iterator[tuple[str, float | None]]:
        """Its fields as pairs, as pydantic's models give them: FastAPI makes JSON of those."""
        return iter(msgspec.structs.asdict(self).items())

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """For pydantic, which knows nothing about msgspec: an object with these fields."""
        hints = {name: NotRequired[hint] for name, hint in get_type_hints(cls).items()}
        make: Any = TypedDict
        fields = handler.generate_schema(make(cls.__name__, hints))
        return core_schema.no_info_wrap_validator_function(
            lambda value, check: value if isinstance(value, cls) else cls(**check(value)),
            fields,
            serialization=core_schema.plain_serializer_function_ser_schema(
                msgspec.structs.asdict, return_schema=fields
            ),
        )


class ResultDocument(msgspec.Struct, array_like=True, frozen=True):
    """What is kept of a task that ended; append only.

    Attributes:
        name: full task name.
        attempt: number of attempts that were used.
        finished: end by the worker's clock, Unix seconds (for people only).
        value: the packed result of a task that is done.
        error_type, error: exception class and text of the last failure.
        reason: why the task is dead, see `nonet.rules.outcomes.Reason`.
        note: why there is no value although the task is done, or empty.
        usage: what the last attempt took, if it is known.
        crashes: how many processes died in which it was the only suspect.
        deaths: how often its worker did.
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


class ErrorDocument(msgspec.Struct, array_like=True, frozen=True):
    """What a dying task takes to SQL; append only.

    Attributes:
        reason: see `nonet.rules.outcomes.Reason`.
        error_type, error, traceback: of the last failure; the traceback holds no values.
        attempt: number of attempts that were used.
        at: when it failed, Unix seconds by the worker's clock.
        usage: what this attempt took, if it is known.
    """

    reason: str
    error_type: str
    error: str
    traceback: str
    attempt: int
    at: float
    usage: Usage | None = None


class _Codes:
    """Extension codes of `pack`; part of the wire format, never renumbered."""

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


def pack(value: Any) -> Any:
    """`value` made of what msgpack carries, losing neither type nor precision.

    Beside plain data: datetime (with its offset), date, time, timedelta, Decimal, UUID, Path
    (any bytes), compiled patterns, enums (their value), integers of any length, text with lone
    surrogates, sets and tuples (as lists), dataclasses and pydantic models (as mappings).

    Raises:
        TypeError: a value of another type; the message names where it is.

    Example:
        >>> pack({"at": Decimal("1.10"), "n": 3})["n"]
        3
    """
    if value is None:  # what most tasks return
        return None
    return _pack(value, "value", 0)


def encode(value: Any) -> bytes:
    """Bytes of a packed value, or of one of the documents of this module.

    Raises:
        TypeError: there is more in it than anybody would decode.
    """
    data = _ENCODER.encode(value)
    if type(value) is Envelope and not value.resubmitted_from:
        # Few are repeats, and few are traced: the others are not a byte longer for it.
        data = _NO_REPEAT + data[1:-1] if value.trace else _UNTRACED + data[1:-2]
    if len(data) > MAX_ELEMENTS and _has_too_many_elements(data):
        raise TypeError(f"the value has more than {MAX_ELEMENTS:,} elements, which cannot travel")
    return data


def is_id(text: str) -> bool:
    """Whether `text` can be the id of a task: 1 to 128 printable ASCII characters, no blanks.

    >>> is_id("b7-1"), is_id("b 7"), is_id("")
    (True, False, False)
    """
    return _ID.fullmatch(text) is not None


def decode(data: bytes, *, limit_bytes: int = HARD_LIMIT_BYTES) -> Any:
    """The value in `data`.

    Raises:
        MalformedMessageError: too long, too many elements, not msgpack, or an unknown extension.
    """
    return _decode(_VALUE_DECODER, data, limit_bytes)


def decode_envelope(data: bytes, *, limit_bytes: int = HARD_LIMIT_BYTES) -> Envelope:
    """The envelope in `data`, whoever signed it.

    Of one of a newer version that cannot be read here: its version, id and name, and nothing else.

    Raises:
        MalformedMessageError: too long, not an envelope, or of another shape.
    """
    _check_length(data, limit_bytes)
    return _envelope(unsigned(data), limit_bytes)


def open_envelope(data: bytes, id: str, signer: Signer, *, limit_bytes: int) -> Envelope:
    """The envelope of task `id`: length and signature are looked at before it is decoded.

    One of a newer version may be incomplete, as with `decode_envelope`.

    Raises:
        MalformedMessageError: too long, not signed as `signer` wants it, no envelope, or that of
            another task.
    """
    _check_length(data, limit_bytes)
    envelope = _envelope(signer.opened(data), limit_bytes)
    if envelope.id != id:
        raise MalformedMessageError(f"the message is that of another task, {envelope.id}")
    return envelope


def decode_result(data: bytes) -> ResultDocument:
    """The result document in `data`.

    Raises:
        MalformedMessageError: it is none.
    """
    document: ResultDocument = _decode(_RESULT_DECODER, data, HARD_LIMIT_BYTES)
    return document


def decode_error(data: bytes) -> ErrorDocument:
    """The error document in `data`.

    Raises:
        MalformedMessageError: it is none.
    """
    document: ErrorDocument = _decode(_ERROR_DECODER, data, HARD_LIMIT_BYTES)
    return document


def _check_length(data: bytes, limit_bytes: int) -> None:
    if len(data) > limit_bytes:
        raise MalformedMessageError(f"message of {len(data)} bytes exceeds {limit_bytes}")


def _envelope(data: bytes, limit_bytes: int) -> Envelope:
    try:
        envelope: Envelope = _decode(_ENVELOPE_DECODER, data, limit_bytes)
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
    """What can be told of an envelope of a newer version, whose other fields mean anything."""
    try:
        head = _HEAD_DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    envelope = Envelope(head.version, head.id, head.name, {}, {}, 0.0)
    return envelope if head.version > VERSION and not _problem_of(envelope) else None


def _problem_of(envelope: Envelope) -> str:
    """What is wrong with an envelope whose fields have the right types, without quoting it."""
    if envelope.version < 1:
        return "there is no such version"
    if not is_id(envelope.id):
        return "its id is none"
    if not 1 <= len(envelope.name) <= _LONGEST_NAME or not envelope.name.isprintable():
        return "its name is none"
    parent, group = envelope.parent, envelope.group
    if (parent and not is_id(parent)) or (group and not is_id(group)):
        return "the id of its parent or group is none"
    if not 0 <= envelope.submitted < _END_OF_TIME:  # nor nan
        return "the time of its submission is none"
    if envelope.min_version and not is_version(envelope.min_version):
        return "the version that it needs is none"
    return ""


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes, limit_bytes: int) -> Any:
    _check_length(data, limit_bytes)
    if len(data) > MAX_ELEMENTS and _has_too_many_elements(data):
        raise MalformedMessageError(
            f"message of {len(data)} bytes has more than {MAX_ELEMENTS} elements"
        )
    try:
        document = decoder.decode(data)
    except msgspec.DecodeError as error:
        raise MalformedMessageError(f"message of {len(data)} bytes: {error}") from None
    # The extension types bring errors of many kinds (a pattern: re.error); none may get out, and
    # none may be quoted: they repeat what they could not read, which may be an argument.
    except Exception as error:
        kind = type(error).__name__
        raise MalformedMessageError(
            f"message of {len(data)} bytes: a value in it cannot be read ({kind})"
        ) from None
    # Each level is one byte at least that begins a list or a mapping. Few messages have so many
    # bytes that may be one.
    may_begin = len(data.translate(None, _BEGIN_NOTHING))
    if may_begin > _MAX_DECODED_DEPTH and _is_deep(document):
        raise MalformedMessageError(f"message of {len(data)} bytes is nested too deeply")
    return document


def _has_too_many_elements(data: bytes) -> bool:
    """Whether msgpack has more elements than may travel, found without making any of them.

    In well-formed bytes one element follows the other, whatever their nesting; others may count
    as anything, the decoder refuses them. (No message has more elements than bytes.)
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
    """Whether decoded data is nested deeper than `pack` makes it: even its ``repr()`` may fail."""
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
    """Whether what `pack` makes of an instance of a class comes back as an instance of it."""
    return cls in _PACKERS or issubclass(cls, PurePath | dict)


def _pack(value: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise TypeError(f"{where} is nested deeper than {MAX_DEPTH} levels")
    packer = _PACKERS.get(type(value)) or _inherited_packer(value)
    if packer is None:
        raise TypeError(
            f"{where} is a {type(value).__qualname__}, which cannot travel: use plain data, a "
            "dataclass or a pydantic model"
        )
    return packer(value, where, depth)


def _inherited_packer(value: Any) -> Callable[[Any, str, int], Any] | None:
    if isinstance(value, enum.Enum):
        return lambda v, where, depth: _pack(v.value, where, depth)
    if isinstance(value, RootModel):
        return lambda v, where, depth: _pack(v.root, where, depth)
    if isinstance(value, BaseModel):
        return lambda v, where, depth: _pack(dict(v), where, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _pack_dataclass
    return next((_PACKERS[base] for base in type(value).__mro__ if base in _PACKERS), None)


def _pack_dataclass(value: Any, where: str, depth: int) -> Any:
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    return _pack(fields, where, depth)


def _pack_items(value: Any, where: str, depth: int) -> Any:
    return [_pack(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]


def _pack_set(value: Any, where: str, depth: int) -> Any:
    """In an order of its own: Python's differs from process to process."""
    return sorted(_pack_items(value, where, depth), key=encode)


def _pack_mapping(value: Any, where: str, depth: int) -> Any:
    return {
        _pack_key(key, f"key of {where}", depth + 1): _pack(item, f"{where}[{key!r}]", depth + 1)
        for key, item in value.items()
    }


class _Key:
    """An `Ext` that can be the key of a mapping; the encoder writes it as one."""

    __slots__ = ("ext",)

    def __init__(self, ext: Ext) -> None:
        self.ext = ext


def _pack_key(key: Any, where: str, depth: int) -> Any:
    packed = _hashable(_pack(key, where, depth))
    if isinstance(packed, dict):
        raise TypeError(f"{where} is a {type(key).__qualname__}, which cannot travel as a key")
    return packed


def _hashable(packed: Any) -> Any:
    """A packed tuple or frozen set as a tuple, at every level; what else a key is, stays."""
    if isinstance(packed, Ext):
        return _Key(packed)
    return tuple(map(_hashable, packed)) if isinstance(packed, list) else packed


def _pack_int(value: int, where: str, depth: int) -> Any:
    if -(2**63) <= value < 2**64:
        return int(value)
    # Not as decimal digits: Python refuses to write more than 4,300 of those.
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
        raise TypeError(f"{where} is a path that no file can have, which cannot travel") from None


def _as(code: int, to_text: Callable[[Any], str]) -> Callable[[Any, str, int], Any]:
    return lambda value, where, depth: Ext(code, to_text(value).encode("utf-8", "surrogatepass"))


def _plain(value: Any, where: str, depth: int) -> Any:
    return value


def _moment(value: datetime | time) -> str:
    """ISO 8601. The second pass of a repeated hour, of a naive one, is a seventh digit of its
    fraction: versions that do not know it skip that digit.
    """
    if value.fold and value.tzinfo is None:
        return f"{value.isoformat(timespec='microseconds')}1"
    return value.isoformat()


def _unmoment(kind: type[_Moment], text: str) -> _Moment:
    made = kind.fromisoformat(text)
    return made.replace(fold=1) if _SECOND_PASS.fullmatch(text) else made


def _seconds(value: timedelta) -> str:
    return f"{value.days},{value.seconds},{value.microseconds}"


def _pattern(value: re.Pattern[Any]) -> str:
    kind = "b" if isinstance(value.pattern, bytes) else "s"
    text = value.pattern.decode("latin-1") if kind == "b" else value.pattern
    return f"{kind}{value.flags}:{text}"


def _unpattern(text: str) -> re.Pattern[Any]:
    head, _, pattern = text.partition(":")
    flags = int(head[1:]) & ~re.DEBUG  # which would print
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
    SecretStr: lambda value, where, depth: _pack(value.get_secret_value(), where, depth),
    SecretBytes: lambda value, where, depth: value.get_secret_value(),
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
}


def _unpack(code: int, data: memoryview) -> Any:
    if code == _Codes.BIG_INT:
        return int.from_bytes(data, "big", signed=True)
    if code == _Codes.PATH:
        return Path(os.fsdecode(bytes(data)))
    if code not in _UNPACKERS:
        raise ValueError(f"unknown extension type {code}")
    return _UNPACKERS[code](bytes(data).decode("utf-8", "surrogatepass"))


def _ext_of(key: _Key) -> Ext:
    return key.ext


def _lengths() -> tuple[list[int], list[int]]:
    """By first byte of an element: its own length without its elements, as far as that byte tells;
    and how many bytes at the end of that tell how long its content is.
    """
    lengths, widths = [1] * 256, [0] * 256
    lengths[0xA0:0xC0] = range(1, 33)  # short texts
    lengths[0xCA:0xD4] = (5, 9, 2, 3, 5, 9, 2, 3, 5, 9)  # floats and integers
    lengths[0xD4:0xD9] = (3, 4, 6, 10, 18)  # extensions of a fixed length
    lengths[0xDC:0xE0] = (3, 5, 3, 5)  # lists and mappings: what they hold follows
    for first in (0xC4, 0xC7, 0xD9):  # bytes, extensions and texts of any length
        lengths[first : first + 3] = (2, 3, 5)
        widths[first : first + 3] = (1, 2, 4)
    return lengths, widths


_LENGTHS, _WIDTHS = _lengths()
_EXTENSIONS = frozenset((0xC7, 0xC8, 0xC9))  # one more byte: their type
_BEGIN_NOTHING = bytes(set(range(256)) - set(range(0x80, 0xA0)) - set(range(0xDC, 0xE0)))

_ENCODER = msgspec.msgpack.Encoder(enc_hook=_ext_of)
_VALUE_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_unpack)
_ENVELOPE_DECODER = msgspec.msgpack.Decoder(Envelope, ext_hook=_unpack)
_HEAD_DECODER = msgspec.msgpack.Decoder(_Head)
_RESULT_DECODER = msgspec.msgpack.Decoder(ResultDocument, ext_hook=_unpack)
_ERROR_DECODER = msgspec.msgpack.Decoder(ErrorDocument, ext_hook=_unpack)
