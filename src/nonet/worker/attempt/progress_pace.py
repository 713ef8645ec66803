"""Send the progress of one attempt, at most once a second."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from nonet.tasks.progress import Said

_INTERVAL_SECONDS = 1.0

Send = Callable[[float | None, Said], None]
"""Sends fraction and what it says. It is called in the event loop, and returns at once."""


class Pace:
    """Sends the first report at once, and later ones when a second has passed since the last.

    Of the reports within a second only the newest is sent, at the end of the second.

    Args:
        loop: the event loop in which `send` is called.
    """

    def __init__(self, send: Send, loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        self._lock = threading.Lock()
        self._next_at = 0.0
        self._newest: tuple[float | None, Said] | None = None

    def report(self, fraction: float | None, said: Said) -> None:
        """Send this progress now or soon; from any thread."""
        is_here = asyncio._get_running_loop() is self._loop
        with self._lock:
            is_planned = self._newest is not None
            self._newest = fraction, said
            is_early = time.monotonic() < self._next_at
        # The timer of an earlier report sends it, too. But code that blocks the loop sends it
        # itself once it is due: no timer fires meanwhile.
        if is_planned and (is_early or not is_here):
            return
        if is_here:
            self._send_if_due()
        else:
            with suppress(RuntimeError):  # a thread of the task may outlive the loop
                self._loop.call_soon_threadsafe(self._send_if_due)

    def _send_if_due(self) -> None:
        with self._lock:
            newest, now = self._newest, time.monotonic()
            if newest is None:
                return
            pause = self._next_at - now
            if pause <= 0:
                self._newest, self._next_at = None, now + _INTERVAL_SECONDS
        if pause > 0:
            self._loop.call_later(pause, self._send_if_due)
        else:
            self._send(*newest)
