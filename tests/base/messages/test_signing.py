"""Signatures of envelopes: what is accepted, what is refused, and that no key shows."""

from __future__ import annotations

import base64
import traceback

import msgspec
import pytest
from hypothesis import given, strategies as st

from nonet.base.errors import MalformedMessageError
from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import Envelope, decode_envelope, encode, open_envelope
from nonet.base.messages.signing import Signer, parse_keys, unsigned

NEW, OLD = b"n" * 32, b"o" * 32
SIGNER = Signer({"new": NEW, "old": OLD}, "test")
ENVELOPE = encode(Envelope(FORMAT, "id", "files:Audit", {"n": 1}, {}, 1.5))


def key(text: str) -> str:
    return base64.b64encode(text.encode() * 32).decode()


def test_the_first_key_signs_and_every_key_is_accepted() -> None:
    assert SIGNER.signed(ENVELOPE) == Signer({"new": NEW}, "test").signed(ENVELOPE)
    for keys in ({"new": NEW}, {"old": OLD}):
        assert SIGNER.opened(Signer(keys, "test").signed(ENVELOPE)) == ENVELOPE


def test_a_signer_without_keys_signs_nothing_and_reads_signed_envelopes() -> None:
    assert Signer().signed(ENVELOPE) == ENVELOPE
    assert Signer().opened(ENVELOPE) == ENVELOPE
    assert Signer().opened(SIGNER.signed(ENVELOPE)) == ENVELOPE
    assert unsigned(SIGNER.signed(ENVELOPE)) == unsigned(ENVELOPE) == ENVELOPE
    assert decode_envelope(SIGNER.signed(ENVELOPE)) == decode_envelope(ENVELOPE)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (ENVELOPE, "not signed"),
        (b"", "not signed"),
        (Signer({"new": OLD}, "test").signed(ENVELOPE), r"does not fit the message \(key 'new'\)"),
        (Signer({"new": NEW}, "other").signed(ENVELOPE), "does not fit"),
        (SIGNER.signed(ENVELOPE) + b"x", "does not fit"),
        (Signer({"third": NEW}, "test").signed(ENVELOPE), "key 'third', which"),
        (b"\xc1\x01\x04\x1b[2J" + bytes(40), "key of no possible name"),
        (b"\xc1", "malformed"),
        (b"\xc1\x01", "malformed"),
        (b"\xc1\x01\x00" + bytes(40), "malformed"),
        (b"\xc1\x01\x03new" + bytes(31), "malformed"),
        (b"\xc1\x02\x03new" + bytes(40), "malformed"),
    ],
)
def test_an_envelope_without_a_valid_signature_is_refused_with_its_reason(
    data: bytes, reason: str
) -> None:
    with pytest.raises(MalformedMessageError, match=reason):
        SIGNER.opened(data)


@given(st.data())
def test_no_byte_of_a_signed_envelope_can_be_changed(data: st.DataObject) -> None:
    whole = SIGNER.signed(ENVELOPE)
    at = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda value: value != whole[at]))
    for damaged in (whole[:at], whole[:at] + bytes([other]) + whole[at + 1 :]):
        with pytest.raises(MalformedMessageError):
            SIGNER.opened(damaged)


def test_a_signature_is_checked_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nonet.base.messages.message._decode", None)
    for data in (ENVELOPE, Signer({"new": OLD}, "test").signed(ENVELOPE)):
        with pytest.raises(MalformedMessageError, match="sign"):
            open_envelope(data, "id", SIGNER, limit_bytes=1000)


def test_a_signed_envelope_is_no_valid_msgpack() -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(SIGNER.signed(ENVELOPE))


def test_keys_are_read_in_their_order() -> None:
    """Blanks, line ends and the URL-safe alphabet do not matter."""
    text = f"new:{key('n')},\n old:{base64.urlsafe_b64encode(b'?>' * 16).decode()}\n,"
    assert list(parse_keys(text).items()) == [("new", NEW), ("old", b"?>" * 16)]
    assert parse_keys("") == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"new:{key('n')},{key('s')}", "key 2 must be ID:BASE64"),
        (f"a b:{key('s')}", "key 1 must be ID:BASE64"),
        (f":{key('s')}", "key 1 must be"),
        (f"{'x' * 33}:{key('s')}", "key 1 must be"),
        (f"new:{key('n')},new:{key('s')}", "'new' is given twice"),
        ("new:sEcReT!", "'new' is not base64"),
        ("new:sEcReTé", "'new' is not base64"),
        ("new:" + base64.b64encode(b"s" * 31).decode(), "31 bytes, but needs at least 32.*openssl"),
    ],
)
def test_unusable_keys_are_refused_without_showing_them(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as raised:
        parse_keys(text)
    shown = "".join(traceback.format_exception(raised.value))
    assert key("s")[:8] not in str(raised.value)
    assert "sEcReT" not in shown.splitlines()[-1]


def test_a_signer_does_not_show_its_keys() -> None:
    assert repr(SIGNER) == str(SIGNER) == "<Signer: 2 keys>"


def test_unsigned_envelopes_may_be_accepted_but_wrong_signatures_are_not() -> None:
    lenient = Signer({"new": NEW}, "test", accept_unsigned=True)
    assert lenient.opened(ENVELOPE) == ENVELOPE
    with pytest.raises(MalformedMessageError, match="does not fit"):
        lenient.opened(Signer({"new": OLD}, "test").signed(ENVELOPE))
