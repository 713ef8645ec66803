"""Refuse requests of unknown callers, and add the headers that protect browsers."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nonet.web.api.problems import problem

# Paths that need no login.
_PUBLIC = ("/login", "/static/", "/livez", "/readyz")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class Guard:
    """ASGI middleware around all routes.

    Args:
        app: what it guards.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        answer = await self._refusal(request)
        await (answer or self._app)(scope, receive, protected)

    async def _refusal(self, request: Request) -> Response | None:
        site = request.app.state.site
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        principal = await site.access.identify(request)
        if principal is not None:
            request.state.principal = principal
            return None
        if path.startswith(_PUBLIC):
            return None
        if path.startswith("/api/"):
            return problem(401, "no valid token or session: send 'Authorization: Bearer TOKEN'")
        return RedirectResponse(request.url_for("login"), 303)
