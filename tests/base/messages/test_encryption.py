"""Encrypted data: who can read them, what is refused, and that neither key nor data show."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, strategies as st

from nonet.base.errors import ConfigurationError, MalformedMessageError
from nonet.base.messages.encryption import (
    MARK,
    NO_KEY,
    NO_KEYS,
    UNREADABLE,
    Cipher,
    Encrypted,
    MissingKeyError,
    is_encrypted_text,
)

NEW, OLD = b"n" * 32, b"o" * 32
CIPHER = Cipher({"new": NEW, "old": OLD}, "test")


@given(st.binary(max_size=300), st.text(max_size=20), st.text(max_size=20))
def test_data_are_decrypted_only_for_their_namespace_task_and_field(
    data: bytes, id: str, field: str
) -> None:
    made = CIPHER.encrypt(data, id, field)
    assert CIPHER.decrypt(made, id, field) == data
    for other in ((f"{id}x", field), (id, f"{field}x"), (id + field, ""), ("", id + field)):
        if other != (id, field):
            with pytest.raises(MalformedMessageError, match="another task or namespace"):
                CIPHER.decrypt(made, *other)
    with pytest.raises(MalformedMessageError):
        Cipher({"new": NEW}, "another").decrypt(made, id, field)


@given(st.text(max_size=300))
def test_an_encrypted_text_is_ascii_and_is_not_encrypted_twice(text: str) -> None:
    made = CIPHER.encrypt_text(text, "id", "error")
    assert made.isascii() and is_encrypted_text(made) is bool(text)
    assert CIPHER.encrypt_text(made, "id", "error") == made
    assert CIPHER.decrypt_text(made, "id", "error") == text
    assert CIPHER.decrypt_text(made, "another", "error") == (UNREADABLE if text else "")


def test_the_encrypted_form_does_not_change() -> None:
    """Data that are in Redis and SQL during an upgrade are read afterwards."""
    place = b"".join(
        len(part).to_bytes(8, "big") + part
        for part in (b"nonet encrypted 1", b"test", b"id", b"args")
    )
    head, nonce = b"\x01\x03new" + bytes.fromhex("18823bd3"), b"nonce" * 2 + b"12"
    made = Encrypted(head + nonce + AESGCM(NEW).encrypt(nonce, b"data", place))
    assert CIPHER.decrypt(made, "id", "args") == b"data"
    assert CIPHER.encrypt(b"data", "id", "args").data.startswith(head)


def test_the_first_key_encrypts_and_every_key_is_read() -> None:
    made = CIPHER.encrypt(b"data", "id", "args")
    assert made.key == CIPHER.keys[0] and made.key.startswith("new ")
    assert Cipher({"new": NEW}, "test").decrypt(made, "id", "args") == b"data"
    earlier = Cipher({"old": OLD}, "test").encrypt(b"data", "id", "args")
    assert CIPHER.decrypt(earlier, "id", "args") == b"data"


def test_the_same_data_never_look_the_same() -> None:
    assert len({CIPHER.encrypt(b"data", "id", "args").data for _ in range(100)}) == 100


@pytest.mark.parametrize("keys", [{}, {"old": OLD}, {"new": OLD}], ids=["none", "other", "forged"])
def test_a_missing_key_is_distinguished_from_damaged_data(keys: dict[str, bytes]) -> None:
    """Also where another key has its name: a worker hands such a task on."""
    cipher = Cipher(keys, "test")
    with pytest.raises(MissingKeyError, match=r"key 'new'; this process has no key") as raised:
        cipher.decrypt(CIPHER.encrypt(b"data", "id", "args"), "id", "args")
    assert len(raised.value.brief) <= 60
    assert cipher.decrypt_text(CIPHER.encrypt_text("data", "id", "x"), "id", "x") == NO_KEY


@given(st.integers(0, 60), st.integers(0, 7))
def test_no_changed_bit_is_accepted(place: int, bit: int) -> None:
    made = CIPHER.encrypt(b"d" * 40, "id", "args").data
    changed = bytearray(made)
    changed[place % len(made)] ^= 1 << bit
    with pytest.raises(MalformedMessageError):
        CIPHER.decrypt(Encrypted(bytes(changed)), "id", "args")


@given(st.binary(max_size=60))
def test_garbage_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        CIPHER.decrypt(Encrypted(data), "id", "args")


@pytest.mark.parametrize(
    "text", ["", "bad padding", MARK, f"{MARK} it failed", f"{MARK}YWJj", MARK + "é"]
)
def test_a_plain_text_that_looks_encrypted_is_encrypted(text: str) -> None:
    """An author's error may begin like that; it must neither stay plain nor be lost."""
    assert CIPHER.decrypt_text(text, "id", "error") == text
    made = CIPHER.encrypt_text(text, "id", "error")
    assert (made != text) is bool(text)
    assert CIPHER.decrypt_text(made, "id", "error") == text


def test_without_a_key_nothing_is_encrypted() -> None:
    with pytest.raises(
        ConfigurationError, match="no key to encrypt with: set NONET_ENCRYPTION_KEYS"
    ):
        NO_KEYS.encrypt(b"data", "id", "args")


def test_neither_keys_nor_data_are_in_a_repr() -> None:
    made = CIPHER.encrypt(b"data", "id", "args")
    assert (
        repr(CIPHER) == "<Cipher: 2 keys>" and repr(made) == f"<Encrypted: {len(made.data)} bytes>"
    )
    assert "nnn" not in " ".join(CIPHER.keys)


def test_the_digest_of_keys_depends_on_the_keys_alone() -> None:
    assert CIPHER.digest == Cipher({"old": OLD, "new": NEW}, "other").digest
    digests = {
        CIPHER.digest,
        Cipher({"new": NEW}).digest,
        Cipher({"new": OLD}).digest,
        NO_KEYS.digest,
    }
    assert len(digests) == 4 and NO_KEYS.digest == ""


def test_cryptography_is_imported_only_with_keys() -> None:
    code = """if True:
        import sys
        from nonet.base.errors import ConfigurationError
        from nonet.config.settings import plain_settings
        plain_settings().cipher()
        assert "cryptography" not in sys.modules
        sys.modules["cryptography"] = None
        try:
            plain_settings(encryption_keys="a:" + "YWFh" * 10 + "YWE=").cipher()
        except ConfigurationError as error:
            assert "pip install 'PATH/TO/CLONE[encryption]'" in str(error)
        else:
            raise SystemExit(1)
    """
    subprocess.run([sys.executable, "-c", code], check=True)
