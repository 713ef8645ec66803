"""What a daemon tells of itself over HTTP: ``/livez`` and ``/readyz``, metrics, and more.

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
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from socketserver import TCPServer
from typing import Any, Protocol

from nonet.base.errors import ConfigurationError
from nonet.telemetry.metrics import Sample, Samples

logger = logging.getLogger(__name__)

# An event loop that has not come round for so long is blocked for good, says /livez.
LIVE_SECONDS = 60.0
# For so long it is at work, says /readyz: it beats each second.
READY_SECONDS = 5.0
_BEAT_SECONDS = 1.0
# Between two beats a loop is silent, but not blocked.
_SILENT_BEATS = 2
# Whoever has not sent a request by then, or has not taken the answer, is cut off.
_REQUEST_SECONDS = 5.0
_MOST_CONNECTIONS = 32
# A thread whose connection is cut off ends at once, unless it is stuck elsewhere.
_GIVE_WAY_SECONDS = 1.0
_POLL_SECONDS = 0.1
# How often the same failure is told: whoever asks does so again and again.
_TELL_SECONDS = 60.0
_LAST_PORT = 65_535


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


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent for a path."""

    content: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "application/json"

    @classmethod
    def json(cls, body: Mapping[str, Any], *, is_fine: bool = True) -> Answer:
        """One line of JSON; 503 if something is not as it should be."""
        status = HTTPStatus.OK if is_fine else HTTPStatus.SERVICE_UNAVAILABLE
        return cls(json.dumps(body, default=str).encode() + b"\n", status)


Page = Callable[[str], Answer]
"""Answers a path, given the header ``Accept``; called in a thread, where it must not wait."""


class Observed(Protocol):
    """A daemon as `answering_probes` sees it; all is asked in a thread and waits for nothing."""

    def report(self) -> Report:
        """Whether it can do its work, for ``/readyz``."""

    def stuck(self) -> Sequence[str]:
        """Why it makes no progress although its event loop goes round, for ``/livez``."""

    def samples(self) -> Samples:
        """Its metrics, see `nonet.telemetry.metrics.METRICS`."""

    def pages(self) -> Mapping[str, Page]:
        """What it answers beside probes and metrics, by path."""


def never_stuck() -> Sequence[str]:
    """Of a daemon that has nothing but its event loop."""
    return ()


class Health:
    """Answers probes while its ``async with`` block runs.

    Args:
        host: address to listen on.
        port: 0 takes any that is free: see `port`.
        report: asked for each ``/readyz``, in a thread; it must not wait for anything.
        stuck: asked for each ``/livez``: why the process makes no progress, if it does not.
        pages: what else is answered, by path.
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
        stuck: Callable[[], Sequence[str]] = never_stuck,
        pages: Mapping[str, Page] | None = None,
        live_seconds: float = LIVE_SECONDS,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        self.port = port
        self._host = host
        self._report = report
        self._stuck = stuck
        self._pages: Mapping[str, Page] = {
            "/livez": lambda _: self._live(),
            "/readyz": lambda _: self._ready(),
            **(pages or {}),
        }
        self._live_seconds = live_seconds
        self._ready_seconds = ready_seconds
        self._beat_at = time.monotonic()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._told_at: dict[str, float] = {}
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
        logger.info("health on http://%s:%d: %s", self._host, self.port, self._paths)
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

    @property
    def is_ready(self) -> bool:
        """What ``/readyz`` says."""
        return self._ready().status is HTTPStatus.OK

    @property
    def _paths(self) -> str:
        *others, last = self._pages
        return f"{', '.join(others)} and {last}"

    def _answer(self, path: str, accept: str) -> Answer:
        page = self._pages.get(path)
        if page is None:
            body = json.dumps({"error": f"there are {self._paths}"}).encode() + b"\n"
            return Answer(body, HTTPStatus.NOT_FOUND)
        try:
            return page(accept)
        except Exception:
            self._tell_failure(path)
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return Answer(b"failed, see the log\n", status, "text/plain")

    def _tell_failure(self, what: str) -> None:
        """Log the current exception, unless the last one of the same was logged just now."""
        now = time.monotonic()
        if now - self._told_at.get(what, -math.inf) >= _TELL_SECONDS:
            self._told_at[what] = now
            logger.exception("%s failed; it is told once a minute", what)

    def _live(self) -> Answer:
        silent = time.monotonic() - self._beat_at
        reasons = list(self._stuck())
        if silent > self._live_seconds:
            reasons.append(f"the event loop has been blocked for {silent:.0f} s")
        blocked = round(silent, 1) if silent > _SILENT_BEATS * _BEAT_SECONDS else 0.0
        body = {"live": not reasons, "blocked_seconds": blocked, "reasons": reasons}
        return Answer.json(body, is_fine=not reasons)

    def _ready(self) -> Answer:
        silent = time.monotonic() - self._beat_at
        found = self._asked()
        reasons = list(found.reasons)
        is_at_work = silent <= self._ready_seconds
        if not is_at_work:
            reasons.append(f"the event loop has been blocked for {silent:.0f} s")
        is_ready = found.ready and is_at_work
        body = {"ready": is_ready, "reasons": reasons, **found.details}
        return Answer.json(body, is_fine=is_ready)

    def _asked(self) -> Report:
        try:
            return self._report()
        except Exception as error:  # a probe must get an answer, whatever state we are in
            self._tell_failure("the report for /readyz")
            return Report(ready=False, reasons=[f"no report: {type(error).__name__}"])


@asynccontextmanager
async def answering_probes(host: str, port: int, daemon: Observed) -> AsyncIterator[None]:
    """`Health` and the metrics of a daemon, as its settings ask for them; port 0: none."""
    if not port:
        yield
        return
    # Here, as it costs a daemon without a port nothing.
    from nonet.telemetry.exposition import Exposition

    def read() -> Iterator[Sample]:
        yield "nonet_build_info", (version("nonet"),), 1.0
        yield "nonet_ready", (), float(health.is_ready)
        yield from daemon.samples()

    def metrics(accept: str) -> Answer:
        content, content_type = exposition.render(accept)
        return Answer(content, content_type=content_type)

    exposition = Exposition(read)
    pages = {"/metrics": metrics, **daemon.pages()}
    health = Health(host, port, daemon.report, stuck=daemon.stuck, pages=pages)
    async with health:
        yield


def free_port(host: str, above: int, taken: Collection[int] = ()) -> int:
    """The first port above `above` on which a daemon could listen now; 0: there is none.

    Args:
        taken: ports that somebody else is about to listen on.
    """
    for port in range(above + 1, _LAST_PORT + 1):
        if port not in taken:
            with suppress(OSError), socket.create_server((host, port), family=_family(host)):
                return port
    return 0


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


_Answers = Callable[[str, str], Answer]


class _Server(ThreadingHTTPServer):
    """A thread for each connection; neither many nor slow ones pile up.

    Of too many the oldest gives way: whoever comes with a request is answered, and one that is
    slow on purpose keeps nobody out.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * _MOST_CONNECTIONS

    def __init__(self, host: str, port: int, answer: _Answers) -> None:
        self.answer = answer
        # Each connection that has a thread, the oldest first, and when it is cut off; infinite: it
        # was, and its thread is about to end.
        self._open: dict[socket.socket, float] = {}
        self._changed = threading.Condition()
        self.address_family = _family(host)
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
        path, accept = self.path.partition("?")[0], self.headers.get("Accept", "")
        answer = self.server.answer(path, accept)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("probe: " + format, *args)  # noqa: G003  # the form is the library's
