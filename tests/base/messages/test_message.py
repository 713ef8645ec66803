"""The wire format: what it carries, its limits, and that no bytes get past them."""

import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, strategies as st
from msgspec.msgpack import Ext

from nonet.base.errors import MalformedMessageError
from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import (
    HARD_LIMIT_BYTES,
    MAX_DEPTH,
    MAX_ELEMENTS,
    Envelope,
    ErrorDocument,
    ResultDocument,
    decode,
    decode_envelope,
    decode_error,
    decode_result,
    encode,
    open_envelope,
    pack,
)
from nonet.base.messages.signing import Signer

DECODERS = [decode, decode_envelope, decode_result, decode_error]
ENVELOPE = Envelope(FORMAT, "id", "files:Audit", {"n": 1}, {"vo": "lhcb"}, 1.5, "p", "g", "1.4")
RESULT = ResultDocument("files:Audit", 2, 3.5, [1], "ValueError", "no", "retries", "note")
ERROR = ErrorDocument("retries", "ValueError", "no", "  File …", 3, 1.5)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("document", "read"),
    [(ENVELOPE, decode_envelope), (RESULT, decode_result), (ERROR, decode_error)],
)
def test_documents_arrive_as_they_were(
    document: msgspec.Struct, read: Callable[[bytes], Any]
) -> None:
    assert read(encode(document)) == document


def test_missing_fields_of_an_older_document_get_their_defaults() -> None:
    old = msgspec.msgpack.encode([1, "id", "files:Audit", {}, {}, 0.0])
    assert decode_envelope(old) == Envelope(1, "id", "files:Audit", {}, {}, 0.0)


def test_unknown_fields_of_a_newer_document_are_ignored() -> None:
    fields = [FORMAT + 1, *msgspec.structs.astuple(ENVELOPE)[1:], "more"]
    newer = decode_envelope(msgspec.msgpack.encode(fields))
    assert (newer.version, newer.labels) == (FORMAT + 1, ENVELOPE.labels)


@pytest.mark.parametrize(
    "rest",
    [
        [{"n": Ext(99, b"x")}, {}, 0.0],
        [[1], "labels", None],
        [{}, {}, 0.0, "", "", "", 5],
        [{}, {}, 0.0, "a parent", "", "any version"],
        [nested(MAX_DEPTH + 10)],
        [[0] * (MAX_ELEMENTS + 10)],
        [{}] * 70_000,
        [],
    ],
    ids=["extension", "types", "trace", "values", "depth", "elements", "fields", "none"],
)
def test_a_newer_envelope_is_known_by_how_it_begins(rest: list[object]) -> None:
    """Whatever follows version, id and name; the same of this version is garbage."""
    newer = msgspec.msgpack.encode([FORMAT + 1, "id", "files:Audit", *rest])
    known = Envelope(FORMAT + 1, "id", "files:Audit", {}, {}, 0.0)
    assert open_envelope(newer, "id", Signer(), limit_bytes=HARD_LIMIT_BYTES) == known
    with pytest.raises(MalformedMessageError):
        decode_envelope(msgspec.msgpack.encode([FORMAT, "id", "files:Audit", *rest]))


@pytest.mark.parametrize(
    "begin", [[3], [3, "id"], [3, "i d", "files:Audit"], [3, "id", ""], ["3", "id", "files:Audit"]]
)
def test_a_newer_envelope_without_id_or_name_is_malformed(begin: list[object]) -> None:
    with pytest.raises(MalformedMessageError):
        decode_envelope(msgspec.msgpack.encode(begin))
    for rest in (b"", b"\x91" * 100_000):
        with pytest.raises(MalformedMessageError):
            decode_envelope(b"\x94\x02\xa2id\xa1n" + rest)


def test_older_workers_skip_appended_fields() -> None:
    """The version of the layout stays; without a trace not even a byte is added."""
    assert FORMAT == 1
    traced = encode(msgspec.structs.replace(ENVELOPE, trace="00-1-2-01"))
    assert decode_envelope(traced).trace == "00-1-2-01"
    for data in (traced, encode(ENVELOPE)):
        read = msgspec.msgpack.decode(data, type=FirstLayout)
        assert (read.id, read.name, read.group) == ("id", "files:Audit", "g")
    fields = msgspec.structs.astuple(ENVELOPE)[:9]
    assert encode(ENVELOPE) == msgspec.msgpack.encode(fields)


class FirstLayout(msgspec.Struct, array_like=True, frozen=True):
    """An envelope as the first release reads it."""

    version: int
    id: str
    name: str
    args: dict[str, object]
    labels: dict[str, object]
    submitted: float
    parent: str = ""
    group: str = ""


@pytest.mark.parametrize(
    ("number", "plain"),
    [(2**64 - 1, True), (2**64, False), (-(2**63), True), (-(2**63) - 1, False)],
)
def test_only_integers_beyond_64_bits_need_an_extension(number: int, plain: bool) -> None:
    assert isinstance(pack(number), int) is plain
    assert decode(encode(pack(number))) == number


def test_the_size_is_checked_before_decoding() -> None:
    """Bytes beyond the limit are refused whatever they hold; those at the limit are read."""
    data = encode(b"x" * 100)
    assert decode(data, limit_bytes=len(data)) == b"x" * 100
    with pytest.raises(MalformedMessageError, match=rf"{len(data)} bytes exceeds {len(data) - 1}"):
        decode(data, limit_bytes=len(data) - 1)
    for read in DECODERS:
        with pytest.raises(MalformedMessageError, match="exceeds"):
            read(b"\xc1" * (HARD_LIMIT_BYTES + 1))


def test_the_depth_limit_is_exact_when_packing() -> None:
    deep = Envelope(FORMAT, "id", "files:Audit", {"a": pack(nested(MAX_DEPTH))}, {}, 0.0)
    assert decode_envelope(encode(deep)).args == {"a": nested(MAX_DEPTH)}
    with pytest.raises(TypeError, match=f"nested deeper than {MAX_DEPTH}"):
        pack(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize("depth", [MAX_DEPTH + 3, 500, 1000, 100_000])
@pytest.mark.parametrize("level", [b"\x91", b"\x81\x01", b"\x81\x91"], ids=["list", "map", "key"])
def test_bytes_nested_too_deeply_are_refused(depth: int, level: bytes) -> None:
    """No nesting reaches code that recurses, such as the repr of a log line."""
    with pytest.raises(MalformedMessageError):
        decode(level * depth + b"\xc0" * (depth + 1 if level == b"\x81\x91" else 1))


@pytest.mark.parametrize("read", DECODERS)
@given(st.binary(max_size=300), st.sampled_from([1, MAX_ELEMENTS // 100]))
@example(b"", 1)
@example(b"\xc1", 1)
@example(b"\xc1\x01", 1000)
def test_garbage_is_malformed_and_nothing_else(
    read: Callable[[bytes], Any], data: bytes, times: int
) -> None:
    """Random bytes, and so many that their elements are counted first."""
    try:
        read(data * times)
    except MalformedMessageError as error:
        assert re.search(r"\d bytes", str(error))  # without those of a signature


@given(st.integers(-128, 127), st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
@example(10, b"s0:(")  # re.error
@example(10, b"s0:[[a]")  # FutureWarning
@example(10, b"s99999999999999999999:a")  # OverflowError
@example(10, b"s128:a")  # re.DEBUG prints
@example(10, b"")
@example(5, b"24:00")
@example(6, b"1,2")
@example(6, b"9999999999999,1,1")
@example(7, b"x")
@example(8, b"x")
@example(2, b"\xff")
@example(99, b"")
def test_a_broken_extension_is_malformed_and_nothing_else(code: int, data: bytes) -> None:
    with suppress(MalformedMessageError):
        decode(msgspec.msgpack.encode(Ext(code, data)))


@given(st.data())
def test_a_damaged_envelope_is_malformed_and_nothing_else(data: st.DataObject) -> None:
    """Cut off, or with one byte changed, it is another envelope or a MalformedMessageError."""
    whole = encode(ENVELOPE)
    at = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (
        whole[:at],
        whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :],
    ):
        with suppress(MalformedMessageError):
            assert isinstance(decode_envelope(damaged), Envelope)


def test_only_the_envelope_of_its_own_task_is_opened() -> None:
    data = encode(ENVELOPE)
    assert open_envelope(data, "id", Signer(), limit_bytes=len(data)) == ENVELOPE
    with pytest.raises(MalformedMessageError, match="belongs to another task, id"):
        open_envelope(data, "id2", Signer(), limit_bytes=len(data))
    with pytest.raises(MalformedMessageError, match="exceeds"):
        open_envelope(data, "id", Signer(), limit_bytes=len(data) - 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("version", value) for value in (0, -1)),
        *(("id", value) for value in ("", "a b", "é", "a\n", "x" * 129)),
        *(("name", value) for value in ("", "files:\x1b[2J", "x" * 256)),
        *(("submitted", value) for value in (-1.0, 1e12, float("nan"), float("inf"))),
        *(("parent", value) for value in ("a b", "x" * 129)),
        *(("group", value) for value in ("\0", "x" * 129)),
        *(("min_version", value) for value in ("newest", "1." * 40 + "1")),
    ],
)
def test_an_envelope_with_an_impossible_field_is_malformed(field: str, value: object) -> None:
    data = encode(msgspec.structs.replace(ENVELOPE, **{field: value}))
    with pytest.raises(MalformedMessageError) as raised:
        decode_envelope(data)
    assert str(value) not in str(raised.value) or not value


@pytest.mark.parametrize("read", DECODERS)
def test_errors_do_not_quote_the_message(read: Callable[[bytes], Any]) -> None:
    """What cannot be read may be an argument; the reason is shown to everybody."""
    for code in range(1, 12):
        for shape in (
            [1, "id", "files:Audit", {"a": Ext(code, b"hunter2")}, {}, 0.0],
            {"hunter2": Ext(code, b"hunter2")},
            ["hunter2"],
        ):
            try:
                read(msgspec.msgpack.encode(shape))
            except MalformedMessageError as error:
                assert "hunter2" not in str(error)


def test_the_limit_of_elements_is_exact_for_writers_and_readers() -> None:
    value = [0] * (MAX_ELEMENTS - 1)  # the list is one, too
    data = encode([*value[1:], "x" * 10])
    assert len(decode(data)) == MAX_ELEMENTS - 1
    with pytest.raises(TypeError, match="more than 100,000 elements"):
        encode([*value, 0])
    data = msgspec.msgpack.encode([*value, "x" * 10])
    with pytest.raises(MalformedMessageError, match="more than 100000 elements"):
        decode(data)


def test_elements_of_every_kind_are_counted() -> None:
    texts = ["x" * n for n in (0, 31, 32, 300, 70_000)]
    blobs = [text.encode() for text in texts]
    numbers = [0, -1, 200, -100, 40_000, -30_000, 2**31, -(2**31), 2**63, -(2**62), 1.5, None]
    exts = [Ext(1, b"1" * n) for n in (1, 2, 3, 4, 8, 16, 17, 300, 70_000)]
    kinds = [*texts, *blobs, *numbers, *exts, True, False, [], {}]
    mixed = {"key": kinds, "long": list(range(20)), "mapping": {str(n): n for n in range(20)}}
    count = 1 + 3 + len(kinds) + 1 + 20 + 1 + 40 + 1
    filler = [1.5] * (MAX_ELEMENTS - count - 2)
    decode(msgspec.msgpack.encode([mixed, filler]))
    with pytest.raises(MalformedMessageError, match="elements"):
        decode(msgspec.msgpack.encode([mixed, [*filler, 0]]))


@pytest.mark.parametrize("element", [b"\x90", b"\x80", b"\x81\x01\x90", b"\xd4\x01\x01"])
def test_too_many_objects_are_refused_before_they_are_made(element: bytes) -> None:
    """Bytes that would become a great many objects cost little memory."""
    bomb, allowed = flat(element, HARD_LIMIT_BYTES), flat(element, 90_000)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError):
            decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        decode(allowed)
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


def flat(element: bytes, size: int) -> bytes:
    count = (size - 5) // len(element)
    return b"\xdd" + count.to_bytes(4, "big") + element * count


def test_a_pattern_cannot_print(capsys: pytest.CaptureFixture[str]) -> None:
    """The debug flag of a stored pattern is dropped."""
    decode(msgspec.msgpack.encode(Ext(10, b"s128:abc")))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (object(), "value is a object"),
        ({"a": [1, object()]}, r"value\['a'\]\[1\] is a object"),
        ({object(): 1}, "key of value is a object"),
        (len, "value is a builtin_function_or_method"),
        ({1: 1j}, r"value\[1\] is a complex"),
    ],
)
def test_a_value_that_cannot_be_packed_is_named_with_its_place(value: object, place: str) -> None:
    with pytest.raises(TypeError, match=place):
        pack(value)
