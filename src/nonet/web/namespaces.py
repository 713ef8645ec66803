"""The sites of several namespaces below one address."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

BELOW = "/in/"
"""The path below which the sites of all namespaces but the first are, each below its name."""


class Namespaces:
    """ASGI application that passes each request to the site of its namespace.

    Args:
        sites: the site of each namespace; that of the first is at the root.
        base: path below which all are, e.g. ``/jobs``; a proxy may have removed it.
    """

    def __init__(self, sites: Mapping[str, ASGIApp], base: str) -> None:
        (_, self._first), *others = sites.items()
        self._others = dict(others)
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; see ASGI."""
        path = str(scope.get("path", ""))
        inner = path.removeprefix(self._base) if path.startswith(f"{self._base}/") else path
        name, slash, _ = inner.removeprefix(BELOW).partition("/")
        if not inner.startswith(BELOW) or name not in self._others:
            await self._first(scope, receive, send)
        elif not slash:
            await RedirectResponse(root_of(self._base, name))(scope, receive, send)
        else:
            root = f"{self._base}{BELOW}{name}"
            scope = {**scope, "root_path": root, "path": self._base + inner}
            await self._others[name](scope, receive, send)


def root_of(base: str, name: str = "") -> str:
    """Return the path of the first page of a namespace; empty `name`: of the first namespace.

    >>> root_of("/jobs", "a"), root_of("")
    ('/jobs/in/a/', '/')
    """
    return f"{base}{BELOW}{name}/" if name else f"{base}/"
