"""Encrypt the data of tasks, so that only holders of a key can read them in Redis and SQL.

Ciphertext is ``1 · length of the key's id · id · check · nonce · AES-256-GCM``. The check is a part
of a digest of the key: it tells another key of that name from changed bytes. The authenticated data
are namespace, task id and field, so that ciphertext is valid in its own place only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.msgpack import Ext

from nonet.base.errors import ConfigurationError, MalformedMessageError
from nonet.base.messages.signing import KEY_ID, measured
from nonet.base.version import install_with

if TYPE_CHECKING:
    from nonet.base.messages.aes import Aes

KEY_BYTES = 32
SETTING = "NONET_ENCRYPTION_KEYS"
NO_KEY = f"encrypted; this process has no key for it ({SETTING})"
UNREADABLE = "encrypted, but for another task or namespace, or changed: it cannot be read"
# The beginning of the reason with which a worker hands on a task that it cannot decrypt.
LACKS = "no encryption key"
# The beginning of an encrypted text; `lib/finish.lua` has it too.
MARK = "nonet-encrypted:"

EXTENSION = 11  # code in MessagePack, see `nonet.base.messages.message`
_FORMAT = b"\x01"
_DOMAIN = b"nonet encrypted 1"
_CHECK_BYTES, _NONCE_BYTES, _TAG_BYTES = 4, 12, 16
_ARMORED = re.compile(r"[A-Za-z0-9_-]+={0,2}")


class MissingKeyError(MalformedMessageError):
    """No key of this process opens the data.

    Attributes:
        brief: the same in at most 60 characters, for the record of a task.
    """

    def __init__(self, key: str) -> None:
        self.brief: str = f"{LACKS} {key!r} here"
        super().__init__(
            f"it is encrypted with key {key!r}; this process has no key for it ({SETTING})"
        )


class Encrypted:
    """Data that only holders of a key can read; it travels as an extension type of MessagePack.

    Attributes:
        data: the ciphertext with its head.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data: bytes = data

    def __repr__(self) -> str:
        return f"<Encrypted: {len(self.data)} bytes>"

    @property
    def ext(self) -> Ext:
        """The data as MessagePack encodes it."""
        return Ext(EXTENSION, self.data)

    @property
    def key(self) -> str:
        """The key that opens it, as in `Cipher.keys`; empty: the data are malformed."""
        return _name_in(self.data[: _head_length(self.data)])


class Cipher:
    """Encrypts with its first key and decrypts with all of its keys.

    Args:
        keys: id → key of 32 bytes; the first one encrypts. Without keys nothing can be encrypted.
        namespace: namespace of the tasks.
        everything: encrypt the tasks of all classes, not only of those with ``encrypted = True``.

    Attributes:
        everything: as given.
        keys: the names of the keys with their checks; not secret.

    Raises:
        ConfigurationError: there are keys, but the package `cryptography` is not installed.

    Example:
        >>> cipher = Cipher({"2026": b"k" * 32}, "nonet")
        >>> found = cipher.encrypt(b"4711", "task-1", "args")
        >>> b"4711" in found.data, cipher.decrypt(found, "task-1", "args")
        (False, b'4711')
    """

    def __init__(
        self,
        keys: Mapping[str, bytes] | None = None,
        namespace: str = "",
        *,
        everything: bool = False,
    ) -> None:
        self.everything: bool = everything
        self._opened: dict[bytes, Aes] = {}
        for id, key in (keys or {}).items():
            check = hashlib.sha256(b"nonet key check" + key).digest()[:_CHECK_BYTES]
            self._opened[_FORMAT + bytes([len(id)]) + id.encode() + check] = _aead(key)
        self._place = measured(_DOMAIN) + measured(namespace.encode())
        self.keys: tuple[str, ...] = tuple(map(_name_in, self._opened))

    def __repr__(self) -> str:
        return f"<Cipher: {len(self._opened)} keys>"

    @property
    def digest(self) -> str:
        """A short digest of the names of all keys, for comparison; empty without keys."""
        names = " ".join(sorted(self.keys)).encode()
        return hashlib.sha256(names).hexdigest()[:8] if names else ""

    def encrypt(self, data: bytes, id: str, field: str) -> Encrypted:
        """Encrypt a field of a task.

        Args:
            id: id of the task.
            field: what the data are: ``args``, ``value``, ``error`` …

        Raises:
            ConfigurationError: there is no key.
        """
        for head, key in self._opened.items():
            nonce = os.urandom(_NONCE_BYTES)
            made = key.encrypt(nonce, data, self._associated(id, field))
            return Encrypted(head + nonce + made)
        raise ConfigurationError(f"there is no key to encrypt with: set {SETTING}")

    def decrypt(self, item: Encrypted, id: str, field: str) -> bytes:
        """Decrypt a field of a task.

        Raises:
            MissingKeyError: this process has no key for it.
            MalformedMessageError: the data were changed, or belong to another task or field.
        """
        data, start = item.data, _head_length(item.data)
        if not start:
            raise MalformedMessageError(f"encrypted data of {len(data)} bytes are malformed")
        key = self._opened.get(data[:start])
        if key is None:
            raise MissingKeyError(item.key.partition(" ")[0])
        nonce, end = data[start : start + _NONCE_BYTES], start + _NONCE_BYTES
        found = key.decrypt(nonce, data[end:], self._associated(id, field))
        if found is None:
            raise MalformedMessageError(
                f"its encrypted {field} were changed, or belong to another task or namespace"
            )
        return found

    def encrypt_text(self, text: str, id: str, field: str) -> str:
        """Encrypt a text as a text. An encrypted or empty one is returned as it is.

        Raises:
            ConfigurationError: there is no key.
        """
        if not text or _in_armor(text) is not None:
            return text
        made = self.encrypt(text.encode("utf-8", "surrogatepass"), id, field)
        return MARK + base64.urlsafe_b64encode(made.data).decode()

    def decrypt_text(self, text: str, id: str, field: str) -> str:
        """Decrypt a text that `encrypt_text` made; return any other as it is.

        If that fails, return the reason in place of the text: people read it.
        """
        item = _in_armor(text)
        if item is None:
            return text
        try:
            return self.decrypt(item, id, field).decode("utf-8", "surrogatepass")
        except MissingKeyError:
            return NO_KEY
        except (MalformedMessageError, UnicodeDecodeError):
            return UNREADABLE

    def _associated(self, id: str, field: str) -> bytes:
        return self._place + measured(id.encode()) + measured(field.encode())


def is_encrypted_text(text: str) -> bool:
    """Return whether `Cipher.encrypt_text` made a text."""
    return _in_armor(text) is not None


def _aead(key: bytes) -> Aes:
    try:
        from nonet.base.messages.aes import Aes  # only processes with keys need cryptography
    except ImportError:
        raise ConfigurationError(
            f"{SETTING} needs the package cryptography: {install_with('encryption')}"
        ) from None
    return Aes(key)


def _in_armor(text: str) -> Encrypted | None:
    """Return the ciphertext in an encrypted text; None: it is a plain text."""
    if not text.startswith(MARK) or not _ARMORED.fullmatch(text, len(MARK)):
        return None
    try:
        data = base64.urlsafe_b64decode(text[len(MARK) :])
    except binascii.Error:
        return None
    return Encrypted(data) if _head_length(data) else None


def _head_length(data: bytes) -> int:
    """Return how many bytes come before the nonce; 0: the data are malformed."""
    end = len(_FORMAT) + 1 + data[1] + _CHECK_BYTES if len(data) > 1 else 0
    is_whole = data.startswith(_FORMAT) and len(data) >= end + _NONCE_BYTES + _TAG_BYTES
    return end if is_whole else 0


def _name_in(head: bytes) -> str:
    """Return the id of a key and its check, as people read them; empty without a head."""
    id, check = head[len(_FORMAT) + 1 : -_CHECK_BYTES].decode("latin-1"), head[-_CHECK_BYTES:]
    return f"{id} {check.hex()}" if KEY_ID.fullmatch(id) else ""


NO_KEYS = Cipher()
"""For processes without keys: it refuses to submit tasks of encrypted classes."""
