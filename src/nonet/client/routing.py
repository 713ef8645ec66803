"""Submit tasks to the namespaces of their tenants, and find tasks there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from msgspec.structs import replace

from nonet.base.errors import AdmissionRejected, ConflictError, InvalidArgumentsError, NotFoundError
from nonet.client.live import LiveConfig
from nonet.rules.routing import away_problem, namespace_of, split_problem, tenant_in
from nonet.stores.queue.submissions import Accepted, Submission
from nonet.tasks.execution import running_context

_Found = TypeVar("_Found")
_Namespace = TypeVar("_Namespace")
Send = Callable[[_Namespace, Sequence[Submission]], Awaitable[Sequence[Accepted]]]
"""Submits tasks to an open namespace."""


class Routing(Generic[_Namespace]):
    """Sends the tasks of one open namespace to the namespaces of their tenants.

    Args:
        home: the open namespace.
        namespace: its name.
        live_config: the published configuration, which has the routes.
        open: opens and returns another namespace; None: this program has no others.
        reseal: signs and encrypts the message of a task anew, given the message, the id of the task
            and the other namespace.
    """

    def __init__(
        self,
        home: _Namespace,
        namespace: str,
        live_config: LiveConfig,
        open: Callable[[str], _Namespace] | None,
        reseal: Callable[[bytes, str, str], bytes],
    ) -> None:
        self._home = home
        self._namespace = namespace
        self._live_config = live_config
        self._open = open
        self._reseal = reseal

    def opened(self, namespace: str) -> _Namespace:
        """Open and return a namespace; empty: this one.

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

    async def others(self) -> list[_Namespace]:
        """Return the other namespaces that the routes name."""
        if self._open is None:
            return []
        await self._live_config.refresh()
        names = {*self._live_config.routes.values()} - {self._namespace}
        return [self._open(name) for name in sorted(names)]

    async def find(self, ask: Callable[[_Namespace], Awaitable[_Found]]) -> _Found:
        """Ask this namespace, then the others, until one knows the answer.

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

    def together(
        self, what: str, name: str, tasks: list[Submission]
    ) -> tuple[_Namespace, list[Submission]]:
        """Return the common namespace of some tasks, and the tasks as it needs them.

        Args:
            what: ``group`` or ``workflow``.
            name: of the class of one of them, for errors.

        Raises:
            InvalidArgumentsError: they belong to several namespaces, or to another one than the
                running task.
        """
        if not self._live_config.routes:
            return self._home, tasks
        homes = {self._home_of(item) for item in tasks}
        problem, home, running = split_problem(what, homes), min(homes), running_context()
        if running and home != (here := running.namespace or self._namespace):
            problem = problem or away_problem(what, here, home)
        if problem:
            raise InvalidArgumentsError(name, [problem])
        return self.opened(home), [self._sealed(item, home) for item in tasks]

    def accept(
        self, submissions: Sequence[Submission], send: Send[_Namespace]
    ) -> Awaitable[Sequence[Accepted]]:
        """Submit tasks, each where its tenant belongs.

        Returns:
            For each task its id, whether it was created, and its namespace; empty: this one.

        Raises:
            NonetError: as `send`; tasks of other namespaces may have been submitted before.
        """
        # Without routes the caller awaits `send` itself, which saves a coroutine for each task.
        if not self._live_config.routes:
            return send(self._home, submissions)
        return self._accept_routed(submissions, send)

    async def _accept_routed(
        self, submissions: Sequence[Submission], send: Send[_Namespace]
    ) -> Sequence[Accepted]:
        by_home: dict[str, list[int]] = {}
        for place, item in enumerate(submissions):
            by_home.setdefault(self._home_of(item), []).append(place)
        accepted: dict[int, Accepted] = {}
        for home, places in by_home.items():
            tasks = [self._sealed(submissions[place], home) for place in places]
            try:
                answers = await send(self.opened(home), tasks)
            except AdmissionRejected as error:
                raise error.after(len(accepted)) from None
            for place, answer in zip(places, answers, strict=True):
                accepted[place] = replace(answer, namespace=home)
        return [accepted[place] for place in range(len(submissions))]

    def _home_of(self, submission: Submission) -> str:
        routes = self._live_config.routes
        return namespace_of(routes, tenant_in(submission.terms)) or self._namespace

    def _sealed(self, submission: Submission, namespace: str) -> Submission:
        """Return a task with its message signed and encrypted for another namespace."""
        if namespace == self._namespace:
            return submission
        envelope = self._reseal(submission.envelope, submission.id, namespace)
        return replace(submission, envelope=envelope)
