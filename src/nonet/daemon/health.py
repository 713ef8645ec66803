"""What a daemon answers on its port: ``/livez``, ``/readyz``, metrics and other pages.

The server has its own threads, so that it answers while the event loop is blocked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from nonet.base.errors import ConfigurationError
from nonet.base.version import __version__
from nonet.daemon.answer import Answer, Page
from nonet.telemetry.failure_log import FailureLog
from nonet.telemetry.log_guard import log_error_samples
from nonet.telemetry.metrics import Sample, Samples

if TYPE_CHECKING:
    from nonet.daemon.probe_server import ProbeServer

logger = logging.getLogger(__name__)

# ``/livez`` fails after the event loop has been blocked for this long.
LIVE_SECONDS = 60.0
# ``/readyz`` fails after the event loop has been blocked for this long; it beats each second.
READY_SECONDS = 5.0
_BEAT_SECONDS = 1.0
# Do not report a shorter silence: it may be the pause between two beats.
_SILENT_BEATS = 2
_POLL_SECONDS = 0.1
_LAST_PORT = 65_535


class Report(Struct, frozen=True):
    """Whether a daemon can do its work now.

    Attributes:
        reasons: why it is not ready, for people.
        details: further fields of the JSON answer.
    """

    ready: bool
    reasons: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


class Observed(Protocol):
    """What `answering_probes` needs from a daemon; called in threads, must not block."""

    def report(self) -> Report:
        """Whether the daemon can do its work, for ``/readyz``."""

    def stuck(self) -> Sequence[str]:
        """Why the daemon makes no progress although its event loop runs, for ``/livez``."""
        return ()

    def samples(self) -> Samples:
        """The metrics of the daemon, see `nonet.telemetry.metrics.METRICS`."""

    def pages(self) -> Mapping[str, Page]:
        """Further pages by path."""
        return {}


class Health:
    """Answer probes while the ``async with`` block runs.

    Args:
        host: address to listen on.
        port: 0 takes any free port: see `port`.
        report: called in a thread for each ``/readyz``; must not block.
        stuck: called for each ``/livez``; returns why the process makes no progress.
        pages: further pages by path.
        live_seconds: how long the event loop may be blocked before ``/livez`` fails.
        ready_seconds: how long it may be blocked before ``/readyz`` fails.

    Attributes:
        port: the port that it listens on.

    Raises:
        ConfigurationError: the port cannot be opened (when the block is entered).
    """

    def __init__(
        self,
        host: str,
        port: int,
        report: Callable[[], Report],
        *,
        stuck: Callable[[], Sequence[str]] = tuple,
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
        self._server: ProbeServer | None = None
        self._thread: threading.Thread | None = None
        self._failures: dict[str, FailureLog] = {}
        self._report_failures = FailureLog("the report for /readyz", logger)
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Health:
        from nonet.daemon.probe_server import ProbeServer  # most workers serve no port

        try:
            self._server = ProbeServer((self._host, self.port), family_of(self._host), self._answer)
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
        logger.info("listening: url=http://%s:%d paths=%s", self._host, self.port, self._paths)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
        if self._server is not None:
            # Waits up to `_POLL_SECONDS` for the serving thread. Not in a thread of the loop's
            # executor: tasks may occupy all of them.
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
        """Whether ``/readyz`` answers 200."""
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
        failures = self._failures.setdefault(path, FailureLog(path, logger))
        try:
            answer = page(accept)
            failures.succeeded()
            return answer
        except Exception as error:
            failures.failed(error)
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return Answer(b"failed, see the log\n", status, "text/plain")

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
            report = self._report()
            self._report_failures.succeeded()
            return report
        except Exception as error:  # a probe must get an answer in any state
            self._report_failures.failed(error)
            return Report(ready=False, reasons=[f"no report: {type(error).__name__}"])


@asynccontextmanager
async def answering_probes(host: str, port: int, daemon: Observed) -> AsyncIterator[None]:
    """Serve probes and metrics of a daemon during the block; port 0 serves nothing."""
    if not port:
        yield
        return
    from nonet.telemetry.exposition import Exposition  # only a daemon with a port needs it

    def read() -> Iterator[Sample]:
        yield "nonet_build_info", (__version__,), 1.0
        yield "nonet_ready", (), float(health.is_ready)
        yield from log_error_samples()
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
    """Return the first port above `above` on which a daemon could listen now, or 0.

    Args:
        taken: ports that other processes are about to open.
    """
    for port in range(above + 1, _LAST_PORT + 1):
        if port not in taken:
            with suppress(OSError), socket.create_server((host, port), family=family_of(host)):
                return port
    return 0


def family_of(host: str) -> socket.AddressFamily:
    """Return the address family of a host that is an address, IPv6 if it has a colon."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
