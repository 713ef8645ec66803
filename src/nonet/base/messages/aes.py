"""`Aes`: encrypts and decrypts bytes with one key (AES-GCM), with the package cryptography."""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class Aes:
    """A key."""

    def __init__(self, key: bytes) -> None:
        self._key = AESGCM(key)

    def encrypt(self, nonce: bytes, data: bytes, associated: bytes) -> bytes:
        """Encrypt data, and sign them with what they belong to."""
        return self._key.encrypt(nonce, data, associated)

    def decrypt(self, nonce: bytes, data: bytes, associated: bytes) -> bytes | None:
        """Decrypt data; None if they, or what they belong to, were changed."""
        try:
            return self._key.decrypt(nonce, data, associated)
        except InvalidTag:
            return None
