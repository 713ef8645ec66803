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
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from nonet.base.errors import NonetError
from nonet.base.loop import in_own_thread
from nonet.rules.findings.alerts import Alerts, changes, found_now, message
from nonet.rules.findings.situation import Overview
from nonet.telemetry.failure_log import FailureLog

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 60.0
_ANSWER_SECONDS = 10.0


class Webhook:
    """Checks the namespace each minute, and reports findings that last, and their end.

    The next check repeats a report that failed, together with later findings. A new leader starts
    anew: it reports lasting findings again, but no ended ones.

    Args:
        overview: reads what is wrong.
        url: where to report.
        secret: key of the signature; empty: none.
        page: address of the dashboard, for links; empty: none.
    """

    def __init__(
        self,
        overview: Callable[[], Awaitable[Overview]],
        namespace: str,
        url: str,
        secret: str = "",
        page: str = "",
    ) -> None:
        self._overview = overview
        self._namespace = namespace
        self._url = url
        self._secret = secret
        self._page = page
        self._last: Alerts = {}
        self._reported: Alerts = {}
        self._failures = FailureLog(f"webhook at {urlsplit(url).hostname}", logger)

    async def tick(self, term: str) -> float:
        """Check, and report; return the seconds until the next call.

        Raises:
            ServerUnreachableError: Redis does not answer.
        """
        now, known = datetime.now(UTC), {**self._reported, **self._last}
        found = found_now((await self._overview()).findings, known, now)
        new, ended = changes(self._reported, self._last, found)
        self._last = found
        if new or ended:
            document = message(new, ended, self._namespace, now, self._page)
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):  # a server may answer byte by byte
                    await in_own_thread(lambda: post(self._url, document, self._secret))
            except (NonetError, TimeoutError) as error:
                self._failures.failed(error, _CHECK_SECONDS)
            else:
                self._failures.succeeded()
                kept = {key: one for key, one in self._reported.items() if key not in ended}
                self._reported = {**kept, **new}
        return _CHECK_SECONDS


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, which would repeat a POST as a GET."""

    def redirect_request(self, *args: object, **options: object) -> None:
        """See `urllib.request.HTTPRedirectHandler`."""


def post(url: str, document: dict[str, object], secret: str) -> None:
    """Send a document as JSON; blocks.

    Raises:
        NonetError: there was no answer in time, or its status was not 200 to 299. The error does
            not name the path of the URL, which may hold a token.
    """
    body, sent_at = json.dumps(document).encode(), str(int(time.time()))
    headers = {"Content-Type": "application/json", "User-Agent": "nonet"}
    if secret:
        signed = f"{sent_at}.".encode() + body
        digest = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
        headers |= {"X-Nonet-Timestamp": sent_at, "X-Nonet-Signature": f"sha256={digest}"}
    try:
        request = Request(url, body, headers, method="POST")
        build_opener(_NoRedirects).open(request, timeout=_ANSWER_SECONDS).close()
    except HTTPError as error:
        error.close()
        raise NonetError(f"it answered {error.code}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", type(error).__name__)
        raise NonetError(f"no answer: {reason}") from None
