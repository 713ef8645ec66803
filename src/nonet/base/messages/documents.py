"""Encrypt the data of a task in envelopes, results and errors, and decrypt it for readers.

The other parts stay readable: ids, names of classes, labels, classes of errors and times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from nonet.base.errors import MalformedMessageError
from nonet.base.messages.encryption import (
    MARK,
    NO_KEY,
    UNREADABLE,
    Cipher,
    Encrypted,
    MissingKeyError,
    is_encrypted_text,
)
from nonet.base.messages.message import ErrorDocument, ResultDocument, decode, encode, pack

# Bytes of an error's text that are encrypted. No ciphertext is ever cut, so that it still fits into
# the history in Redis and the attempts in a row of SQL.
MOST_ERROR_BYTES = 2700

_TEXTS = ("error", "traceback", "note", "doing")
# The only key of encrypted arguments; no parameter has such a name.
_ALL = ""
# The beginning of encrypted arguments: a mapping of one entry, and its key.
_ENCODED = b"\x81\xa0"

_Document = TypeVar("_Document", ResultDocument, ErrorDocument)


def are_encrypted(args: Mapping[str, Any]) -> bool:
    """Return whether these are arguments of an envelope that are still encrypted."""
    return type(args.get(_ALL)) is Encrypted


def key_of(args: Mapping[str, Any]) -> str:
    """Return the name of the key of encrypted arguments, see `Cipher.keys`; else empty."""
    item = args.get(_ALL)
    return item.key if type(item) is Encrypted else ""


def encrypted_arguments(args: Mapping[str, Any], id: str, cipher: Cipher) -> dict[str, Any]:
    """Encrypt the packed arguments of task `id`.

    Raises:
        ConfigurationError: `cipher` has no key.

    Example:
        >>> cipher = Cipher({"2026": b"k" * 32}, "nonet")
        >>> stored = encrypted_arguments({"number": 7}, "task-1", cipher)
        >>> are_encrypted(stored), decrypted_arguments(stored, "task-1", cipher)
        (True, {'number': 7})
    """
    return {_ALL: cipher.encrypt(encode(dict(args)), id, "args")}


def decrypted_arguments(args: dict[str, Any], id: str, cipher: Cipher) -> dict[str, Any]:
    """Return the arguments of task `id`, decrypted if they are encrypted.

    Raises:
        MissingKeyError: `cipher` has no key for them.
        MalformedMessageError: they were changed, or belong to another task.
    """
    item = args.get(_ALL)
    if type(item) is not Encrypted:
        return args
    found = decode(cipher.decrypt(item, id, "args"))
    if not isinstance(found, dict):
        raise MalformedMessageError("its encrypted arguments are not a mapping")
    return found


def decrypted_bytes(data: bytes, id: str, cipher: Cipher) -> bytes:
    """Return the encoded arguments of task `id`, decrypted if they are encrypted and can be."""
    if not data.startswith(_ENCODED):
        return data
    try:
        return encode(pack(decrypted_arguments(decode(data), id, cipher)))
    except MalformedMessageError:
        return data


def concealed(document: _Document, id: str, cipher: Cipher) -> _Document:
    """Encrypt the texts of a result or an error of task `id`, unless they are encrypted already.

    A value is encrypted when it is packed, see `nonet.worker.attempt.conclusion`.

    Raises:
        ConfigurationError: `cipher` has no key.
    """
    texts = {name: getattr(document, name, "") for name in _TEXTS}
    texts["error"] = _cut(texts["error"])
    made = {name: cipher.encrypt_text(text, id, name) for name, text in texts.items() if text}
    return msgspec.structs.replace(document, **made)


def revealed(document: _Document, id: str, cipher: Cipher) -> _Document:
    """Decrypt a document of task `id`, or say in its texts why that is not possible."""
    texts = {name: getattr(document, name, "") for name in _TEXTS}
    found: dict[str, Any] = {
        name: cipher.decrypt_text(text, id, name)
        for name, text in texts.items()
        if text.startswith(MARK)
    }
    if isinstance(document, ResultDocument) and type(document.value) is Encrypted:
        try:
            found["value"] = decode(cipher.decrypt(document.value, id, "value"))
        except MalformedMessageError as error:
            found["value"] = None
            why = NO_KEY if isinstance(error, MissingKeyError) else UNREADABLE
            found["note"] = f"its result is {why}"
    return msgspec.structs.replace(document, **found) if found else document


def _cut(text: str) -> str:
    """Cut the text of an error, unless it is encrypted already."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= MOST_ERROR_BYTES or is_encrypted_text(text):
        return text
    return data[:MOST_ERROR_BYTES].decode(errors="ignore") + "…"
