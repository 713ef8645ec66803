"""Sessions of browsers: the cookie, and what is known of it in Redis."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import time
from functools import cached_property

from starlette.requests import Request
from starlette.responses import Response

from nonet.app import Nonet
from nonet.config.web_settings import WebSettings
from nonet.stores.namespace.sessions import Session, Sessions, digest_of
from nonet.web.access.requests import address, base_of, is_secure
from nonet.web.access.secret import make_secret

# A session that another process ends is over here after so long.
_REMEMBERED_SECONDS = 1.0
_MOST_REMEMBERED = 5000
# Extend a session when this part of its idle time has passed.
_EXTEND_AT = 0.05


class Browsers:
    """The sessions of browsers.

    Args:
        nonet: the application; open when a method is called.
        settings: how long sessions last, and the address of the pages.

    Raises:
        ConfigurationError: the secret that authenticates sessions cannot be stored.
    """

    def __init__(self, nonet: Nonet, settings: WebSettings) -> None:
        self._nonet = nonet
        self._settings = settings
        self._secret = make_secret(settings, nonet.settings.state_dir)
        self._known: dict[str, tuple[float, Session | None]] = {}
        self._extended: dict[str, float] = {}

    @cached_property
    def stored(self) -> Sessions:
        """The sessions, one-time links and attempts to log in, in Redis."""
        return self._nonet.stores.sessions(self._secret)

    def cookie(self, request: Request, name: str = "") -> str:
        """Return the name of a cookie of this namespace; empty `name`: of the session."""
        full = f"nonet-{self._nonet.settings.namespace}{name and '-' + name}"
        return f"__Host-{full}" if is_secure(request, self._settings) else full

    def secret(self, request: Request) -> str:
        """Return the secret of the session of a request; empty: it has none."""
        return request.cookies.get(self.cookie(request), "")

    async def find(self, request: Request) -> Session | None:
        """Return the session of a request, and let it last longer if its user does something.

        Raises:
            ServerUnreachableError: Redis does not answer.
        """
        secret = self.secret(request)
        if not secret:
            return None
        digest, now = digest_of(secret), time.monotonic()
        at, found = self._known.get(digest, (0.0, None))
        if now - at > _REMEMBERED_SECONDS:
            found = await self.stored.find(digest)
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
                self._extended.clear()
            self._known[digest] = now, found
        if found is None or found.until <= time.time():
            return None
        idle = self._settings.session_idle
        if _is_by_hand(request) and now - self._extended.get(digest, 0.0) > idle * _EXTEND_AT:
            self._extended[digest] = now
            await self.stored.extend(found, idle)
        return found

    async def begin(
        self,
        request: Request,
        answer: Response,
        name: str,
        how: str,
        proof: str = "",
        until: float = math.inf,
    ) -> None:
        """Begin a session with a new secret, end the one that the browser had, set the cookie.

        Args:
            until: its end, if that comes before the usual one.
        """
        if old := self.secret(request):
            await self._end(digest_of(old))
        secret, now = secrets.token_urlsafe(32), time.time()
        session = Session(
            name=name,
            how=how,
            proof=proof,
            address=address.get(),
            browser=request.headers.get("User-Agent", "")[:200],
            since=now,
            until=min(until, now + self._settings.session),
            digest=digest_of(secret),
        )
        await self.stored.begin(session, self._settings.session_idle)
        self.set_cookie(request, answer, self.cookie(request), secret)

    async def end(self, request: Request, answer: Response) -> None:
        """End the session of a request, and delete its cookie."""
        if secret := self.secret(request):
            await self._end(digest_of(secret))
        self.delete_cookie(request, answer, self.cookie(request))

    async def end_other(self, name: str, digest: str) -> None:
        """End a session of a user by its digest."""
        self._known.pop(digest, None)
        await self.stored.end(name, digest)

    async def _end(self, digest: str) -> None:
        self._known.pop(digest, None)
        if found := await self.stored.find(digest):
            await self.stored.end(found.name, digest)

    def set_cookie(
        self, request: Request, answer: Response, name: str, value: str, seconds: int | None = None
    ) -> None:
        """Set a cookie that no script reads; None: it lasts as long as the browser."""
        answer.set_cookie(
            name,
            value,
            max_age=seconds,
            path=self._path(request),
            secure=is_secure(request, self._settings),
            httponly=True,
            # Not strict: a link in a mail, and the way back from an OIDC provider, need it.
            samesite="lax",
        )

    def delete_cookie(self, request: Request, answer: Response, name: str) -> None:
        """Delete a cookie."""
        self.set_cookie(request, answer, name, "", 0)

    def _path(self, request: Request) -> str:
        # `__Host-` allows no other path than the root.
        return "/" if is_secure(request, self._settings) else base_of(request.scope) or "/"


def csrf_of(secret: str) -> str:
    """Return the token that forms of a session send, made of the secret of its cookie."""
    return hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def _is_by_hand(request: Request) -> bool:
    """Return whether a person caused a request, rather than a page that refreshes itself.

    Browsers say so of addresses that they trust (https and loopback); others count as a person.
    """
    is_refresh = "Nonet-Refresh" in request.headers
    mode = "cors" if is_refresh else request.headers.get("Sec-Fetch-Mode", "navigate")
    return mode == "navigate" or request.method not in ("GET", "HEAD")
