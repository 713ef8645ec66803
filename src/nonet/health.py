"""What a daemon tells probes of itself: ``/livez`` and ``/readyz``, over HTTP.

The server has threads of its own, so that a blocked event loop is told, and never hides the answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from nonet.errors import ConfigurationError

logger = logging.getLogger(__name__)

# An event loop that has not come round for so long is blocked for good, says /livez.
LIVE_SECONDS = 60.0
# For so long it is at work, says /readyz: it beats each second.
READY_SECONDS = 5.0
_BEAT_SECONDS = 1.0
# Whoever has not sent a request by then, or has not taken the answer, is cut off.
_REQUEST_SECONDS = 5.0
_MOST_CONNECTIONS = 32
# A thread whose connection is cut off ends at once, unless it is stuck elsewhere.
_GIVE_WAY_SECONDS = 1.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Report:
    """Whether a daemon can do its work now.

    Attributes:
        reasons: why it is not ready, for people.
        details: more, as JSON can hold it.
    """

    ready: bool
    reasons: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


class Health:
    """Answers probes while its ``async with`` block runs.

    Args:
        host: address to listen on.
        port: 0 takes any that is free: see `port`.
        report: asked for each ``/readyz``, in a thread; it must not wait for anything.
        live_seconds: for how long the event loop may be blocked before ``/livez`` fails.
        ready_seconds: and before ``/readyz`` does.

    Attributes:
        port: the port that is listened on.

    Raises:
        ConfigurationError: nothing can listen there (when the block is entered).
    """

    def __init__(
        self,
        host: str,
        port: int,
        report: Callable[[], Report],
        *,
        live_seconds: float = LIVE_SECONDS,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        self.port = port
        self._host = host
        self._report = report
        self._live_seconds = live_seconds
        self._ready_seconds = ready_seconds
        self._beat_at = time.monotonic()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Health:
        try:
            self._server = _Server(self._host, self.port, self._answer)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(
                f"NONET_METRICS_PORT: cannot listen on {self._host} port {self.port}: {reason}; "
                "choose another port, or 0 for none"
            ) from None
        self.port = self._server.server_address[1]
        self._beat_at = time.monotonic()
        self._beating = asyncio.create_task(self._beat(), name="heartbeat")
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=[_POLL_SECONDS],
            name="nonet-health",
            daemon=True,
        )
        self._thread.start()
        logger.info("health on http://%s:%d/livez and /readyz", self._host, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
        if self._server is not None:
            # Waits for the serving thread, which comes round every `_POLL_SECONDS`. Not in a thread
            # of the loop's executor: user code may occupy them all.
            self._server.shutdown()
            self._server.server_close()
        if self._thread is not None:
            self._thread.join(1.0)

    async def _beat(self) -> None:
        while True:
            self._beat_at = time.monotonic()
            await asyncio.sleep(_BEAT_SECONDS)

    def _answer(self, path: str) -> tuple[HTTPStatus, dict[str, Any]]:
        silent = time.monotonic() - self._beat_at
        if path == "/livez":
            is_live = silent <= self._live_seconds
            body: dict[str, Any] = {"live": is_live, "blocked_seconds": round(silent, 1)}
            return _status(is_live), body
        if path != "/readyz":
            return HTTPStatus.NOT_FOUND, {"error": "there are /livez and /readyz"}
        found = self._asked()
        reasons = list(found.reasons)
        is_at_work = silent <= self._ready_seconds
        if not is_at_work:
            reasons.append(f"the event loop has been blocked for {silent:.0f} s")
        is_ready = found.ready and is_at_work
        return _status(is_ready), {"ready": is_ready, "reasons": reasons, **found.details}

    def _asked(self) -> Report:
        try:
            return self._report()
        except Exception as error:  # a probe must get an answer, whatever state we are in
            logger.exception("the report for /readyz failed")
            return Report(ready=False, reasons=[f"no report: {type(error).__name__}"])


@asynccontextmanager
async def answering_probes(
    host: str, port: int, report: Callable[[], Report]
) -> AsyncIterator[None]:
    """`Health` as the settings of a daemon ask for it; port 0: none."""
    if not port:
        yield
        return
    async with Health(host, port, report):
        yield


def _status(is_fine: bool) -> HTTPStatus:
    return HTTPStatus.OK if is_fine else HTTPStatus.SERVICE_UNAVAILABLE


_Answer = Callable[[str], tuple[HTTPStatus, dict[str, Any]]]


class _Server(ThreadingHTTPServer):
    """A thread for each connection; neither many nor slow ones pile up.

    Of too many the oldest gives way: whoever comes with a request is answered, and one that is
    slow on purpose keeps nobody out.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * _MOST_CONNECTIONS

    def __init__(self, host: str, port: int, answer: _Answer) -> None:
        self.answer = answer
        # Each connection that has a thread, the oldest first, and when it is cut off; infinite: it
        # was, and its thread is about to end.
        self._open: dict[socket.socket, float] = {}
        self._changed = threading.Condition()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # the other one asks name servers for the name of the host

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._admit(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _admit(self, request: socket.socket) -> bool:
        with self._changed:
            if len(self._open) >= _MOST_CONNECTIONS:
                oldest = (item for item, end in self._open.items() if end < math.inf)
                self._cut_off(next(oldest, None))
                self._changed.wait_for(
                    lambda: len(self._open) < _MOST_CONNECTIONS, _GIVE_WAY_SECONDS
                )
            if len(self._open) >= _MOST_CONNECTIONS:
                return False
            self._open[request] = time.monotonic() + _REQUEST_SECONDS
            return True

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify()

    def service_actions(self) -> None:
        """Cut off those who are late; called between requests, and regularly."""
        self._cut_off_late(time.monotonic())

    def server_close(self) -> None:
        super().server_close()
        self._cut_off_late(math.inf)

    def _cut_off_late(self, now: float) -> None:
        with self._changed:
            for connection in [item for item, end in self._open.items() if now >= end]:
                self._cut_off(connection)

    def _cut_off(self, connection: socket.socket | None) -> None:
        """Let whoever reads from a connection, or writes, go on; while `_changed` is held."""
        if connection is not None:
            self._open[connection] = math.inf
            with suppress(OSError):  # it has ended by itself
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a probe broke off", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "nonet"
    sys_version = ""

    def do_GET(self) -> None:
        status, body = self.server.answer(self.path.partition("?")[0])
        content = json.dumps(body, default=str).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("probe: " + format, *args)  # noqa: G003  # the form is the library's
