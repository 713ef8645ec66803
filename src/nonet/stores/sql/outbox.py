"""The table of durable tasks: what was submitted and has not ended, in SQL.

A row is written before Redis is asked (or with the caller's transaction, without Redis), and
deleted once the task has ended. ``epoch`` says in which data set of Redis the task was handed over
last; it is NULL until that is known. The relay (`nonet.scheduler.relay`) hands over every row whose
epoch is not the current one, so that a new epoch gets all tasks again.

Until its submitter knows whether a ceiling refuses a task, nobody has accepted it. Then ``epoch``
is a claim, below 0, which ends some seconds later (µs of the submitter's clock, negated). The relay
leaves the row alone until then. If its submitter has died, it takes the row over (0, `orphans`) and
hands it over as a new submission, under the ceilings. What is refused is deleted together with its
claim: if the relay has taken the row over before, it stays, and the task is accepted.

Why no task is lost, whatever dies in between:

* A row is marked with an epoch that was read *before* its task was handed over. If Redis was
  emptied in between, the mark is of the old epoch, and the relay hands the row over again. That is
  harmless: ids are known while a task lives, and for ``NONET_DEDUP_TTL`` after its end.
* A row is deleted only on evidence that its task has ended: by the worker after its settle was
  answered, or by the relay where Redis remembers the end (the worker died in between, or SQL was
  away). "Redis does not know it" is no evidence: data that came back without their last moments
  are not always noticed as a new epoch. Such a row is handed over again, if it was marked in the
  epoch in which Redis was asked: `Broker.presence` says both at one instant.
* An id that is submitted again while its row is open is the same task. Its epoch is forgotten, so
  that the relay asks Redis: known ids stay as they are, and an id that ended long ago (its row was
  left over) runs again, as it would without a row.

What may run twice (at least once is the promise): a task that ended in the last moment before Redis
was emptied, its row not yet deleted; one whose row could not be deleted for longer than its end is
remembered (the longer of ``NONET_RESULT_TTL`` and ``NONET_DEDUP_TTL``).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

from nonet.base.errors import (
    AdmissionRejected,
    ConfigurationError,
    LimitImpossible,
    NonetError,
    ServerUnreachableError,
    masked,
)
from nonet.messages.repetition import mark_in
from nonet.messages.terms import counted_from
from nonet.stores.queue.broker import Broker, Presence
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql.database import Database, UtcDateTime, again_after_deadlock

logger = logging.getLogger(__name__)

# Rows in one statement; each may hold an envelope of NONET_MESSAGE_LIMIT.
PAGE_ROWS = 200
# A durable task can be submitted while Redis is away, and its submitter is not to wait for that.
_ASK_SECONDS = 1.0
# A submitter that has not said after so long whether its tasks are accepted is believed dead.
_CLAIM_SECONDS = 10.0
_TAKEN_OVER = 0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Of which a submission is made again.
_COLUMNS = (
    *("task_id", "task_class", "stream", "due_us", "locks", "envelope", "terms", "created_at"),
)


Rows = list[dict[str, Any]]
"""Values by column. All who change several rows do so in the order of their ids: in different
orders they would wait for each other."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A row: what SQL alone knows of a task.

    Attributes:
        name: full class name.
        stream: ``priority:size``.
        created: when it was submitted, by the clock of the submitter.
        due: not before; None: at once.
        mark: of the letter that it repeats, see `nonet.messages.repetition`; or empty.
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

    async def prepare(self) -> None:
        """Create or migrate the tables of a SQLite file; others are for ``task-run db upgrade``."""
        await self._database.migrate_sqlite()

    async def submit(self, submissions: Sequence[Submission], *, ids_are_new: bool) -> list[bool]:
        """Keep tasks, then hand them to Redis; False for each id that was known already.

        They are accepted once the rows are committed: what Redis does not take now, the relay
        hands over later.

        Args:
            ids_are_new: they were made for these submissions.

        Raises:
            LimitImpossible, AdmissionRejected: as `Broker.accept`.
            ServerUnreachableError: SQL does not answer; these were not submitted.
        """
        made: list[bool] = []
        for page in _pages(submissions):
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
            except (LimitImpossible, AdmissionRejected) as error:
                new = {item.id for item in page} - kept
                if new - await self._withdraw(new, claim) or not new:
                    raise _of_call(error, len(made)) from None
                known = [item.id in new for item in page]
            except NonetError as error:
                await self._give_to_relay(page, claim)
                logger.warning(
                    "%d durable tasks are kept in SQL and handed over later: %s", len(page), error
                )
                known = [item.id not in kept for item in page]
            # The relay may have been faster: that does not make a new id a known one.
            made += [True] * len(page) if ids_are_new else known
        return made

    async def submit_within(self, transaction: Any, submissions: Sequence[Submission]) -> None:
        """Keep tasks in the caller's transaction; the relay hands them over once it is committed.

        Args:
            transaction: an ``AsyncConnection`` or ``AsyncSession`` on this database.

        Raises:
            TypeError: it is something else.
            ConfigurationError: it is on another database.
            AdmissionRejected: there are as many tasks as a ceiling allows, without those that wait
                for their transactions.
        """
        await self._database.migrate_sqlite()
        await self._check_room(submissions)
        async with self._database.answering():
            connection = await self._connection_of(transaction)
            for page in _pages(submissions):
                await connection.execute(_insertion(connection.dialect), self._rows(page, None))

    async def epoch(self) -> int:
        """The epoch of Redis now."""
        epoch, _ = await self._broker.presence([])
        return epoch

    async def _check_room(self, submissions: Sequence[Submission]) -> None:
        """Before anything is written. Without Redis nobody can tell: they are accepted."""
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                await self._broker.check_room(submissions)
        except (TimeoutError, ServerUnreachableError):
            return

    async def hand_over(
        self, submissions: Sequence[Submission], epoch: int, *, admitted: bool = False
    ) -> list[bool]:
        """Give kept tasks to Redis and mark their rows; False for each that it knew already.

        Args:
            epoch: read before this is called.
            admitted: they were accepted before: no ceiling refuses them.

        Raises:
            NonetError: as `Broker.submit`, or SQL does not answer. None is marked, and some may
                have been submitted: do it again.
        """
        if admitted:
            submissions = [item.admitted() for item in submissions]
        made = await self._broker.submit(submissions)
        await self._mark([item.id for item in submissions], epoch)
        return made

    async def due(self, epoch: int, *, again: bool, skip: int) -> list[Submission]:
        """At most `PAGE_ROWS` tasks to hand over, oldest first.

        Args:
            epoch: the current one.
            again: those of other epochs; else those that were never handed over.
            skip: how many to leave out at the beginning.
        """
        column = outbox_tasks.c.epoch
        return await self._page(
            (column > 0) & (column != epoch) if again else column.is_(None), skip
        )

    async def orphans(self, *, skip: int) -> list[Submission]:
        """At most `PAGE_ROWS` tasks that nobody has accepted, as their submitters have died.

        From here on they are the caller's: hand them over under the ceilings.
        """
        if self._database.is_missing:
            return []
        column = outbox_tasks.c
        over = (column.epoch < 0) & (column.epoch > -_now_us())
        query = sa.select(column.task_id).where(column.namespace == self._namespace, over)
        async with self._database.transaction() as connection:
            ids = list((await connection.execute(query.limit(PAGE_ROWS))).scalars())
        if ids:
            # Only while they are claimed: some may have been handed over, or withdrawn, meanwhile.
            claimed = self._are(ids) & (column.epoch < 0)
            await self._change(sa.update(outbox_tasks).where(claimed).values(epoch=_TAKEN_OVER))
        return await self._page(column.epoch == _TAKEN_OVER, skip)

    async def _page(self, where: sa.ColumnElement[bool], skip: int) -> list[Submission]:
        if self._database.is_missing:
            return []
        query = (
            sa.select(*(outbox_tasks.c[name] for name in _COLUMNS))
            .where(outbox_tasks.c.namespace == self._namespace, where)
            .order_by(outbox_tasks.c.epoch, outbox_tasks.c.created_at, outbox_tasks.c.task_id)
            .limit(PAGE_ROWS)
            .offset(skip)
        )
        async with self._database.transaction() as connection:
            return [_submission(row) for row in await connection.execute(query)]

    async def review(self, epoch: int) -> tuple[int, int]:
        """Look at every row of the current epoch: does its task still live?

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
            lost += await self._forget_epoch(unknown, epoch)
        return closed, lost

    async def close(self, ids: Collection[str]) -> int:
        """Delete the rows of tasks that have ended; how many there were."""
        if not ids or self._database.is_missing:
            return 0
        return await self._change(sa.delete(outbox_tasks).where(self._are(ids)))

    async def count(self) -> int:
        """How many durable tasks have not ended, as far as SQL knows."""
        if self._database.is_missing:
            return 0
        query = sa.select(sa.func.count()).where(outbox_tasks.c.namespace == self._namespace)
        async with self._database.transaction() as connection:
            return int((await connection.execute(query)).scalar_one())

    async def find(self, id: str) -> Kept | None:
        """The row of a task, or None: it was not committed, or the task has ended."""
        if self._database.is_missing:
            return None
        column = outbox_tasks.c
        query = sa.select(
            *(column.task_class, column.stream, column.created_at, column.due_us, column.terms)
        ).where(self._are([id]))
        async with self._database.transaction() as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            return None
        due = _EPOCH + timedelta(microseconds=row.due_us) if row.due_us else None
        return Kept(id, row.task_class, row.stream, row.created_at, due, mark_in(row.terms))

    async def names(self, ids: Collection[str]) -> dict[str, str]:
        """The classes of tasks that have a row, by their ids."""
        if self._database.is_missing:
            return {}
        column, found = outbox_tasks.c, dict[str, str]()
        wanted = list(ids)
        for start in range(0, len(wanted), PAGE_ROWS):
            page = self._are(wanted[start : start + PAGE_ROWS])
            query = sa.select(column.task_id, column.task_class).where(page)
            async with self._database.transaction() as connection:
                rows = await connection.execute(query)
                found |= {row.task_id: row.task_class for row in rows}
        return found

    async def pages(self) -> AsyncIterator[list[Submission]]:
        """Every open task, page by page, in the order of their ids."""
        column, after = outbox_tasks.c, ""
        while not self._database.is_missing:
            query = (
                sa.select(*(column[name] for name in _COLUMNS))
                .where(column.namespace == self._namespace, column.task_id > after)
                .order_by(column.task_id)
                .limit(PAGE_ROWS)
            )
            async with self._database.transaction() as connection:
                page = [_submission(row) for row in await connection.execute(query)]
            if not page:
                return
            yield page
            after = page[-1].id

    async def overdue(self, seconds: float) -> tuple[int, float]:
        """How many tasks were kept more than `seconds` ago and are not handed over.

        Returns:
            With the age of the oldest in seconds. It counts from the submission: a transaction
            may have been committed, or Redis emptied, a moment ago.
        """
        if self._database.is_missing:
            return 0, 0.0
        epoch, now = await self.epoch(), datetime.now(UTC)
        column = outbox_tasks.c
        query = sa.select(sa.func.count(), sa.func.min(column.created_at)).where(
            column.namespace == self._namespace,
            column.epoch.is_(None) | (column.epoch != epoch),
            column.created_at <= now - timedelta(seconds=seconds),
        )
        async with self._database.transaction() as connection:
            number, oldest = (await connection.execute(query)).one()
        return int(number), (now - oldest).total_seconds() if oldest else 0.0

    async def _mark(self, ids: Collection[str], epoch: int) -> None:
        await self._change(sa.update(outbox_tasks).where(self._are(ids)).values(epoch=epoch))

    async def _forget_epoch(self, ids: Collection[str], epoch: int) -> int:
        if not ids:
            return 0
        same = self._are(ids) & (outbox_tasks.c.epoch == epoch)
        return await self._change(sa.update(outbox_tasks).where(same).values(epoch=None))

    async def _withdraw(self, ids: Collection[str], claim: int) -> set[str]:
        """Take back what was refused; the ids of those that the relay has taken over before.

        What Redis took nevertheless stays, and is marked by the relay.
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
            logger.error("durable tasks that were refused are kept nevertheless: %s", error)
        return set()

    async def _not_claimed(self, ids: Collection[str]) -> set[str]:
        column = outbox_tasks.c
        is_free = column.epoch.is_(None) | (column.epoch >= _TAKEN_OVER)
        query = sa.select(column.task_id).where(self._are(ids), is_free)
        async with self._database.transaction() as connection:
            return set((await connection.execute(query)).scalars())

    async def _give_to_relay(self, page: Sequence[Submission], claim: int) -> None:
        """They are accepted, as nobody can count while Redis does not answer."""
        ours = self._are([item.id for item in page]) & (outbox_tasks.c.epoch == claim)
        try:
            await self._change(sa.update(outbox_tasks).where(ours).values(epoch=None))
        except NonetError as error:  # the relay takes them over
            logger.warning("durable tasks are handed over some seconds later: %s", error)

    async def _kept(self, ids: Collection[str]) -> set[str]:
        query = sa.select(outbox_tasks.c.task_id).where(self._are(ids))
        async with self._database.transaction() as connection:
            return set((await connection.execute(query)).scalars())

    async def _handed_over(
        self, epoch: int, after: tuple[datetime, str] | None
    ) -> list[tuple[datetime, str]]:
        if self._database.is_missing:
            return []
        column = outbox_tasks.c
        query = sa.select(column.created_at, column.task_id).where(
            column.namespace == self._namespace, column.epoch == epoch
        )
        if after is not None:
            same_instant = (column.created_at == after[0]) & (column.task_id > after[1])
            # The first condition says nothing new; it is where the index begins.
            query = query.where(
                column.created_at >= after[0], (column.created_at > after[0]) | same_instant
            )
        query = query.order_by(column.created_at, column.task_id).limit(PAGE_ROWS)
        async with self._database.transaction() as connection:
            return [(at, id) for at, id in await connection.execute(query)]

    async def _change(self, statement: sa.UpdateBase, rows: Rows | None = None) -> int:
        """Run a statement in a transaction of its own; how many rows it changed."""
        return await again_after_deadlock(lambda: self._run(statement, rows))

    async def _run(self, statement: sa.UpdateBase, rows: Rows | None) -> int:
        async with self._database.transaction() as connection:
            return (await connection.execute(statement, rows)).rowcount

    def _are(self, ids: Collection[str]) -> sa.ColumnElement[bool]:
        return sa.and_(
            outbox_tasks.c.namespace == self._namespace, outbox_tasks.c.task_id.in_(sorted(ids))
        )

    def _rows(self, submissions: Sequence[Submission], epoch: int | None) -> Rows:
        now = datetime.now(UTC)
        return [
            {
                "namespace": self._namespace,
                "task_id": item.id,
                "epoch": epoch,
                "created_at": now + timedelta(microseconds=place),  # keeps their order
                "task_class": item.name,
                "stream": item.stream,
                "due_us": item.due_us,
                "locks": item.locks,
                "envelope": item.envelope,
                "terms": item.terms,
            }
            for place, item in sorted(enumerate(submissions), key=lambda pair: pair[1].id)
        ]

    async def _connection_of(self, transaction: Any) -> AsyncConnection:
        if isinstance(transaction, async_scoped_session):
            transaction = transaction()
        try:
            if isinstance(transaction, AsyncSession):
                transaction = await transaction.connection()
        except SQLAlchemyError as error:
            raise ConfigurationError(f"transaction: the session is of no use: {error}") from error
        if not isinstance(transaction, AsyncConnection):
            raise TypeError(
                "transaction: an AsyncConnection or AsyncSession of SQLAlchemy is needed, not "
                f"{type(transaction).__module__}.{type(transaction).__qualname__}"
            )
        ours, theirs = self._database.engine.url, transaction.engine.url
        if _place(ours) != _place(theirs):
            raise ConfigurationError(
                f"transaction: it is on the database {masked(str(theirs))}, but durable tasks are "
                f"kept in {masked(self._database.url)}: set NONET_DB_URL to the same database"
            )
        return transaction


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


def _of_call(error: LimitImpossible | AdmissionRejected, before: int) -> NonetError:
    """The refusal of a page, in a call that has submitted so many tasks before."""
    return error.after(before) if isinstance(error, AdmissionRejected) else error


def _now_us() -> int:
    return (datetime.now(UTC) - _EPOCH) // timedelta(microseconds=1)


def _place(url: sa.URL) -> tuple[str, str]:
    """What tells databases apart in any spelling of a URL; hosts have too many names."""
    backend = url.get_backend_name()
    if backend == "sqlite":
        return backend, os.path.realpath(url.database or "")
    return backend.replace("mariadb", "mysql"), url.database or ""


def _pages(submissions: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    for start in range(0, len(submissions), PAGE_ROWS):
        yield submissions[start : start + PAGE_ROWS]


# ---- the table (created by migrations/versions; a test compares the two) ------------------------

_MYSQL = ("mysql", "mariadb")

outbox_tasks = sa.Table(
    "outbox_tasks",
    sa.MetaData(),
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("task_id", sa.String(128), primary_key=True),
    sa.Column("epoch", sa.BigInteger()),  # µs of the clock of Redis; 0 and less: see above
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("task_class", sa.String(255), nullable=False),
    sa.Column("stream", sa.String(64), nullable=False),
    sa.Column("due_us", sa.BigInteger(), nullable=False),
    sa.Column("locks", sa.Text().with_variant(mysql.LONGTEXT(), *_MYSQL), nullable=False),
    sa.Column("envelope", sa.LargeBinary().with_variant(mysql.LONGBLOB(), *_MYSQL), nullable=False),
    sa.Column("terms", sa.String(255), nullable=False, server_default=""),
    sa.Index("ix_outbox_tasks_epoch", "namespace", "epoch", "created_at", "task_id"),
)


def _insertion(dialect: sa.Dialect) -> sa.Insert:
    """Insert rows; one that is there already keeps its task, and forgets its epoch."""
    # A claim stays. The 0 is no parameter: aiomysql takes none behind the rows.
    is_epoch = outbox_tasks.c.epoch > sa.literal_column("0")
    epoch = sa.case((is_epoch, sa.null()), else_=outbox_tasks.c.epoch)
    if dialect.name in _MYSQL:
        return mysql.insert(outbox_tasks).on_duplicate_key_update(epoch=epoch)
    made = sqlite.insert if dialect.name == "sqlite" else postgresql.insert
    return made(outbox_tasks).on_conflict_do_update(
        index_elements=["namespace", "task_id"], set_={"epoch": epoch}
    )
