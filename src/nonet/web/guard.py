"""Refuse requests of unknown callers and foreign pages; add headers that protect browsers."""

from __future__ import annotations

import hmac
import math
from urllib.parse import parse_qs, urlencode, urlsplit

from fastapi import HTTPException
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nonet.rules.permissions import Action
from nonet.web import error_responses as failures
from nonet.web.access import requests
from nonet.web.access.rates import Rates
from nonet.web.access.requests import origin_of, own_path
from nonet.web.rendering import MESSAGE

PUBLIC = frozenset({"/login", "/login/link", "/login/oidc", "/login/callback", "/livez", "/readyz"})
"""Paths that need no login, besides those below `STATIC`."""
STATIC = "/static/"

_SAFE = ("GET", "HEAD", "OPTIONS")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
# The longest body of a form, of a caller without a login, and of `_BULK`. The body of one task may
# be `_OF_MESSAGE` times NONET_MESSAGE_LIMIT, because JSON escapes lengthen its text.
_MOST_FORM, _MOST_UNKNOWN, _MOST_BULK = 2**20, 2**16, 16 * 2**20
_OF_MESSAGE = 4
_BULK = "/api/v1/tasks/bulk"
_HSTS = "max-age=31536000"
_FORM = "application/x-www-form-urlencoded"
# Requests a second, and at once, of one principal; and of one address without a login.
_PRINCIPAL_RATE, _UNKNOWN_RATE = (200, 1000), (10, 100)


class Below:
    """ASGI middleware that lets all pages be below a path.

    A proxy may remove the path from requests, or leave it there.

    Args:
        app: what answers requests.
        base: the path, e.g. ``/jobs``; empty: the root, or where the application is mounted.
    """

    def __init__(self, app: ASGIApp, base: str) -> None:
        self._app = app
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._base and scope["type"] == "http" and not scope.get("root_path"):
            path = scope["path"]
            if path == self._base:
                path += "/"
            elif not path.startswith(f"{self._base}/"):
                path = self._base + path
            scope = {**scope, "root_path": self._base, "path": path}
        await self._app(scope, receive, send)


class Guard:
    """ASGI middleware around all routes.

    Args:
        app: what it guards.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._rates = Rates(*_PRINCIPAL_RATE)
        self._unknown_rates = Rates(*_UNKNOWN_RATE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # there are none, and nothing here would check one
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        is_static = requests.path_in(scope).startswith(STATIC)

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if requests.is_secure(request, request.app.state.site.settings):
                    headers.setdefault("Strict-Transport-Security", _HSTS)
                if not is_static:
                    headers.setdefault("Cache-Control", "no-store")
                self._add_cookie(request, headers)
            await send(message)

        try:
            answer = await self._refusal(request)
            body = None if answer else await self._body(request)
        except Exception as error:
            answer, body = await failures.answer(request, error), None
        if answer is not None:
            await answer(scope, receive, protected)
        else:
            await self._app(scope, body or receive, protected)

    async def _refusal(self, request: Request) -> Response | None:
        """Return the answer of a request that no route may see; else set its principal."""
        site = request.app.state.site
        if not requests.is_known_host(request, site.settings):
            host = request.headers.get("host", "")
            raise HTTPException(
                421, f"this server is not {host!r}: add its name to NONET_WEB_HOSTS, or use its own"
            )
        path = requests.path_in(request.scope)
        address = requests.address_of(request, getattr(site.access, "proxies", ()))
        requests.address.set(address)
        if path.startswith(STATIC):
            return None
        if path in PUBLIC:
            _slow_down(self._unknown_rates, requests.household_of(address))
            _ensure_own_origin(request, is_needed=True)
            return None
        principal = await site.access.identify(request)
        if principal is None:
            _slow_down(self._unknown_rates, requests.household_of(address))
            return _ask_for_login(request, path)
        _slow_down(self._rates, principal.name)
        if not getattr(request.state, "is_bearer", False):
            _ensure_own_origin(request, is_needed=bool(_csrf(request)))
        namespace = site.nonet.settings.namespace
        if not principal.may_enter(namespace):
            allowed = ", ".join(principal.namespaces or ())
            raise HTTPException(403, f"{principal.name} may enter {allowed}, but not {namespace}")
        request.state.principal = principal
        if MESSAGE in request.cookies:
            site.shared.forget()  # another process may have made the change that it tells of
        return None

    async def _body(self, request: Request) -> Receive | None:
        """Return what the routes receive: a body of limited length, whose CSRF token is right."""
        if request.method in _SAFE:
            return None
        most = _longest_body(request)
        length = request.headers.get("Content-Length", "")
        if length.isdigit() and int(length) > most:
            raise _too_long(most)
        receive = _limited(request.receive, most)
        wanted = _csrf(request)
        if not wanted:
            return receive
        sent = request.headers.get("X-CSRF-Token", "")
        is_form = request.headers.get("Content-Type", "").partition(";")[0].strip() == _FORM
        if not sent and is_form:
            body = await _read(_limited(request.receive, _MOST_FORM))
            receive = _repeated(body, request.receive)
            sent = parse_qs(body.decode("latin-1")).get("csrf", [""])[0]
        if not hmac.compare_digest(sent.encode(), wanted.encode()):
            if is_form and (form := _form_of(request)):  # the login is newer than the form
                raise HTTPException(303, "fill in the form again", {"Location": form})
            raise HTTPException(
                403,
                "the form has no valid CSRF token: load the page again and repeat the action; "
                "programs send a bearer token instead of a cookie",
            )
        return receive

    @staticmethod
    def _add_cookie(request: Request, headers: MutableHeaders) -> None:
        """Give a browser that a proxy has logged in a cookie with its CSRF token."""
        if name := getattr(request.state, "new_cookie", ""):
            carrier = Response()
            request.app.state.site.access.browsers.set_cookie(
                request, carrier, name, request.state.csrf
            )
            headers.append("Set-Cookie", carrier.headers["Set-Cookie"])


def _longest_body(request: Request) -> int:
    principal = getattr(request.state, "principal", None)
    if principal is None:
        return _MOST_UNKNOWN
    limit: int = request.app.state.site.nonet.settings.message_limit
    is_bulk = requests.path_in(request.scope) == _BULK and principal.may(Action.SUBMIT)
    return max(_MOST_BULK if is_bulk else _MOST_FORM, _OF_MESSAGE * limit)


def _csrf(request: Request) -> str:
    return str(getattr(request.state, "csrf", ""))


def _slow_down(rates: Rates, caller: str) -> None:
    if seconds := rates.wait(caller):
        raise HTTPException(
            429,
            "too many requests: wait, or send fewer at a time",
            {"Retry-After": str(math.ceil(seconds))},
        )


def _ensure_own_origin(request: Request, *, is_needed: bool) -> None:
    """Refuse a change that a page of another origin sends.

    Args:
        is_needed: also refuse a change of which the browser does not say where it comes from.
    """
    if request.method in _SAFE:
        return
    sender = requests.sender_of(request)
    own = requests.own_origins(request, request.app.state.site.settings)
    if sender in own or not (sender or is_needed):
        return
    raise HTTPException(
        403,
        f"the request comes from the page of {sender or 'an unknown address'}, not of "
        f"{' or '.join(sorted(own))}: if that is the address of this dashboard, set NONET_WEB_URL",
    )


def _ask_for_login(request: Request, path: str) -> Response:
    headers = request.headers
    is_page = (
        not path.startswith("/api/")
        and "text/html" in headers.get("Accept", "")
        and headers.get("Sec-Fetch-Mode", "navigate") == "navigate"
    )
    if not is_page:
        raise HTTPException(
            401,
            "no valid token or session: send 'Authorization: Bearer TOKEN', or log in",
            {"WWW-Authenticate": "Bearer"},
        )
    base = requests.base_of(request.scope)
    query = f"?{request.url.query}" if request.url.query else ""
    here = f"{base}{path}{query}" if request.method in _SAFE else _form_of(request)
    return RedirectResponse(f"{base}/login{'?' + urlencode({'next': here}) if here else ''}", 303)


def _form_of(request: Request) -> str:
    """Return the path of our page whose form a request sends; empty: it is of another origin.

    The mark at its end lets nonet.js fill the form in again.
    """
    sender = request.headers.get("Referer", "")
    if origin_of(sender) not in requests.own_origins(request, request.app.state.site.settings):
        return ""
    parts = urlsplit(sender)
    return f"{own_path(parts.path, '')}{'?' if parts.query else ''}{parts.query}#kept"


def _too_long(most: int) -> HTTPException:
    return HTTPException(413, f"the body has more than {most // 1024} KiB: send fewer at a time")


def _limited(receive: Receive, most: int) -> Receive:
    """Raise 413 when a body is longer, also if its length was not announced."""
    left = most

    async def limited() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise _too_long(most)
        return message

    return limited


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body"):
            return bytes(body)


def _repeated(body: bytes, receive: Receive) -> Receive:
    """Receive a body again that was read already."""
    is_sent = False

    async def repeated() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return repeated
