"""What of envelopes, results and errors is encrypted, and how it is read again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from nonet.base.errors import MalformedMessageError
from nonet.base.messages.documents import (
    MOST_ERROR_BYTES,
    are_encrypted,
    concealed,
    decrypted_arguments,
    decrypted_bytes,
    encrypted_arguments,
    key_of,
    revealed,
)
from nonet.base.messages.encryption import MARK, NO_KEY, NO_KEYS, UNREADABLE, Cipher
from nonet.base.messages.message import (
    ErrorDocument,
    ResultDocument,
    decode,
    decode_error,
    decode_result,
    encode,
    pack,
)
from nonet.stores.sql.letters import DETAIL_BYTES

CIPHER = Cipher({"new": b"n" * 32}, "test")
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(), PLAIN, max_size=3))
def test_arguments_come_back_as_they_were(args: dict[str, Any]) -> None:
    packed = pack(args)
    stored = encode(encrypted_arguments(packed, "id", CIPHER))
    found = decode(stored)
    assert are_encrypted(found) and key_of(found) == CIPHER.keys[0]
    expected = decode(encode(packed))
    assert decrypted_arguments(found, "id", CIPHER) == expected
    assert decode(decrypted_bytes(stored, "id", CIPHER)) == expected
    assert decrypted_bytes(stored, "id", NO_KEYS) == decrypted_bytes(stored, "no", CIPHER) == stored
    with pytest.raises(MalformedMessageError):
        decrypted_arguments(found, "another", CIPHER)


@given(st.dictionaries(st.text(), PLAIN, max_size=3))
def test_plain_arguments_stay_as_they_are(args: dict[str, Any]) -> None:
    stored = encode(pack(args))
    assert not are_encrypted(decode(stored)) and key_of(decode(stored)) == ""
    assert decrypted_bytes(stored, "id", CIPHER) == stored
    found = decode(stored)
    assert decrypted_arguments(found, "id", NO_KEYS) is found


def result(**fields: Any) -> ResultDocument:
    return ResultDocument("x:T", 1, 2.0, **fields)


def test_an_encrypted_result_shows_only_its_type_and_times() -> None:
    value = CIPHER.encrypt(encode({"found": "hidden"}), "id", "value")
    plain = result(error_type="ValueError", error="hidden", traceback="hidden", note="hidden")
    made = msgspec.structs.replace(concealed(plain, "id", CIPHER), value=value)
    stored = encode(made)
    assert b"hidden" not in stored and b"ValueError" in stored
    found = revealed(decode_result(stored), "id", CIPHER)
    assert found == msgspec.structs.replace(plain, value={"found": "hidden"})
    closed = revealed(decode_result(stored), "id", NO_KEYS)
    assert (closed.value, closed.error, closed.note) == (None, NO_KEY, f"its result is {NO_KEY}")
    moved = revealed(decode_result(stored), "another", CIPHER)
    assert (moved.value, moved.error, moved.note) == (
        None,
        UNREADABLE,
        f"its result is {UNREADABLE}",
    )


def test_an_error_is_encrypted_once() -> None:
    """A worker that only buries it leaves it as it is, also without a key."""
    plain = ErrorDocument("retries", "ValueError", "hidden", "", 1, 2.0)
    made = concealed(plain, "id", CIPHER)
    assert concealed(made, "id", CIPHER) == concealed(made, "id", NO_KEYS) == made
    assert revealed(decode_error(encode(made)), "id", CIPHER) == plain


def test_a_plain_document_is_returned_as_it_is() -> None:
    document = result(error="no", error_type="E", value={"": b"x"})
    assert revealed(document, "id", CIPHER) is document


@pytest.mark.parametrize("letter", ["x", "é", "漢"])
def test_a_long_error_is_cut_before_it_is_encrypted(letter: str) -> None:
    """So that no column and no script cuts what could not be decrypted any more."""
    document = ErrorDocument("retries", "E" * 200, letter * 10_000, "t" * 4096, 1, 2.0)
    made = concealed(document, "i" * 128, Cipher({"k" * 32: b"n" * 32}, "n" * 64))
    assert len(f"{made.error_type}: {made.error}") < DETAIL_BYTES
    assert len(made.traceback) < 6000 and made.traceback.startswith(MARK)
    found = revealed(made, "i" * 128, Cipher({"k" * 32: b"n" * 32}, "n" * 64))
    assert found.error.endswith(letter + "…") and found.traceback == document.traceback
    assert len(found.error.encode()) > MOST_ERROR_BYTES - 4
