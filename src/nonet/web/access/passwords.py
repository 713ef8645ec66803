"""Hash passwords by scrypt, and compare them outside of the event loop."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

# As OWASP recommends: 32 MiB and about 0.2 s for each password.
_N, _R, _P = 2**15, 8, 3
_MOST_MEMORY = 256 * 2**20
_FORM = re.compile(r"scrypt\$(\d+)\$(\d+)\$(\d+)\$([\w/+]+=*)\$([\w/+]+=*)")
# Each takes `_MOST_MEMORY` at most, and a core.
_AT_A_TIME = 2
_MOST_WAITING = 20


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """The scrypt hash of a password, with its parameters and its salt."""

    n: int
    r: int
    p: int
    salt: bytes
    value: bytes

    @classmethod
    def of(cls, password: str) -> PasswordHash:
        """Hash a password. Takes a fifth of a second."""
        made = cls(_N, _R, _P, os.urandom(16), bytes(32))
        return cls(made.n, made.r, made.p, made.salt, made._derive(password))

    @classmethod
    def read(cls, text: str) -> PasswordHash:
        """Read the text of a hash.

        Raises:
            ValueError: it is not one, or takes too much memory or time.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError("is not the hash of a password: make it with 'task-run web password'")
        n, r, p = map(int, found.groups()[:3])
        salt, value = (base64.b64decode(part) for part in found.groups()[3:])
        if n < 2**14 or n & (n - 1) or not (r >= 1 and 1 <= p <= 16):
            raise ValueError("has weak or invalid parameters: make it with 'task-run web password'")
        if 128 * n * r > _MOST_MEMORY:
            raise ValueError(f"needs more than {_MOST_MEMORY >> 20} MiB for each login")
        if len(salt) < 8 or len(value) < 16:
            raise ValueError("is too short: make it with 'task-run web password'")
        return cls(n, r, p, salt, value)

    def __str__(self) -> str:
        salt, value = (base64.b64encode(part).decode() for part in (self.salt, self.value))
        return f"scrypt${self.n}${self.r}${self.p}${salt}${value}"

    def fits(self, password: str) -> bool:
        """Return whether this is the hash of a password; takes as long either way."""
        return hmac.compare_digest(self._derive(password), self.value)

    def _derive(self, password: str) -> bytes:
        return hashlib.scrypt(
            password.encode(),
            salt=self.salt,
            n=self.n,
            r=self.r,
            p=self.p,
            maxmem=2 * _MOST_MEMORY,
            dklen=len(self.value),
        )


# Compared with the password of an unknown user, so that its answer takes as long.
NOBODY = PasswordHash(_N, _R, _P, bytes(16), bytes(32))


class Checker:
    """Compares passwords, a few at a time."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._waiting = 0

    @property
    def is_busy(self) -> bool:
        """Whether so many callers wait that another one should come again later."""
        return self._waiting >= _MOST_WAITING

    async def fits(self, known: PasswordHash, password: str) -> bool:
        """Return whether `known` is the hash of a password."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_AT_A_TIME, "nonet-password")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, known.fits, password)
        finally:
            self._waiting -= 1
