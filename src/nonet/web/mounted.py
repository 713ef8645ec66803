"""The dashboard inside of another ASGI application."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from starlette.types import Receive, Scope, Send

from nonet.app import Nonet
from nonet.base.errors import NotBoundError
from nonet.config.web_settings import WebSettings
from nonet.daemon.service import Stop, every
from nonet.rules.permissions import Principal
from nonet.web.access.links import ensure_login, is_configured
from nonet.web.app import create_app

logger = logging.getLogger(__name__)

Check = Callable[[Request], Awaitable[Principal | None] | Principal | None]


class Mounted:
    """An ASGI application that can be mounted before its Nonet is open.

    Args:
        path: where it is mounted, for messages.
        settings: those of the dashboard; where it listens is not used.
        check: returns the user, or None to deny access. Without it, the settings decide.
    """

    def __init__(self, path: str, settings: WebSettings, check: Check | None = None) -> None:
        self._path = path
        self._settings = settings
        self._access = CallbackAccess(check) if check else None
        self._app: FastAPI | None = None

    @asynccontextmanager
    async def open(self, nonet: Nonet) -> AsyncIterator[FastAPI]:
        """Answer requests while the block runs, with a `nonet` that is open."""
        self._app = app = create_app(nonet, self._settings, self._access)
        if self._access is None and not is_configured(self._settings):
            ensure_login(self._settings)
            logger.warning(
                "no users of the dashboard are configured: set NONET_WEB_USERS, or get a link by "
                "'NONET_WEB_URL=http://HOST:PORT%s task-run web link'",
                self._path,
            )
        site, stop = app.state.site, Stop()
        auditing = asyncio.create_task(every(stop, "audit", site.audit.tick), name="audit")
        try:
            async with site.at_work():
                yield app
        finally:
            self._app = None
            stop.request()
            await auditing
            await site.audit.flush()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; see ASGI."""
        if self._app is None:
            raise NotBoundError(
                "the dashboard is not open: use FastAPI(lifespan=lifespan(…)) of "
                "nonet.contrib.fastapi"
            )
        outer, path = scope.get("app_root_path", ""), scope["path"]
        if outer and not path.startswith(f"{outer}/"):
            # Starlette matches routes by the full path; a proxy has stripped the prefix.
            scope = {**scope, "path": outer + path}
        await self._app(scope, receive, send)


class CallbackAccess:
    """An `Access` that calls the outer application's function to identify the user."""

    def __init__(self, check: Check) -> None:
        self._check = check

    async def identify(self, request: Request) -> Principal | None:
        """See `nonet.web.access.access.Access`."""
        found: Any = self._check(request)
        if inspect.isawaitable(found):
            found = await found
        principal: Principal | None = found
        return principal
