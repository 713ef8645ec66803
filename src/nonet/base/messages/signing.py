"""Sign envelopes, so that only holders of a key of this installation can create its tasks.

A signed envelope is ``0xc1 · format · length of the key's id · id · HMAC-SHA256 · envelope``; no
msgpack begins with ``0xc1``. The HMAC is over format, namespace and envelope, each with its
length, so that a message is valid in one namespace only.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping

from nonet.base.errors import MalformedMessageError

SHORTEST_KEY_BYTES = 32

_MARK = b"\xc1\x01"
_FORMAT = b"nonet envelope 1"
_MAC_BYTES = 32
KEY_ID = re.compile(r"[A-Za-z0-9_.-]{1,32}")
"""What the id of a key looks like."""


class Signer:
    """Signs envelopes with its first key and accepts signatures of all its keys.

    Args:
        keys: id → key; the first one signs. A signer without keys neither signs nor verifies, so
            that producers can sign before all workers know the key.
        namespace: namespace of the envelopes.
        accept_unsigned: accept envelopes without a signature, until no unsigned task is left.

    Example:
        >>> signer = Signer({"2026": b"k" * 32}, "nonet")
        >>> signer.opened(signer.signed(b"envelope"))
        b'envelope'
    """

    def __init__(
        self,
        keys: Mapping[str, bytes] | None = None,
        namespace: str = "",
        *,
        accept_unsigned: bool = False,
    ) -> None:
        self._accept_unsigned = accept_unsigned
        self._keys = {id.encode(): key for id, key in (keys or {}).items()}
        self._head = measured(_FORMAT) + measured(namespace.encode())

    def __repr__(self) -> str:
        return f"<Signer: {len(self._keys)} keys>"

    def signed(self, envelope: bytes) -> bytes:
        """Return an envelope with its signature, as it is stored."""
        for id, key in self._keys.items():
            return b"".join((_MARK, bytes([len(id)]), id, self._mac(key, envelope), envelope))
        return envelope

    def opened(self, data: bytes) -> bytes:
        """Verify the signature of a stored message, and return the envelope.

        Raises:
            MalformedMessageError: the message is truncated or, if there are keys, none of them
                signed it.
        """
        if not data.startswith(_MARK[:1]):
            if self._accept_unsigned or not self._keys:
                return data
            raise MalformedMessageError("the message is not signed (NONET_SIGNING_KEYS)")
        id, mac, envelope = _parts(data)
        if self._keys and not hmac.compare_digest(mac, self._mac(self._key(id), envelope)):
            raise MalformedMessageError(
                f"the signature does not fit the message (key {_shown(id)}): another key of that "
                "name, another namespace, or changed bytes"
            )
        return envelope

    def check_key(self, data: bytes) -> None:
        """Check that the key of a signed message is known here.

        A signer without keys opens messages without verifying them. Code that builds a new envelope
        from such a message would remove its signature.

        Raises:
            MalformedMessageError: the key is unknown here, or the message is truncated.
        """
        if data.startswith(_MARK[:1]):
            self._key(_parts(data)[0])

    def _key(self, id: bytes) -> bytes:
        key = self._keys.get(id)
        if key is None:
            raise MalformedMessageError(
                f"the message is signed with key {_shown(id)}, which NONET_SIGNING_KEYS does not "
                "have here"
            )
        return key

    def _mac(self, key: bytes, envelope: bytes) -> bytes:
        return hmac.digest(key, self._head + measured(envelope), "sha256")


def unsigned(data: bytes) -> bytes:
    """Return the envelope of a stored message without verifying a signature.

    Raises:
        MalformedMessageError: the message is truncated.
    """
    return _parts(data)[2] if data.startswith(_MARK[:1]) else data


def parse_keys(text: str, *, exactly: int | None = None) -> dict[str, bytes]:
    """Parse keys from ``id:base64,id:base64``; the first one signs, or encrypts.

    Args:
        exactly: how many bytes a key must have; None: `SHORTEST_KEY_BYTES` or more.

    Raises:
        ValueError: a key is invalid. The message contains no part of a key.

    Example:
        >>> list(parse_keys("new:" + "bmV3" * 11 + ", old:" + "b2xk" * 11))
        ['new', 'old']
    """
    keys: dict[str, bytes] = {}
    for number, part in enumerate(filter(None, map(str.strip, text.split(","))), start=1):
        id, colon, encoded = part.partition(":")
        # Text without a colon may be a key: do not quote it.
        if not colon or not KEY_ID.fullmatch(id):
            raise ValueError(
                f"key {number} must be ID:BASE64, ID of 1 to 32 letters, digits, '_', '-' or '.'"
            )
        if id in keys:
            raise ValueError(f"key {id!r} is given twice")
        keys[id] = _decoded(id, encoded, exactly)
    return keys


def _decoded(id: str, encoded: str, exactly: int | None) -> bytes:
    try:
        key = base64.b64decode(encoded.strip().translate(_URL_SAFE), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"key {id!r} is not base64") from None
    if len(key) < SHORTEST_KEY_BYTES or exactly not in (None, len(key)):
        wanted = f"at least {SHORTEST_KEY_BYTES}" if exactly is None else str(exactly)
        raise ValueError(
            f"key {id!r} has {len(key)} bytes, but needs {wanted}; make one with "
            "'openssl rand -base64 32'"
        )
    return key


_URL_SAFE = str.maketrans("-_", "+/")


def measured(part: bytes) -> bytes:
    """Return a part with its length before it, so that parts cannot be shifted."""
    return len(part).to_bytes(8, "big") + part


def _parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a signed message into key id, MAC and envelope."""
    start = len(_MARK) + 1
    end = start + data[start - 1] if len(data) >= start else 0
    if not data.startswith(_MARK) or end <= start or len(data) < end + _MAC_BYTES:
        raise MalformedMessageError(
            f"message of {len(data)} bytes: it begins like a signed message but is malformed"
        )
    return data[start:end], data[end : end + _MAC_BYTES], data[end + _MAC_BYTES :]


def _shown(id: bytes) -> str:
    text = id.decode("latin-1")
    return repr(text) if KEY_ID.fullmatch(text) else "of no possible name"
