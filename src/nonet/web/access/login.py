"""Who may use the dashboard: users, tokens, OIDC, a proxy before it, or a one-time link."""

from __future__ import annotations

import logging
import math
import secrets

from fastapi import HTTPException
from starlette.requests import Request

from nonet.app import Nonet
from nonet.config.web_settings import WebSettings
from nonet.rules.permissions import Grant, Principal, Role, highest, read_roles
from nonet.stores.namespace.sessions import Session
from nonet.web.access.oidc import Provider
from nonet.web.access.passwords import NOBODY, Checker
from nonet.web.access.requests import household_of, is_in, networks, peer_of
from nonet.web.access.sessions import Browsers, csrf_of
from nonet.web.access.users import User, Users

logger = logging.getLogger(__name__)

# Failed logins before a user name, or an address, has to wait.
_MOST_TRIES = {"user": 10, "address": 50}
_TRIES_SECONDS = 900.0


class Login:
    """Finds who sends a request, as the settings say: the `Access` of ``task-web``.

    Args:
        nonet: the application; open when a request comes.
        settings: users, OIDC and proxy.

    Attributes:
        browsers: their sessions.
        provider: of OIDC; None: not configured.
        proxies: addresses whose headers are believed.

    Raises:
        ConfigurationError: the file of users is invalid, or the secret of sessions cannot be
            stored.
    """

    def __init__(self, nonet: Nonet, settings: WebSettings) -> None:
        self._settings = settings
        self._users = Users(settings.users)
        self._roles = read_roles(settings.oidc_roles)
        self._checker = Checker()
        self._warned: set[str] = set()
        self.proxies = networks(settings.proxy_addresses)
        self.browsers = Browsers(nonet, settings)
        self.provider = Provider(settings) if settings.oidc_issuer else None

    @property
    def has_passwords(self) -> bool:
        """Whether users can log in by a password."""
        return self._settings.users is not None

    async def identify(self, request: Request) -> Principal | None:
        """See `nonet.web.access.access.Access`.

        A bearer token counts alone, and sets `request.state.is_bearer`: no foreign page can send
        one. Otherwise `request.state.csrf` is the token that changes need,
        because the browser sends what identifies its user by itself.
        """
        kind, _, secret = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            token = self._users.token(secret.strip())
            request.state.is_bearer = token is not None
            return token.principal() if token else None
        if found := self._of_proxy(request):
            return found
        session = await self.browsers.find(request)
        found = self._principal(session) if session else None
        if found is not None:
            request.state.csrf = csrf_of(self.browsers.secret(request))
        return found

    def _principal(self, session: Session) -> Principal | None:
        """The user of a session as of now: its role may have changed, or it was removed."""
        if session.how == "file":
            user = self._users.user(session.name)
            is_same = user is not None and user.proof == session.proof
            return user.principal(session.digest) if user and is_same else None
        if session.how == "oidc":
            grant = self.grant_of(session.proof.splitlines()) if self.provider else None
        else:
            role = Role.ADMIN if session.how == "link" else Role.VIEWER
            grant = Grant(role) if self._settings.links else None
        return Principal(session.name, *grant, session=session.digest) if grant else None

    def grant_of(self, values: list[str]) -> Grant | None:
        """Return what the values of an OIDC claim grant."""
        return highest(self._roles[value] for value in values if value in self._roles)

    def roles_in(self, values: list[str]) -> list[str]:
        """Return those values of an OIDC claim that give a role."""
        return [value for value in values if value in self._roles]

    def _of_proxy(self, request: Request) -> Principal | None:
        name = self._settings.proxy_header
        names = request.headers.getlist(name) if name else []
        if not names:
            return None
        peer = peer_of(request)
        if not is_in(peer, self.proxies):
            self._warn_of(peer, name)
            return None
        # With two values, one may come from the client.
        if len(names) != 1 or not names[0].strip():
            raise HTTPException(403, f"the proxy sent {len(names)} values of {name}: let it send 1")
        user = names[0].strip()[:100]
        header = self._settings.proxy_role_header
        given = request.headers.getlist(header)
        values = [value.strip() for value in (given[0] if len(given) == 1 else "").split(",")]
        grant = highest(Grant(Role(value)) for value in values if value in tuple(Role))
        if grant is None:
            raise HTTPException(
                403, f"{user} has no role: the proxy must send {header} with {', '.join(Role)}"
            )
        cookie = self.browsers.cookie(request, "csrf")
        request.state.csrf = request.cookies.get(cookie) or secrets.token_urlsafe(32)
        if cookie not in request.cookies:
            request.state.new_cookie = cookie
        return Principal(user, *grant)

    def _warn_of(self, peer: str, header: str) -> None:
        if peer not in self._warned and len(self._warned) < 100:
            self._warned.add(peer)
            logger.warning(
                "ignored a header that only the proxy may send: header=%s address=%s; if this is "
                "the proxy, add it to NONET_WEB_PROXY_ADDRESSES",
                header,
                peer,
            )

    async def check_password(self, name: str, password: str, address: str) -> User | None:
        """Return the user with a name and a password; None: one of them is wrong.

        Raises:
            HTTPException: 429, there were too many attempts.
            ServerUnreachableError: Redis does not answer.
        """
        # Counted before the comparison, so that attempts at the same time count, too.
        await self.count_attempt("address", address)
        await self.count_attempt("user", name)
        if self._checker.is_busy:
            raise HTTPException(429, "too many logins at once: try again in some seconds")
        user = self._users.user(name)
        fits = await self._checker.fits(user.hash if user else NOBODY, password)
        if user is None or not fits:
            return None
        await self.browsers.stored.forgive(f"user {name}")
        await self.withdraw_attempt(address)
        return user

    async def count_attempt(self, kind: str, what: str) -> None:
        """Count an attempt to log in, as a ``user`` or from an ``address``.

        Raises:
            HTTPException: 429, there were too many.
            ServerUnreachableError: Redis does not answer.
        """
        what = household_of(what) if kind == "address" else what
        sessions = self.browsers.stored
        number, left = await sessions.attempt(f"{kind} {what}", _TRIES_SECONDS)
        if number > _MOST_TRIES[kind]:
            raise HTTPException(
                429,
                f"too many attempts to log in: try again in {math.ceil(left / 60)} min",
                {"Retry-After": str(math.ceil(left))},
            )

    async def withdraw_attempt(self, address: str) -> None:
        """Do not count the last attempt from an address, because it succeeded.

        Failures still count, or a user could guess the passwords of others between two logins.
        """
        what = f"address {household_of(address)}"
        await self.browsers.stored.attempt(what, _TRIES_SECONDS, -1)
