"""What every route of the dashboard and the API uses: the application, the caller, templates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, HTTPException, Request

from nonet.app import Nonet
from nonet.config.web_settings import WebSettings
from nonet.daemon.service import acting_as
from nonet.rules.permissions import READING, Action, Principal
from nonet.telemetry.masking import without_secrets
from nonet.web.access.access import Access
from nonet.web.auditing import Auditor
from nonet.web.bulks import Bulks
from nonet.web.live import Live
from nonet.web.measured import Requests
from nonet.web.namespaces import BELOW, root_of
from nonet.web.ring import Ring
from nonet.web.shared import Shared


@dataclass
class Site:
    """One dashboard with its API.

    Attributes:
        nonet: the open application of the namespace.
        settings: the settings of the dashboard.
        access: finds out who sends a request.
        namespaces: those of all sites of the server; empty: there is one.
        shared: reads that all viewers share.
        requests: what was requested, and what pages send to Redis.
        bulks: changes that go on after their request.
        live: tells open pages when to read again.
        ring: samples of the last hour.
        audit: who did what.
    """

    nonet: Nonet
    settings: WebSettings
    access: Access
    namespaces: Sequence[str] = ()
    shared: Shared = field(default_factory=Shared)
    requests: Requests = field(default_factory=Requests)
    bulks: Bulks = field(default_factory=Bulks)
    live: Live = field(init=False)
    ring: Ring = field(init=False)
    audit: Auditor = field(init=False)

    def __post_init__(self) -> None:
        self.live = Live(lambda: self.nonet.stores.events, self.shared, self.requests.pages)
        self.ring = Ring(lambda: self.nonet.stores, self.requests.pages)
        self.audit = Auditor(self.nonet, self.settings.audit_retention)

    def addresses(self, base: str) -> list[tuple[str, str]]:
        """Return the namespaces of all sites, each with the path of its first page.

        Args:
            base: path below which the pages of this site are.
        """
        first, own = next(iter(self.namespaces), ""), self.nonet.settings.namespace
        root = base if own == first else base.removesuffix(f"{BELOW}{own}")
        return [(name, root_of(root, "" if name == first else name)) for name in self.namespaces]

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Sample the namespace during this block; at its end, end the streams of live changes."""
        sampling = asyncio.create_task(self.ring.run(), name="samples")
        try:
            yield
        finally:
            self.live.stop()
            sampling.cancel()
            await asyncio.wait({sampling})

    @asynccontextmanager
    async def changing(self, who: Principal, action: Action, what: str) -> AsyncIterator[None]:
        """Audit a change: who does what in this block, and whether it succeeded.

        Stores name the principal in the event stream. The block must contain only the change: its
        error is the outcome.

        Args:
            what: the object and its new value, as people read it: ``task 01J…: cancel``.
        """
        try:
            with acting_as(who.name):
                yield
        except asyncio.CancelledError:
            # The caller has gone, or the server stops: do not wait for SQL.
            self.audit.note(who.name, action, what, "cut off: it may have happened")
            raise
        except Exception as error:
            await self.audit.record(who.name, action, what, _outcome(error))
            raise
        finally:
            self.shared.forget()
        await self.audit.record(who.name, action, what)


def get_site(request: Request) -> Site:
    """Return the site of a request."""
    site: Site = request.app.state.site
    return site


SiteOf: TypeAlias = Annotated[Site, Depends(get_site)]
"""The site as a parameter of a route."""


def get_principal(request: Request) -> Principal:
    """Return who sends a request. The guard has refused requests of nobody."""
    principal: Principal = request.state.principal
    return principal


def _outcome(error: Exception) -> str:
    text = error.detail if isinstance(error, HTTPException) else error
    return without_secrets(f"{type(error).__name__}: {text}")


def may(action: Action) -> Any:
    """Return the dependency of a route that needs a permission; its value is the `Principal`.

    A principal that is scoped to classes passes here if it has the action at all; a route for
    tasks checks the class with `ensure`, and every other route declares `for_all_classes`.

    Raises:
        HTTPException: 403, the principal may not do this.
    """

    def check(site: SiteOf, who: Annotated[Principal, Depends(get_principal)]) -> Principal:
        _ensure_writable(site, action)
        if action not in who.actions:
            refuse(who, action)
        return who

    check.action = action  # type: ignore[attr-defined]  # for the test that every route has one
    return Depends(check)


def for_all_classes(action: Action) -> Any:
    """Return the dependency of a route about no class: a scoped token may not use it."""

    def check(site: SiteOf, who: Annotated[Principal, Depends(get_principal)]) -> Principal:
        _ensure_writable(site, action)
        ensure(who, action, None)
        return who

    check.action = action  # type: ignore[attr-defined]
    return Depends(check)


def ensure(who: Principal, action: Action, task_class: str | None) -> None:
    """Raise 403 unless a principal may do something with a class (None: with no class)."""
    if not who.may(action, task_class):
        refuse(who, action, task_class)


def _ensure_writable(site: Site, action: Action) -> None:
    if site.settings.read_only and action not in READING:
        raise HTTPException(403, "this dashboard is read-only: NONET_WEB_READ_ONLY is set")


def refuse(who: Principal, action: Action, task_class: str | None = None) -> None:
    """Raise 403 and name the missing permission."""
    if action in who.actions and who.classes is not None:
        # The class of a task that a caller knows by its id only is not named.
        scope = f"tasks of {', '.join(who.classes)}"
        wanted = "not of that class" if task_class else "and this request is about all classes"
        raise HTTPException(403, f"{who.name} may {action} only {scope}, {wanted}")
    source = "role" if who.role else "role or token"
    raise HTTPException(403, f"{who.name} may not {action}: ask an admin for a {source} that may")


Viewer: TypeAlias = Annotated[Principal, for_all_classes(Action.READ)]
"""A principal that may read."""
