"""Connections of ``task-web``: limit the time of each client and the number of connections."""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# How long a client may take to send the head of a request, and then its body.
HEAD_SECONDS, BODY_SECONDS = 10.0, 60.0
# How long it may take to read enough of an answer that the buffer has room again.
READ_SECONDS = 60.0
_MOST_CONNECTIONS = 500


def most_connections() -> int:
    """Return how many connections may be open: at most half of the file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if soft < 0 else min(_MOST_CONNECTIONS, soft // 2)


class Connection(H11Protocol):
    """A connection that is closed when its client is too slow.

    uvicorn limits only the pause between two requests. A client that sends half a request, or reads
    no answer, would keep its connection open forever.

    When there are too many connections, close the one that has waited longest for its client, as
    at the probe port (`nonet.daemon.probe_server`): slow clients cannot keep new ones out.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sending: Any = None  # the part of a request that the client sends
        self._deadline: asyncio.TimerHandle | None = None
        self._read_deadline: asyncio.TimerHandle | None = None
        self._since = time.monotonic()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > most_connections():
            known = [one for one in self.connections if isinstance(one, Connection)]
            waiting = [one for one in known if one._is_waiting]
            min(waiting or [self], key=lambda one: one._since)._cut_off()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = time.monotonic()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_deadline = self.loop.call_later(READ_SECONDS, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read_deadline is not None:
            self._read_deadline.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._deadline, self._read_deadline):
            if timer is not None:
                timer.cancel()

    @property
    def _is_waiting(self) -> bool:
        """Whether the server waits for the client: for a request, or for the rest of one."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        return not is_answering or self.conn.their_state is h11.SEND_BODY

    def _watch(self) -> None:
        """Set the deadline of the part that the client sends now, if it has to send one."""
        state = self.conn.their_state
        if state is self._sending:
            return  # the deadline counts from the first byte of this part
        self._sending, self._since = state, time.monotonic()
        if self._deadline is not None:
            self._deadline.cancel()
        seconds = {h11.IDLE: HEAD_SECONDS, h11.SEND_BODY: BODY_SECONDS}.get(state)
        self._deadline = self.loop.call_later(seconds, self._cut_off) if seconds else None

    def _cut_off(self) -> None:
        self.transport.abort()  # a graceful close would wait for the client to read
