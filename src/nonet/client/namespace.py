"""An open namespace: its stores and task classes, and how prepared tasks are submitted to it."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nonet.base.errors import AdmissionRejected, ConfigurationError, NotBoundError, NotFoundError
from nonet.base.messages.encryption import Cipher
from nonet.base.messages.message import is_id
from nonet.base.messages.repetition import Known
from nonet.base.synchronous import Gate, sleep, timeout as time_limit
from nonet.client.envelopes import Envelopes
from nonet.client.live import LiveConfig
from nonet.client.routing import Routing
from nonet.stores.namespace.cancellation import Cancellation
from nonet.stores.namespace.hints import Hints
from nonet.stores.queue.results import Ended
from nonet.stores.queue.submissions import Accepted, Submission
from nonet.tasks.execution import current_holders
from nonet.tasks.handles import Handle
from nonet.tasks.middleware import Middlewares
from nonet.tasks.registry import Registry

if TYPE_CHECKING:
    from nonet.config.settings import Settings
    from nonet.stores.sql.outbox import Kept
    from nonet.stores.stores import Stores

# Seconds between two queries of a task that is in SQL only; the relay runs once a second.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
# Query SQL at least once, for up to this long, even with `timeout=0`.
_QUERY_SECONDS = 0.5
# Many tasks can wait for results at once. Without a bound they would exhaust the connection pool,
# and submissions of durable tasks would time out behind them.
_CONCURRENT_SQL_QUERIES = 4

ResumeRow = Callable[[str, str, datetime | None], Awaitable[None]]
"""Takes the name of a pipeline, the key of a row, and when it is due (None: now)."""


class InNamespace:
    """Base of classes whose methods call an open namespace, such as `nonet.Nonet`."""

    def _open(self, *ids: str) -> OpenNamespace:
        """Return the namespace that the methods of this class query first.

        Args:
            ids: the task ids that the caller passed; the error names the first.

        Raises:
            NotBoundError: the application is not open.
        """
        raise NotImplementedError


class OpenNamespace(InNamespace):
    """One namespace of an open application: a `nonet.Client` without the methods of `Program`.

    Args:
        stores: the open stores of the namespace.
        registry: the task classes of this process.
        middlewares: runs around submissions and attempts; None: nothing does.
        beside: opens and returns another namespace; None: this program has no others.
        resume_row: makes the row of a dead letter due again; None: this program has no pipelines.
    """

    def __init__(
        self,
        stores: Stores,
        registry: Registry,
        *,
        middlewares: Middlewares | None = None,
        beside: Callable[[str], OpenNamespace] | None = None,
        resume_row: ResumeRow | None = None,
    ) -> None:
        settings = stores.settings
        self.stores = stores
        self.registry = registry
        self.settings: Settings = settings
        self.namespace: str = settings.namespace
        self.cipher: Cipher = stores.cipher
        self.live_config: LiveConfig = LiveConfig(stores.publication, registry)
        self.middlewares: Middlewares = Middlewares() if middlewares is None else middlewares
        self.envelopes: Envelopes = Envelopes(
            registry,
            self.live_config,
            settings.signer(),
            message_limit=settings.message_limit,
            middlewares=self.middlewares,
            cipher=stores.cipher,
        )
        self.hints: Hints = Hints(stores.client, self.namespace)
        self.cancellation: Cancellation = Cancellation(
            stores.broker, stores.outbox, settings.may_have_sql
        )
        self.routing: Routing[OpenNamespace] = Routing(
            self, self.namespace, self.live_config, beside, settings.resealed
        )
        self._sql_queries = Gate(_CONCURRENT_SQL_QUERIES)
        self._resume_row = resume_row
        self._is_closed = False

    async def aclose(self) -> None:
        """Send the gathered hints; afterwards this client refuses calls. Closes no connection."""
        self._is_closed = True
        await self.hints.aclose()

    def _open(self, *ids: str) -> OpenNamespace:
        """Return itself, or refuse after `aclose`, because nothing would close a new connection."""
        if self._is_closed:
            what = f"task {ids[0]}: the application that submitted it" if ids else "the application"
            raise NotBoundError(
                f"{what} is closed; open one with `async with Nonet.from_settings() as app`"
                + (" and use app.status(id), app.result(id) or app.cancel([id])" if ids else "")
            )
        return self

    async def send_many(
        self, prepared: Sequence[Submission], durable: Sequence[bool], *, ids_are_new: bool = False
    ) -> list[Handle[Any]]:
        """Submit prepared submissions in few round trips, for the framework.

        Args:
            prepared: the validated tasks.
            durable: whether to keep each in SQL; those are submitted first.
            ids_are_new: the ids of durable tasks were generated for these submissions.

        Raises:
            NonetError: as `submit_many`.
        """
        kept = [item for item, is_kept in zip(prepared, durable, strict=True) if is_kept]
        others = [item for item, is_kept in zip(prepared, durable, strict=True) if not is_kept]
        stored = iter(await self._store(kept, ids_are_new=ids_are_new) if kept else ())
        try:
            accepted = iter(await self.accept(others))
        except AdmissionRejected as error:
            raise error.after(len(kept)) from None
        return [self._handle(next(stored if is_kept else accepted)) for is_kept in durable]

    async def send(
        self, submission: Submission, *, durable: bool, id_is_new: bool = False
    ) -> Handle[Any]:
        """Submit a prepared submission, for the framework.

        Args:
            submission: the validated task.
            durable: keep it in SQL.
            id_is_new: its id was generated for this submission.
        """
        if durable:
            (accepted,) = await self._store([submission], ids_are_new=id_is_new)
        else:
            (accepted,) = await self.accept([submission])
        return self._handle(accepted)

    def accept(self, submissions: Sequence[Submission]) -> Awaitable[Sequence[Accepted]]:
        """Submit prepared tasks that are not durable, for the framework; see `Routing.accept`."""
        return self.routing.accept(submissions, _accept)

    async def send_within(
        self, transaction: Any, submissions: Sequence[Submission]
    ) -> list[Handle[Any]]:
        """Submit prepared durable tasks in a transaction of the caller, for the framework."""

        async def store(home: OpenNamespace, some: Sequence[Submission]) -> list[Accepted]:
            await (await home.stores.outbox()).submit_within(transaction, some)
            return [Accepted(item.id, True) for item in some]

        return [self._handle(item) for item in await self.routing.accept(submissions, store)]

    def _handle(self, accepted: Accepted) -> Handle[Any]:
        client: Any = self.routing.opened(accepted.namespace)  # a `Client`
        return Handle(accepted.id, client, accepted.created)

    async def _store(
        self, submissions: Sequence[Submission], *, ids_are_new: bool
    ) -> Sequence[Accepted]:
        """Submit durable tasks."""

        async def store(home: OpenNamespace, some: Sequence[Submission]) -> list[Accepted]:
            made = await (await home.stores.outbox()).submit(some, ids_are_new=ids_are_new)
            return [Accepted(item.id, is_new) for item, is_new in zip(some, made, strict=True)]

        return await self.routing.accept(submissions, store)

    async def resume_row(self, pipeline: str, key: str, at_time: datetime | None) -> None:
        """Make the row of a dead letter due again.

        Args:
            pipeline: name of its pipeline.
            key: its primary key, as text.
            at_time: when it is due; None: now.

        Raises:
            NotFoundError: the pipeline is unknown here, or the row does not exist.
            ServerUnreachableError: its database does not answer.
        """
        if self._resume_row is None:
            raise NotFoundError(f"this program cannot reach the rows of pipeline {pipeline}")
        await self._resume_row(pipeline, key, at_time)

    async def recognise(self, id: str) -> Known | None:
        """Return the state of a task and the dead letter that it repeats, for the framework."""
        found = await self._recognise(id)
        for other in await self.routing.others() if found is None else ():
            found = found or await other._recognise(id)
        return found

    async def _recognise(self, id: str) -> Known | None:
        found = await self.stores.results.recognise(id)
        if found is None and (kept := await self.kept(id)) is not None:
            return Known("delayed", kept.mark)
        # The relay may have moved it from SQL to Redis in between.
        return found or await self.stores.results.recognise(id)

    async def ended(self, id: str, timeout: float | None) -> Ended | None:
        """Wait for the end of a task, wherever it is, for the framework; None if it is unknown.

        Raises:
            TimeoutError: it has not ended after so many seconds.
        """
        end = await self._end_of(id, timeout)
        for other in await self.routing.others() if end is None else ():
            end = end or await other._end_of(id, timeout)
        return end

    async def _end_of(self, id: str, timeout: float | None) -> Ended | None:
        """Wait for the end of a task; None if it is unknown.

        Until the relay moves a durable task to Redis, this polls SQL.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pause, is_kept, holders = _FIRST_PAUSE, True, current_holders()
        while True:
            left = deadline - time.monotonic()
            ended = await self.stores.results.wait(id, None if timeout is None else left, holders)
            if ended is not None or not is_kept:
                return ended
            left = deadline - time.monotonic()
            async with time_limit(None if timeout is None else max(left, _QUERY_SECONDS)):
                is_kept = await self.kept(id) is not None
            if not is_kept:
                continue  # the relay may have moved it to Redis in between: ask Redis once more
            if left <= 0:
                raise TimeoutError
            await sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def kept(self, id: str) -> Kept | None:
        """Return the row of a durable task that is only in SQL, or None, for the framework.

        Query Redis before this call. If it returns None, query Redis again, because the relay may
        have moved the task there in between.
        """
        if not self.settings.may_have_sql() or not is_id(id):
            return None
        async with self._sql_queries:
            try:
                return await (await self.stores.outbox()).find(id)
            except ConfigurationError:  # no tables or no driver, so no durable task was submitted
                return None


def _accept(
    home: OpenNamespace, submissions: Sequence[Submission]
) -> Awaitable[Sequence[Accepted]]:
    return home.stores.broker.accept(submissions)
