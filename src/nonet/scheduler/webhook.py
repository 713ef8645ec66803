"""Report what an overview finds to ``NONET_WEBHOOK_URL``; runs in the leader."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from http import HTTPStatus
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from nonet.base.errors import NonetError
from nonet.base.loop import in_own_thread
from nonet.rules import alerts
from nonet.rules.situation import Overview
from nonet.stores.namespace.alerts import Alerts
from nonet.telemetry.failures import FailureLog

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 60.0
_ANSWER_SECONDS = 10.0
_FIRST_RETRY_SECONDS = 2.0
_LONGEST_RETRY_SECONDS = 300.0


class Webhook:
    """Looks at the namespace each minute, and reports findings that last, and their end.

    A report that fails is repeated with growing pauses, and later findings join it.

    Args:
        overview: reads what is wrong.
        store: what was reported; a new leader continues there.
        url: where to report.
        secret: key of the signature; empty: none.
        page: address of the dashboard, for links; empty: none.
        look_seconds: pause between two looks.
    """

    def __init__(
        self,
        overview: Callable[[], Awaitable[Overview]],
        store: Alerts,
        namespace: str,
        url: str,
        secret: str = "",
        page: str = "",
        *,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._overview = overview
        self._store = store
        self._namespace = namespace
        self._url = url
        self._secret = secret
        self._page = page
        self._look_seconds = look_seconds
        self._term = ""
        self._known: alerts.Known = {}
        self._look_at = self._send_at = 0.0
        self._failures = FailureLog(f"webhook at {urlsplit(url).hostname}", logger)
        self._failed_in_a_row = 0

    async def tick(self, term: str) -> float:
        """Look or report if it is time; return the seconds until the next call.

        Raises:
            ServerUnreachableError: Redis does not answer.
        """
        if term != self._term:
            self._known = alerts.from_rows(await self._store.read())
            self._term = term
        if time.monotonic() >= self._look_at:
            findings = (await self._overview()).findings
            self._look_at = time.monotonic() + self._look_seconds
            await self._keep(alerts.looked(self._known, findings, datetime.now(UTC)))
        if alerts.pending(self._known) and time.monotonic() >= self._send_at:
            await self._report()
        due = min(self._look_at, self._send_at) if alerts.pending(self._known) else self._look_at
        return max(0.0, due - time.monotonic())

    async def _keep(self, known: alerts.Known) -> None:
        if known != self._known:
            await self._store.keep(self._term, alerts.to_rows(known))
            self._known = known

    async def _report(self) -> None:
        document = alerts.message(
            alerts.pending(self._known), self._namespace, datetime.now(UTC), self._page
        )
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):  # a server may answer byte by byte
                await in_own_thread(lambda: post(self._url, document, self._secret))
        except (NonetError, TimeoutError) as error:
            pause = min(_LONGEST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2**self._failed_in_a_row)
            self._failed_in_a_row = min(self._failed_in_a_row + 1, 10)
            self._send_at = time.monotonic() + pause
            self._failures.failed(error, pause)
            return
        self._failed_in_a_row, self._send_at = 0, 0.0
        self._failures.succeeded()
        await self._keep(alerts.told(self._known))


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, which would repeat a POST as a GET."""

    def redirect_request(self, *args: object, **options: object) -> None:
        """See `urllib.request.HTTPRedirectHandler`."""


def post(url: str, document: dict[str, object], secret: str) -> None:
    """Send a document as JSON; blocks.

    Raises:
        NonetError: there was no answer in time, or none with a status of 200 to 299. It does not
            name the path of the URL, which may hold a token.
    """
    body = json.dumps(document).encode()
    sent_at = str(int(time.time()))
    headers = {"Content-Type": "application/json", "User-Agent": "nonet"}
    if secret:
        signed = f"{sent_at}.".encode() + body
        digest = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
        headers |= {"X-Nonet-Timestamp": sent_at, "X-Nonet-Signature": f"sha256={digest}"}
    try:
        request = Request(url, body, headers, method="POST")
        with build_opener(_NoRedirects).open(request, timeout=_ANSWER_SECONDS) as answer:
            answer.read(1)
    except HTTPError as error:
        error.close()
        words = f"{error.code} {HTTPStatus(error.code).phrase if error.code in _CODES else ''}"
        raise NonetError(f"it answered {words.strip()}") from None
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else type(error).__name__
        raise NonetError(f"no answer: {reason}") from None


_CODES = frozenset(HTTPStatus)
