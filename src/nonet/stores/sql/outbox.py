"""The durable tasks of a namespace in SQL: those that were submitted and have not ended.

A row is written before its task is submitted to Redis (or in the caller's transaction, without
Redis), and deleted after the task has ended. ``epoch`` names the data set of Redis to which the
task was handed over last; it is NULL until that is known. The relay (`nonet.scheduler.relay`) hands
over every row of another epoch, so a new epoch gets all tasks again.

A task is accepted once its submitter knows that no ceiling refuses it. Until then ``epoch`` is a
claim: a negative number, the time at which the claim ends (µs of the submitter's clock, negated).
The relay leaves a claimed row alone until then. After that it assumes that the submitter died,
takes the row over (``epoch`` 0, see `orphans`), and hands it over as a new submission, under the
ceilings. A refused row is deleted only while its claim is intact. If the relay took it over before,
the row stays and the task is accepted.

Why no task is lost, whichever process dies:

* A row is marked with an epoch that was read *before* its task was handed over. If Redis was
  emptied in between, the row has the mark of the old epoch, and the relay hands it over again.
  That is harmless: Redis knows the id of a live task, and of an ended one for ``NONET_DEDUP_TTL``.
* A row is deleted only on evidence that its task has ended: by the worker, after Redis confirmed
  the settle, or by the relay, if Redis remembers the end (the worker died in between, or SQL was
  unavailable). "Redis does not know it" is no evidence: a Redis that came back without its last
  moments is not always noticed as a new epoch. Such a row is handed over again, provided that it is
  marked with the epoch in which Redis answered: `Broker.presence` reports both at one instant.
* A second submission of an id whose row is open is the same task. It resets ``epoch``, so the relay
  asks Redis: a known id stays as it is. An id that ended long ago, but whose row was not deleted,
  runs again, as it would without a row.

What may run twice (the promise is at least once): a task that ended in the last moment before Redis
was emptied, with its row not yet deleted; and a task whose row could not be deleted for longer than
Redis remembers its end (the longer of ``NONET_RESULT_TTL`` and ``NONET_DEDUP_TTL``).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from nonet.base.errors import (
    AdmissionRejected,
    ConflictError,
    LimitImpossible,
    NonetError,
    ServerUnreachableError,
)
from nonet.base.messages.repetition import mark_in
from nonet.base.messages.terms import counted_from, unix_microseconds
from nonet.base.synchronous import timeout
from nonet.stores.queue.broker import Broker, Presence
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql.answers import again_after_deadlock
from nonet.stores.sql.callers import connection_of
from nonet.stores.sql.database import (
    LONG_BINARY,
    LONG_TEXT,
    PAGE_ROWS,
    Database,
    UtcDateTime,
    insert_or_update,
    pages,
)

logger = logging.getLogger(__name__)

# Durable tasks can be submitted while Redis is unavailable; the submitter waits this long for it.
_ASK_SECONDS = 1.0
# A submitter that has neither accepted nor withdrawn its tasks by then counts as dead.
_CLAIM_SECONDS = 10.0
_TAKEN_OVER = 0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Rows = list[dict[str, Any]]
"""Values by column. Statements that change several rows do so in the order of their ids, because
transactions that lock the same rows in different orders deadlock."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What SQL alone knows of a durable task.

    Attributes:
        name: full class name.
        stream: ``priority:size``.
        created: time of the submission, by the clock of the submitter.
        due: earliest start; None: at once.
        mark: mark of the dead letter that it repeats, see `base.messages.repetition`; or empty.
    """

    id: str
    name: str
    stream: str
    created: datetime
    due: datetime | None
    mark: str


class Outbox:
    """The open durable tasks of one namespace.

    Every method raises `ServerUnreachableError` when the database does not answer, and
    `ConfigurationError` when its tables are missing.
    """

    def __init__(self, database: Database, broker: Broker, namespace: str) -> None:
        self._database = database
        self._broker = broker
        self._namespace = namespace
        self._own = outbox_tasks.c.namespace == namespace

    async def prepare(self) -> None:
        """Create or migrate the tables of a SQLite file; others need ``task-run db upgrade``."""
        await self._database.migrate_sqlite()

    async def submit(self, submissions: Sequence[Submission], *, ids_are_new: bool) -> list[bool]:
        """Write tasks to SQL, then submit them to Redis.

        Tasks are accepted once their rows are committed. If Redis does not take them now, the relay
        hands them over later.

        Args:
            ids_are_new: the ids were made for these submissions.

        Returns:
            For each task, False if its id was known already.

        Raises:
            LimitImpossible, ConflictError, AdmissionRejected: as `Broker.accept`.
            ServerUnreachableError: SQL does not answer; these tasks were not submitted.
        """
        made: list[bool] = []
        for page in pages(submissions):
            kept = set() if ids_are_new else await self._kept([item.id for item in page])
            try:
                await self._check_room([item for item in page if item.id not in kept])
            except AdmissionRejected as error:
                raise error.after(len(made)) from None
            claim = -_now_us() - round(_CLAIM_SECONDS * 1e6)
            rows = self._rows(page, claim)
            await self._change(_insertion(self._database.engine.dialect), rows)
            try:
                known = await self.hand_over(page, await self.epoch())
            except (LimitImpossible, ConflictError, AdmissionRejected) as error:
                new = {item.id for item in page} - kept
                if new - await self._withdraw(new, claim) or not new:
                    if isinstance(error, AdmissionRejected):
                        raise error.after(len(made)) from None
                    raise
                known = [item.id in new for item in page]
            except NonetError as error:
                await self._give_to_relay(page, claim)
                logger.warning(
                    "stored %d durable tasks in SQL, the relay submits them later: %s",
                    len(page),
                    error,
                )
                known = [item.id not in kept for item in page]
            # The relay may have submitted a task first. Redis then reports a new id as known.
            made += [True] * len(page) if ids_are_new else known
        return made

    async def submit_within(self, transaction: Any, submissions: Sequence[Submission]) -> None:
        """Write tasks in the caller's transaction; the relay hands them over after its commit.

        Args:
            transaction: a connection or session on this database, see `connection_of`.

        Raises:
            TypeError: it is something else.
            ConfigurationError: it is on another database.
            AdmissionRejected: a ceiling is reached, not counting tasks of open transactions.
        """
        await self._database.migrate_sqlite()
        await self._check_room(submissions)
        async with self._database.answering():
            connection = await connection_of(transaction, self._database)
            for page in pages(submissions):
                await connection.execute(_insertion(connection.dialect), self._rows(page, None))

    async def epoch(self) -> int:
        """The current epoch of Redis."""
        epoch, _ = await self._broker.presence([])
        return epoch

    async def _check_room(self, submissions: Sequence[Submission]) -> None:
        """Check the ceilings before anything is written. Without Redis, accept the tasks."""
        try:
            async with timeout(_ASK_SECONDS):
                await self._broker.check_room(submissions)
        except (TimeoutError, ServerUnreachableError):
            return

    async def hand_over(
        self, submissions: Sequence[Submission], epoch: int, *, admitted: bool = False
    ) -> list[bool]:
        """Submit stored tasks to Redis, and mark their rows; False for each known id.

        Args:
            epoch: the current epoch, read before this call.
            admitted: the tasks were accepted before, so no ceiling refuses them.

        Raises:
            NonetError: as `Broker.submit`, or SQL does not answer. No row is marked, but some tasks
                may have been submitted: repeat the call.
        """
        if admitted:
            submissions = [item.admitted() for item in submissions]
        made = await self._broker.submit(submissions)
        ids = self._are([item.id for item in submissions])
        await self._change(sa.update(outbox_tasks).where(ids).values(epoch=epoch))
        return made

    async def due(self, epoch: int, *, again: bool, skip: int) -> list[Submission]:
        """At most `PAGE_ROWS` tasks to hand over, oldest first.

        Args:
            epoch: the current epoch.
            again: tasks of other epochs, instead of tasks that were never handed over.
            skip: how many tasks to leave out at the beginning.
        """
        column = outbox_tasks.c.epoch
        wanted = (column > 0) & (column != epoch) if again else column.is_(None)
        return await self._page(wanted, skip)

    async def orphans(self, *, skip: int) -> list[Submission]:
        """Take over at most `PAGE_ROWS` tasks whose submitters died before these were accepted.

        The caller owns them from now on, and must hand them over under the ceilings.
        """
        column = outbox_tasks.c
        expired = (column.epoch < 0) & (column.epoch > -_now_us())
        query = sa.select(column.task_id).where(self._own, expired).limit(PAGE_ROWS)
        if ids := [row.task_id for row in await self._database.rows(query)]:
            # Meanwhile a row may have been handed over or withdrawn: change only claimed ones.
            claimed = self._are(ids) & (column.epoch < 0)
            await self._change(sa.update(outbox_tasks).where(claimed).values(epoch=_TAKEN_OVER))
        return await self._page(column.epoch == _TAKEN_OVER, skip)

    async def _page(self, where: sa.ColumnElement[bool], skip: int) -> list[Submission]:
        column = outbox_tasks.c
        query = sa.select(outbox_tasks).where(self._own, where)
        query = query.order_by(column.epoch, column.created_at, column.task_id)
        rows = await self._database.rows(query.limit(PAGE_ROWS).offset(skip))
        return [_submission(row) for row in rows]

    async def review(self, epoch: int) -> tuple[int, int]:
        """Check every row of the current epoch against Redis.

        Returns:
            How many rows were deleted because their task has ended, and how many will be handed
            over again because Redis does not know their task.
        """
        closed = lost = 0
        after: tuple[datetime, str] | None = None
        while page := await self._handed_over(epoch, after):
            after = page[-1]
            ids = [id for _, id in page]
            asked_in, states = await self._broker.presence(ids)
            if asked_in != epoch:
                break
            found = list(zip(ids, states, strict=True))
            ended = [id for id, state in found if state is Presence.ENDED]
            unknown = [id for id, state in found if state is Presence.UNKNOWN]
            closed += await self.close(ended)
            if unknown:
                same = self._are(unknown) & (outbox_tasks.c.epoch == epoch)
                lost += await self._change(sa.update(outbox_tasks).where(same).values(epoch=None))
        return closed, lost

    async def close(self, ids: Collection[str]) -> int:
        """Delete the rows of tasks that have ended; return how many there were."""
        if not ids or self._database.is_missing:
            return 0
        return await self._change(sa.delete(outbox_tasks).where(self._are(ids)))

    async def count(self) -> int:
        """The number of durable tasks that have not ended, as far as SQL knows."""
        rows = await self._database.rows(sa.select(sa.func.count()).where(self._own))
        return int(rows[0][0]) if rows else 0

    async def find(self, id: str) -> Kept | None:
        """The row of a task; None if it was not committed, or the task has ended."""
        rows = await self._database.rows(sa.select(outbox_tasks).where(self._are([id])))
        if not rows:
            return None
        (row,) = rows
        due = _EPOCH + timedelta(microseconds=row.due_us) if row.due_us else None
        return Kept(id, row.task_class, row.stream, row.created_at, due, mark_in(row.terms))

    async def names(self, ids: Collection[str]) -> dict[str, str]:
        """The classes of tasks that have a row, by their ids."""
        column, found = outbox_tasks.c, dict[str, str]()
        for page in pages(list(ids)):
            query = sa.select(column.task_id, column.task_class).where(self._are(page))
            rows = await self._database.rows(query)
            found |= {row.task_id: row.task_class for row in rows}
        return found

    async def pages(self) -> AsyncIterator[list[Submission]]:
        """All open tasks, page by page, in the order of their ids."""
        column, after = outbox_tasks.c, ""
        while True:
            query = sa.select(outbox_tasks).where(self._own, column.task_id > after)
            rows = await self._database.rows(query.order_by(column.task_id).limit(PAGE_ROWS))
            if not rows:
                return
            yield [_submission(row) for row in rows]
            after = rows[-1].task_id

    async def overdue(self, seconds: float) -> tuple[int, float]:
        """Count the tasks that were stored more than `seconds` ago and are not handed over.

        Returns:
            Their number, and the age of the oldest in seconds. The age counts from the submission:
            its transaction may have been committed, or Redis emptied, only a moment ago.
        """
        if self._database.is_missing:
            return 0, 0.0
        # Not `epoch`, which may write: this must work while Redis refuses writes.
        epoch = int(await self._broker.client.hget(f"{self._broker.prefix}epoch", "since") or 0)
        now, column = datetime.now(UTC), outbox_tasks.c
        query = sa.select(sa.func.count(), sa.func.min(column.created_at)).where(
            self._own,
            column.epoch.is_(None) | (column.epoch != epoch),
            column.created_at <= now - timedelta(seconds=seconds),
        )
        (found,) = await self._database.rows(query)
        number, oldest = found
        return int(number), (now - oldest).total_seconds() if oldest else 0.0

    async def _withdraw(self, ids: Collection[str], claim: int) -> set[str]:
        """Delete the rows of refused tasks; return the ids that the relay took over before.

        A row whose task Redis has taken nevertheless stays, and the relay marks it.
        """
        try:
            ordered = sorted(ids)
            _, states = await self._broker.presence(ordered)
            found = zip(ordered, states, strict=True)
            gone = [id for id, state in found if state is Presence.UNKNOWN]
            ours = self._are(gone) & (outbox_tasks.c.epoch == claim)
            if gone and await self._change(sa.delete(outbox_tasks).where(ours)) < len(gone):
                return await self._not_claimed(gone)
        except NonetError as error:
            logger.error("could not withdraw refused durable tasks, they may run: %s", error)
        return set()

    async def _not_claimed(self, ids: Collection[str]) -> set[str]:
        column = outbox_tasks.c
        is_free = column.epoch.is_(None) | (column.epoch >= _TAKEN_OVER)
        query = sa.select(column.task_id).where(self._are(ids), is_free)
        return {row.task_id for row in await self._database.rows(query)}

    async def _give_to_relay(self, page: Sequence[Submission], claim: int) -> None:
        """Accept tasks while Redis, which counts for the ceilings, does not answer."""
        ours = self._are([item.id for item in page]) & (outbox_tasks.c.epoch == claim)
        try:
            await self._change(sa.update(outbox_tasks).where(ours).values(epoch=None))
        except NonetError as error:  # the relay takes the rows over when the claim ends
            logger.warning(
                "durable tasks are submitted after %g s at the earliest: %s", _CLAIM_SECONDS, error
            )

    async def _kept(self, ids: Collection[str]) -> set[str]:
        query = sa.select(outbox_tasks.c.task_id).where(self._are(ids))
        return {row.task_id for row in await self._database.rows(query)}

    async def _handed_over(
        self, epoch: int, after: tuple[datetime, str] | None
    ) -> list[tuple[datetime, str]]:
        column = outbox_tasks.c
        query = sa.select(column.created_at, column.task_id)
        query = query.where(self._own, column.epoch == epoch)
        if after is not None:
            same_instant = (column.created_at == after[0]) & (column.task_id > after[1])
            # The first condition is redundant, but makes the database start inside the index.
            query = query.where(
                column.created_at >= after[0], (column.created_at > after[0]) | same_instant
            )
        query = query.order_by(column.created_at, column.task_id).limit(PAGE_ROWS)
        return [(row.created_at, row.task_id) for row in await self._database.rows(query)]

    async def _change(self, statement: sa.UpdateBase, rows: Rows | None = None) -> int:
        """Run a statement in a transaction of its own; return how many rows it changed."""

        async def run() -> int:
            async with self._database.transaction() as connection:
                return (await connection.execute(statement, rows)).rowcount

        return await again_after_deadlock(run)

    def _are(self, ids: Collection[str]) -> sa.ColumnElement[bool]:
        return sa.and_(self._own, outbox_tasks.c.task_id.in_(sorted(ids)))

    def _rows(self, submissions: Sequence[Submission], epoch: int | None) -> Rows:
        now = datetime.now(UTC)
        return [
            {
                "namespace": self._namespace,
                "task_id": item.id,
                "epoch": epoch,
                "created_at": now + timedelta(microseconds=place),  # preserves their order
                "task_class": item.name,
                "stream": item.stream,
                # The relay may hand it over later: a delay counts from the row, by our clock.
                "due_us": item.due_us if item.due_us >= 0 else unix_microseconds(now) - item.due_us,
                "locks": item.locks,
                "envelope": item.envelope,
                "terms": item.terms,
            }
            for place, item in sorted(enumerate(submissions), key=lambda pair: pair[1].id)
        ]


def _submission(row: sa.Row[Any]) -> Submission:
    return Submission(
        id=row.task_id,
        name=row.task_class,
        stream=row.stream,
        envelope=bytes(row.envelope),
        locks=row.locks,
        due_us=row.due_us,
        terms=counted_from(row.terms, row.created_at),
    )


def _now_us() -> int:
    return (datetime.now(UTC) - _EPOCH) // timedelta(microseconds=1)


# ---- the table (created by migrations/versions; a test compares the two) ------------------------

outbox_tasks = sa.Table(
    "outbox_tasks",
    sa.MetaData(),
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("task_id", sa.String(128), primary_key=True),
    sa.Column("epoch", sa.BigInteger()),  # µs of the clock of Redis; 0 and below: see above
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("task_class", sa.String(255), nullable=False),
    sa.Column("stream", sa.String(64), nullable=False),
    sa.Column("due_us", sa.BigInteger(), nullable=False),
    sa.Column("terms", sa.String(255), nullable=False),
    sa.Column("locks", LONG_TEXT, nullable=False),
    sa.Column("envelope", LONG_BINARY, nullable=False),
    sa.Index("ix_outbox_tasks_epoch", "namespace", "epoch", "created_at", "task_id"),
)


def _insertion(dialect: sa.Dialect) -> sa.Insert:
    """Insert rows. A row that exists keeps its task and its claim, but not its epoch."""
    # The 0 is a literal because aiomysql takes no parameters after the rows.
    is_epoch = outbox_tasks.c.epoch > sa.literal_column("0")
    epoch = sa.case((is_epoch, sa.null()), else_=outbox_tasks.c.epoch)
    key = ["namespace", "task_id"]
    return insert_or_update(dialect, outbox_tasks, key, lambda _: {"epoch": epoch})
