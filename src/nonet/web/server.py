"""Serve the dashboard as a daemon: listen, answer until a stop is requested, and end in time."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager

import uvicorn
from starlette.types import ASGIApp

from nonet.base.errors import ConfigurationError
from nonet.config.web_settings import WebSettings
from nonet.daemon.answer import Page
from nonet.daemon.health import Report
from nonet.daemon.service import Stop
from nonet.telemetry.metrics import Sample
from nonet.web.connection import Connection
from nonet.web.site import Site

logger = logging.getLogger(__name__)

# How long requests in flight may take after a stop request.
_GRACE_SECONDS = 5


class Server:
    """The HTTP server of ``task-web``.

    Args:
        app: what it serves.
        settings: where it listens.
        sites: those that `app` passes requests to.
    """

    def __init__(self, app: ASGIApp, settings: WebSettings, sites: Sequence[Site]) -> None:
        self._app = app
        self._sites = sites
        self._settings = settings
        self._server: uvicorn.Server | None = None

    async def run(self, stop: Stop) -> None:
        """Serve until a stop is requested.

        Raises:
            ConfigurationError: the address cannot be used.
        """
        listener = self._listen()
        host, port = listener.getsockname()[:2]
        config = uvicorn.Config(
            self._app,
            http=Connection,
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        self._server = server = _Server(config)
        serving = asyncio.create_task(server.serve([listener]), name="web server")
        logger.info("ready: url=http://%s:%d", host, port)
        stopping = asyncio.create_task(stop.requested.wait(), name="stop")
        async with AsyncExitStack() as around:
            for site in self._sites:
                await around.enter_async_context(site.at_work())
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        server.should_exit = True
        forcing = asyncio.create_task(stop.forced.wait(), name="second stop")
        await asyncio.wait({serving, forcing}, return_when=asyncio.FIRST_COMPLETED)
        server.force_exit = forcing.done()
        forcing.cancel()
        await serving
        for site in self._sites:
            await site.bulks.close()

    @property
    def is_ready(self) -> bool:
        """Whether it answers requests."""
        return self._server is not None and self._server.started

    def _listen(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family, backlog=128)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(
                f"NONET_WEB_PORT: cannot listen on {host} port {port}: {reason}; choose another "
                "port"
            ) from None

    def report(self) -> Report:
        """Whether it listens and Redis answers, for ``/readyz``."""
        reasons = []
        if not self.is_ready:
            reasons.append("it does not listen yet")
        reasons += [site.redis.problem for site in self._sites if site.redis.problem]
        return Report(not reasons, reasons)

    def stuck(self) -> Sequence[str]:
        """See `nonet.daemon.health.Observed`."""
        return ()

    def samples(self) -> Iterator[Sample]:
        """See `nonet.daemon.health.Observed`."""
        yield from self._sites[0].requests.samples()

    def pages(self) -> Mapping[str, Page]:
        """See `nonet.daemon.health.Observed`."""
        return {}


class _Server(uvicorn.Server):
    """Leaves signals to `nonet.daemon.service.stop_on_signals`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See `uvicorn.Server`."""
        yield
