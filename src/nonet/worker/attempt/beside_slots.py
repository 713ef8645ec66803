"""Attempts that use no slot of a worker: the base of `Suspects` and `Burials`."""

from __future__ import annotations

import asyncio

from nonet.worker.attempt.attempt import Attempt


class Lane:
    """A set of attempts that use no slot.

    Attributes:
        attempts: the attempts that run or wait in this lane.
        freed: set when one of them has ended.
    """

    def __init__(self) -> None:
        self.attempts: set[Attempt] = set()
        self.freed: asyncio.Event = asyncio.Event()

    def drop(self, attempt: Attempt) -> None:
        """Remove an attempt that has ended; ignore an attempt of another lane."""
        if attempt in self.attempts:
            self.attempts.discard(attempt)
            self.freed.set()
