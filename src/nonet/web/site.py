"""What every route of the dashboard and the API uses: the application, the caller, templates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, HTTPException, Request

from nonet.app import Nonet
from nonet.base.actor import acting_as
from nonet.base.errors import ConflictError, NonetError, NotFoundError
from nonet.client.client import Client
from nonet.client.explaining import explain_by_facts
from nonet.config.web_settings import WebSettings
from nonet.daemon.contact import Reached
from nonet.operate.audited import Audited, P, R
from nonet.operate.events import by_another
from nonet.rules.findings.explanation import Explanation, Facts, explain
from nonet.rules.permissions import READING, Action, Principal
from nonet.rules.viewing import for_viewer
from nonet.stores.stores import Stores
from nonet.tasks.registry import Registry
from nonet.telemetry.masking import without_secrets
from nonet.web.access.access import Access
from nonet.web.auditing import Auditor
from nonet.web.bulks import Bulks
from nonet.web.measured import Requests
from nonet.web.namespaces import BELOW, root_of
from nonet.web.shared import Shared

# What another operator did so lately is told after an action that succeeded, and after one that did
# not find what it wanted to change.
_JUST_NOW, _LATELY = timedelta(minutes=1), timedelta(hours=1)

crossed: ContextVar[str] = ContextVar("crossed", default="")
"""What another operator has just done with the thing that this request changed, for its user."""


@dataclass
class Site:
    """One dashboard with its API.

    Attributes:
        nonet: the open application of the namespace.
        settings: the settings of the dashboard.
        access: finds out who sends a request.
        namespaces: those of all sites of the server; empty: there is one.
        shared: reads that all viewers share.
        requests: what was requested of all sites.
        bulks: changes that go on after their request.
        redis: whether Redis answers.
        audit: who did what.
    """

    nonet: Nonet
    settings: WebSettings
    access: Access
    namespaces: Sequence[str] = ()
    shared: Shared = field(default_factory=Shared)
    requests: Requests = field(default_factory=Requests)
    bulks: Bulks = field(init=False)
    redis: Reached = field(init=False)
    audit: Auditor = field(init=False)

    def __post_init__(self) -> None:
        self.bulks = Bulks(lambda: self.nonet.stores.bulks)
        self.redis = Reached("Redis", self._look)
        self.audit = Auditor(self.nonet, self.settings.audit_retention)

    @property
    def stores(self) -> Stores:
        """The open stores of the namespace."""
        return self.nonet.stores

    @property
    def client(self) -> Client:
        """The client of the namespace."""
        return self.nonet.client

    @property
    def registry(self) -> Registry:
        """The task classes that this server has loaded."""
        return self.nonet.registry

    def is_writable(self, action: Action) -> bool:
        """Return whether the settings allow an action: read-only mode allows no changes."""
        return action in READING or not self.settings.read_only

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
        """Probe Redis during this block."""
        probing = asyncio.create_task(self._probe(), name="probe of Redis")
        try:
            yield
        finally:
            probing.cancel()
            await asyncio.wait({probing})

    async def _probe(self) -> None:
        while True:
            seconds = await self.redis.look()
            await asyncio.sleep(seconds)

    async def _look(self) -> None:
        # Tasks that are submitted are counted while a dashboard could show it, as for metrics.
        await self.stores.measures.figures(count_accepted=True)

    async def read(
        self, source: Callable[P, Awaitable[R]], *args: P.args, **options: P.kwargs
    ) -> R:
        """Call a function that reads, at most once in two seconds for all viewers."""
        key = (source, *args, *options.items())
        return await self.shared.read(key, 2.0, partial(source, *args, **options))

    async def explain(self, id: str, who: Principal) -> tuple[Explanation, Facts | None]:
        """Explain where a task is; None instead of facts: SQL alone knows it.

        The explanation of a viewer is made of facts without texts of errors.

        Raises:
            NotFoundError: it is unknown.
        """
        found, facts = await self.read(explain_by_facts, self.nonet.client, id)
        if facts is None or who.sees_texts:
            return found, facts
        facts = for_viewer(facts)
        return explain(facts), facts

    async def perform(
        self, who: Principal, action: Audited[P, R], *args: P.args, **options: P.kwargs
    ) -> R:
        """Call an action of an operator on behalf of `who`, and audit it.

        What another operator has just done with the same thing is in the error, or in `crossed`.

        Raises:
            HTTPException: 403, `who` may not do this.
        """
        ensure(self, who, action.permission)
        what = action.sentence(*args, **options)
        things = action.things(*args, **options)
        try:
            async with self.changing(who, action.permission, what):
                done = await action(*args, **options)
        except (ConflictError, NotFoundError) as error:
            if other := await self._crossed(things, who, _LATELY):
                error.args = (f"{error} ({other})",)
            raise
        if action.permission not in READING:
            crossed.set(await self._crossed(things, who, _JUST_NOW))
        return done

    async def _crossed(self, things: Sequence[str], who: Principal, within: timedelta) -> str:
        try:
            return await by_another(self.stores, things, who.name, within)
        except NonetError:  # the action is done, or has the better error
            return ""

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
    """Return who sends a request. The guard has refused requests without a principal."""
    principal: Principal = request.state.principal
    return principal


def _outcome(error: Exception) -> str:
    text = error.detail if isinstance(error, HTTPException) else error
    return without_secrets(f"{type(error).__name__}: {text}")


def may(needed: Action | Audited[Any, Any]) -> Any:
    """Return the dependency of a route that needs a permission; its value is the `Principal`.

    Args:
        needed: the permission, or the action that needs it.

    Raises:
        HTTPException: 403, the principal may not do this.
    """
    action = needed.permission if isinstance(needed, Audited) else needed

    def check(site: SiteOf, who: Annotated[Principal, Depends(get_principal)]) -> Principal:
        ensure(site, who, action)
        return who

    check.action = action  # type: ignore[attr-defined]  # for the test that every route has one
    return Depends(check)


def ensure(site: Site, who: Principal, action: Action) -> None:
    """Raise 403, and name the missing permission, unless a principal may do something."""
    if not site.is_writable(action):
        raise HTTPException(403, "this dashboard is read-only: NONET_WEB_READ_ONLY is set")
    if not who.may(action):
        raise HTTPException(
            403, f"{who.name} lacks the permission {action}: ask an admin for a role that has it"
        )


def ensure_searchable(who: Principal, *texts: object) -> None:
    """Raise 403 if `who` searches for labels or errors that it may not see: matches reveal them."""
    if any(texts) and not who.sees_texts:
        raise HTTPException(403, f"{who.name} may not search labels and errors: an operator may")


# The parameter `who` of a route, which says what its caller may do.
Knower: TypeAlias = Annotated[Principal, may(Action.STATUS)]
ResultReader: TypeAlias = Annotated[Principal, may(Action.RESULT)]
Viewer: TypeAlias = Annotated[Principal, may(Action.READ)]
Submitter: TypeAlias = Annotated[Principal, may(Action.SUBMIT)]
Resubmitter: TypeAlias = Annotated[Principal, may(Action.RESUBMIT)]
Pauser: TypeAlias = Annotated[Principal, may(Action.PAUSE)]
Discarder: TypeAlias = Annotated[Principal, may(Action.DISCARD)]
AuditReader: TypeAlias = Annotated[Principal, may(Action.AUDIT)]
