"""Submit tasks to the namespaces of their tenants, and find tasks there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from nonet.base.errors import (
    AdmissionRejected,
    ConflictError,
    InvalidArgumentsError,
    NotFoundError,
)
from nonet.base.synchronous import sleep
from nonet.rules.routing import away_problem, split_problem, tenant_in
from nonet.stores.namespace.routes import Routes
from nonet.stores.queue.submissions import Accepted, Elsewhere, Submission
from nonet.tasks.execution import running_context

if TYPE_CHECKING:
    from nonet.client.client import Client

_Found = TypeVar("_Found")
Send = Callable[["Client", Sequence[Submission]], Awaitable[Sequence[Accepted]]]
"""Submits tasks by the client of a namespace."""

# A tenant is in another namespace than this one, which is in another one than that: two leaders
# that apply different versions of the configuration. A third hop would not help; some seconds may.
_MOST_HOPS = 2
_MOST_ATTEMPTS = 22
_PAUSE_SECONDS = 0.2
# Tenants may be labels, of which there can be any number.
_MOST_TENANTS = 10_000


class Routing:
    """Sends the tasks of one client to the namespaces of their tenants.

    The answer of Redis to a submission says where a tenant belongs, see `lib/routing.lua`. The
    client remembers that until the configuration changes, or Redis says something else.

    Args:
        home: the client.
        open: returns the open client of another namespace; None: this program has no others.
        namespaces: further ones in which to look for tasks.
        reseal: returns the message of a task of this namespace as another one needs it, given the
            message, the id of the task and that namespace.
    """

    def __init__(
        self,
        home: Client,
        open: Callable[[str], Client] | None,
        namespaces: Sequence[str],
        reseal: Callable[[bytes, str, str], bytes],
    ) -> None:
        self._home = home
        self._namespace = home.namespace
        self._namespaces = namespaces
        self._open = open
        self._reseal = reseal
        self._routes = Routes(home.broker.client, home.namespace)
        self._known: dict[str, str] = {}
        self._version = ""

    def client(self, namespace: str) -> Client:
        """Return the client of a namespace; empty: this one.

        Raises:
            ConflictError: this program cannot open others.
        """
        if namespace in ("", self._namespace):
            return self._home
        if self._open is None:
            raise ConflictError(
                f"it belongs to namespace {namespace}, which this program does not open: submit "
                "it with Nonet.from_settings()"
            )
        return self._open(namespace)

    async def others(self) -> list[Client]:
        """Return the clients of the other namespaces that the routes or the settings name.

        Raises:
            ServerUnreachableError: Redis does not answer.
        """
        if self._open is None:
            return []
        names = {*await self._routes.others(), *self._namespaces} - {self._namespace}
        return [self._open(name) for name in sorted(names)]

    async def find(self, ask: Callable[[Client], Awaitable[_Found]]) -> _Found:
        """Ask this namespace, then the others, until one knows what is asked for.

        Raises:
            NotFoundError: none does; the error of this namespace.
        """
        try:
            return await ask(self._home)
        except NotFoundError:
            for other in await self.others():
                with suppress(NotFoundError):
                    return await ask(other)
            raise

    async def together(
        self, what: str, name: str, submit: Callable[[Client], Awaitable[_Found]]
    ) -> _Found:
        """Submit tasks that belong to one namespace, by the client of that namespace.

        Args:
            what: ``group`` or ``workflow``.
            name: of the class of one of them, for errors.
            submit: raises `Elsewhere` if they do not belong to the namespace of its client.

        Raises:
            InvalidArgumentsError: they belong to several namespaces, or to another one than the
                running task; nothing was submitted.
            ConflictError: namespaces disagree about them.
        """
        client, running = self._home, running_context()
        for _ in range(1 + _MOST_HOPS):
            try:
                return await submit(client)
            except Elsewhere as found:
                here = client.namespace
                problem = split_problem(what, here, found.homes)
                home = next(filter(None, found.homes))
                if running and home != (running.namespace or self._namespace):
                    problem = problem or away_problem(what, here, home)
                if problem:
                    raise InvalidArgumentsError(name, [problem]) from None
                client = self.client(home)
        raise ConflictError(
            f"{what} of {name}: namespaces {here} and {home} disagree where its tenants belong: "
            "their leaders apply different configurations; compare 'task-run config show' of both"
        )

    async def accept(
        self, submissions: Sequence[Submission], send: Send, *, ids_are_new: bool = False
    ) -> Sequence[Accepted]:
        """Submit tasks, each where its tenant belongs.

        Args:
            ids_are_new: all ids were generated for these submissions.

        Returns:
            For each task its id, whether it was created, and its namespace; empty: this one.

        Raises:
            ConflictError: namespaces disagree about a tenant.
            NonetError: as `send`; tasks of other namespaces may have been submitted before.
        """
        if not ids_are_new and (self._known or self._home.live_config.routes):
            known = await self._known_before(submissions)
            if known:
                places = [place for place in range(len(submissions)) if place not in known]
                new = iter(await self._accept([submissions[place] for place in places], send))
                return [known.get(n) or next(new) for n in range(len(submissions))]
        return await self._accept(submissions, send)

    async def _known_before(self, submissions: Sequence[Submission]) -> dict[int, Accepted]:
        """Return the tasks that the namespaces know from which their tenants were moved."""
        sources: dict[str, str] = {}
        found: dict[int, Accepted] = {}
        for place, item in enumerate(submissions):
            tenant = tenant_in(item.terms)
            if tenant not in sources:
                home = self.client(self._home_of(item))
                sources[tenant] = await home.routing.source_of(tenant)
            source = sources[tenant]
            if source and await self.client(source).results.recognise(item.id) is not None:
                found[place] = Accepted(item.id, False, source)
        return found

    async def source_of(self, tenant: str) -> str:
        """Return the namespace from which a tenant was moved to this one; empty: none."""
        return await self._routes.source_of(tenant)

    async def _accept(self, submissions: Sequence[Submission], send: Send) -> Sequence[Accepted]:
        if not self._known:  # fast path: nothing is routed
            accepted = await send(self._home, submissions)
            if not any(item.namespace for item in accepted):
                return accepted
        else:
            accepted = [Accepted(item.id, False, self._home_of(item)) for item in submissions]
            here = [place for place, item in enumerate(accepted) if not item.namespace]
            if here:
                found = await send(self._home, [submissions[place] for place in here])
                for place, item in zip(here, found, strict=True):
                    accepted[place] = item
        return await self._send_on(submissions, list(accepted), send)

    async def _send_on(
        self, submissions: Sequence[Submission], accepted: list[Accepted], send: Send
    ) -> list[Accepted]:
        """Submit the tasks that this namespace did not take, where it says that they belong."""
        left = [place for place, item in enumerate(accepted) if item.namespace]
        done = len(accepted) - len(left)
        for attempt in range(_MOST_ATTEMPTS):
            if attempt >= _MOST_HOPS:  # leaders apply a change of routes within two seconds
                await sleep(_PAUSE_SECONDS)
            by_namespace: dict[str, list[int]] = {}
            for place in left:
                self._learn(submissions[place], accepted[place].namespace)
                by_namespace.setdefault(accepted[place].namespace, []).append(place)
            before, left = dict(enumerate(accepted)), []
            for namespace, places in by_namespace.items():
                tasks = [self.sealed(submissions[place], namespace) for place in places]
                try:
                    answers = await send(self.client(namespace), tasks)
                except AdmissionRejected as error:
                    raise error.after(done) from None
                for place, item in zip(places, answers, strict=True):
                    is_there = not item.namespace
                    accepted[place] = replace(item, namespace=namespace) if is_there else item
                    left += [] if is_there else [place]
                    done += is_there
            if not left:
                return accepted
        task, was, now = submissions[left[0]], before[left[0]], accepted[left[0]]
        raise ConflictError(
            f"task {task.id} ({task.name}): namespaces {was.namespace} and {now.namespace} "
            f"disagree where tenant {tenant_in(task.terms)!r} belongs: their leaders apply "
            "different configurations; compare 'task-run config show' of both"
        )

    def _home_of(self, submission: Submission) -> str:
        version = self._home.live_config.version
        if version != self._version:
            self._known, self._version = {}, version
        if not self._known or submission.group:
            return ""
        return self._known.get(tenant_in(submission.terms), "")

    def _learn(self, submission: Submission, namespace: str) -> None:
        if len(self._known) >= _MOST_TENANTS:
            self._known.clear()
        if not self._known:
            self._version = self._home.live_config.version
        self._known[tenant_in(submission.terms)] = "" if namespace == self._namespace else namespace

    def sealed(self, submission: Submission, namespace: str) -> Submission:
        """Return a task of this namespace with its message as another one needs it."""
        if namespace == self._namespace:
            return submission
        envelope = self._reseal(submission.envelope, submission.id, namespace)
        return replace(submission, envelope=envelope)
