"""Count requests and their durations: the metrics of ``task-web``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nonet.telemetry.metrics import Histogram, Sample

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NO_ROUTE = "none"


class Requests:
    """What was requested since the process began."""

    def __init__(self) -> None:
        self._numbers: Counter[tuple[str, str, str]] = Counter()
        self._durations: dict[str, Histogram] = {}

    def note(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request by the template of its route."""
        self._numbers[route, method if method in _METHODS else "other", f"{status // 100}xx"] += 1
        self._durations.setdefault(route, Histogram()).observe(seconds)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics, see `nonet.telemetry.metrics.METRICS`; may be called in a thread."""
        for labels, number in list(self._numbers.items()):
            yield "nonet_web_requests_total", labels, float(number)
        for route, histogram in list(self._durations.items()):
            yield "nonet_web_request_seconds", (route,), histogram


class Measured:
    """ASGI middleware that counts all requests in `Requests` of the site.

    Args:
        app: what answers them.
        requests: where they are counted.
    """

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = 500, time.monotonic()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        path = scope["path"].removeprefix(scope.get("root_path", ""))
        try:
            await self._app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "")
            route = route or ("/static" if path.startswith("/static/") else _NO_ROUTE)
            self._requests.note(route, scope["method"], status, time.monotonic() - began)
