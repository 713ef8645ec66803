"""The table of dead letters: what failed for good, kept until somebody resubmits or discards it."""

from __future__ import annotations

import builtins
import hashlib
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from nonet.base.errors import ConflictError, NotFoundError
from nonet.messages.repetition import Identity
from nonet.stores.sql.database import ANSWER_SECONDS, Database, UtcDateTime

TEXT_BYTES = 65_535  # what a TEXT of MySQL holds
TRACEBACK_BYTES = 256 * 1024
DETAIL_BYTES = 4096  # of each text in the history and the labels
HISTORY_ENTRIES = 100
# Rows that one statement looks at or deletes: others must not wait for long.
_PAGE_ROWS = 500


class Status(StrEnum):
    """What became of a dead letter."""

    #: not submitted again, or not for certain: with `DeadLetter.resubmitted_as` that was begun
    PENDING = "PENDING"
    DISPATCHED = "DISPATCHED"  #: submitted again, as `DeadLetter.resubmitted_as`
    FAILED = "FAILED"  #: submitted again, and that task died as well: it has a row of its own


@dataclass(frozen=True, kw_only=True, slots=True)
class NewDeadLetter:
    """What a worker writes about a task that failed for good.

    Attributes:
        task_id: the task; with ``generation`` the identity of the letter.
        generation: which requeue of the task this was.
        task_class: full name, ``category:Class``.
        task_args: the arguments as they travelled.
        submitted_at: when the task was first submitted.
        reason: ``retries``, ``crash``, ``worker-lost``, ``quarantined``, ``capacity`` …
        retry_count: retries used.
        max_retries: retries allowed; None if the policy knows no number.
        last_attempted_at: start of the last attempt; None if there was none.
        error_type: name of the last exception's class.
        error_message: its text.
        traceback: redacted text.
        history: one mapping per attempt, oldest first; the last 100 are kept.
        labels: as submitted.
        parent_id: the task that submitted this one.
        resubmitted_from: row of the letter that this task repeated.
        vo: virtual organisation.

    Texts are stored cut to what their column holds (the middle goes), with NUL and lone
    surrogates escaped: an odd error must not keep its task from being recorded.
    """

    task_id: str
    generation: int
    task_class: str
    task_args: bytes = field(repr=False)
    submitted_at: datetime
    reason: str
    retry_count: int = 0
    max_retries: int | None = None
    last_attempted_at: datetime | None = None
    error_type: str = ""
    error_message: str = ""
    traceback: str = field(default="", repr=False)
    history: Sequence[Mapping[str, Any]] = ()
    labels: Mapping[str, Any] = field(default_factory=dict)
    parent_id: str | None = None
    resubmitted_from: int | None = None
    vo: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter(NewDeadLetter):
    """A row of the table. Lists come without arguments and traceback: both are empty there.

    Attributes:
        id: number of the row; another letter may get it after ``TRUNCATE``.
        namespace: of the task; empty: a release without namespaces wrote it.
        resubmitted_as: the task that repeats it, or is about to.
        resubmissions: how many repeats there were before that one.
    """

    id: int
    namespace: str
    status: Status
    last_error: str
    resubmitted_as: str | None
    resubmissions: int
    created_at: datetime

    @property
    def identity(self) -> Identity:
        """What tells it from all others, in whatever database it is."""
        return Identity(self.namespace, self.task_id, self.generation)


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterFilter:
    """Which letters are meant: those that pass every filter; one that is None passes all.

    Attributes:
        status: what became of it.
        task_class: full name, ``category:Class``.
        reason: why it died.
        died_before: only letters that are older.
        died_after: only letters that are newer.
    """

    status: str | None = None
    task_class: str | None = None
    reason: str | None = None
    died_before: datetime | None = None
    died_after: datetime | None = None

    def clauses(self) -> list[sa.ColumnElement[bool]]:
        """The filters as conditions on the table."""
        wanted = {"status": self.status, "task_class": self.task_class, "reason": self.reason}
        found = [dlq_tasks.c[name] == value for name, value in wanted.items() if value is not None]
        if self.died_before is not None:
            found.append(dlq_tasks.c.created_at < self.died_before)
        if self.died_after is not None:
            found.append(dlq_tasks.c.created_at > self.died_after)
        return found


class DeadLetters:
    """The dead letters of one namespace.

    A SQLite database is created when the first letter is added and migrated when it is first
    used, others by ``task-run db upgrade``. Every method raises `ServerUnreachableError` when the
    database does not answer, and `ConfigurationError` when its tables are missing; the object
    works again as soon as the database does.

    Example:
        >>> async def oldest(url: str) -> DeadLetter:
        ...     letters = DeadLetters(url, "nonet")
        ...     try:
        ...         return (await letters.list(status=Status.PENDING))[-1]
        ...     finally:
        ...         await letters.close()

    Args:
        database: an open one, or the URL of one that is opened here, see `Database`.
        namespace: of the tasks; several may share a database.
        answer_seconds: after which a silent database counts as unreachable.

    Raises:
        ConfigurationError: the URL is wrong or its driver is not installed.
    """

    def __init__(
        self,
        database: str | Database,
        namespace: str,
        *,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        if isinstance(database, str):
            database = Database(database, answer_seconds=answer_seconds)
        self._database = database
        self.namespace = namespace
        self._own = dlq_tasks.c.namespace == namespace

    @property
    def unnamed(self) -> DeadLetters:
        """The letters that releases without namespaces wrote, whosever they are."""
        return DeadLetters(self._database, "")

    async def add(self, letter: NewDeadLetter) -> int:
        """Store ``letter`` and return its row id: the same id however often it is called."""
        row = dlq_tasks.c
        same = sa.and_(
            row.task_id == _identity(letter.task_id), row.generation == letter.generation
        )
        try:
            async with self._transaction() as connection:
                # A worker of a release without namespaces may have written it, and died then.
                unnamed = sa.select(row.id).where(row.namespace == "", same)
                if (found := await connection.scalar(unnamed)) is not None:
                    await self._name(connection, found)
                    return int(found)
                values = {**_columns(letter), "namespace": self.namespace}
                added = await connection.execute(sa.insert(dlq_tasks).values(values))
                key: Any = added.inserted_primary_key
                return int(key[0])
        except _AlreadyStored:
            async with self._transaction() as connection:
                stored = await connection.execute(sa.select(row.id).where(self._own, same))
                return int(stored.scalar_one())

    async def add_many(self, letters: Sequence[NewDeadLetter]) -> None:
        """Store letters in one transaction; those that are there already stay as they are."""
        rows = [{**_columns(letter), "namespace": self.namespace} for letter in letters]
        if not rows:
            return
        same = sa.tuple_(dlq_tasks.c.task_id, dlq_tasks.c.generation).in_(
            [(row["task_id"], row["generation"]) for row in rows]
        )
        unnamed = sa.update(dlq_tasks).where(dlq_tasks.c.namespace == "", same)
        try:
            async with self._transaction() as connection:
                await connection.execute(unnamed.values(namespace=self.namespace))
                await connection.execute(_insertion(connection.dialect), rows)
        except _AlreadyStored:  # workers of two releases wrote one of them
            for letter in letters:
                await self.add(letter)

    async def adopt(self, row_id: int) -> None:
        """Take a letter that a release without namespaces wrote into this namespace.

        It is deleted if this namespace has the same letter: workers of two releases wrote it.

        Raises:
            NotFoundError: there is no such row, or it has a namespace.
        """
        if self._database.is_missing:
            raise _no_such_row(row_id)
        try:
            async with self._transaction() as connection:
                if not await self._name(connection, row_id):
                    raise await self._missing(connection, row_id)
        except _AlreadyStored:
            await self.unnamed.discard(row_id)

    async def _name(self, connection: AsyncConnection, row_id: int) -> bool:
        """Give a letter without a namespace this one; False: it is gone, or has one."""
        changed = await connection.execute(
            sa.update(dlq_tasks)
            .where(dlq_tasks.c.id == row_id, dlq_tasks.c.namespace == "")
            .values(namespace=self.namespace)
        )
        return changed.rowcount > 0

    async def list(
        self, *, limit: int = 100, every_namespace: bool = False, **filters: Any
    ) -> builtins.list[DeadLetter]:
        """The newest ``limit`` letters that fit all filters, newest first.

        Args:
            every_namespace: all that are in the database, not those of this namespace alone.
            filters: fields of `LetterFilter`.
        """
        query = sa.select(*(c for c in dlq_tasks.c if c.name not in ("task_args", "traceback")))
        query = query.where(*LetterFilter(**filters).clauses())
        if not every_namespace:
            query = query.where(self._own)
        if self._database.is_missing:
            return []
        async with self._transaction() as connection:
            rows = await connection.execute(query.order_by(dlq_tasks.c.id.desc()).limit(limit))
            return [_letter(row, task_args=b"") for row in rows]

    async def get(self, row_id: int) -> DeadLetter:
        """The whole letter.

        Raises:
            NotFoundError: no such row.
        """
        if self._database.is_missing:
            raise _no_such_row(row_id)
        async with self._transaction() as connection:
            return await self._read(connection, row_id)

    async def claim(self, letter: DeadLetter, repeat: str, resubmissions: int) -> None:
        """Record that a letter is about to be submitted again. Of several callers one may.

        It stays ``PENDING`` until `dispatch`: who dies in between has submitted it, or has not.

        Args:
            letter: as it was read.
            repeat: id of the task.
            resubmissions: how many repeats there were before it.

        Raises:
            NotFoundError: no such row.
            ConflictError: it is not as it was read: somebody else acted on it.
        """
        values = {
            "status": Status.PENDING,
            "resubmitted_as": repeat,
            "resubmissions": resubmissions,
        }
        async with self._transaction() as connection:
            # Compare-and-set: the row is locked by the update, so that the read sees who won.
            claimed = await connection.execute(
                self._update(letter.id)
                .where(
                    dlq_tasks.c.status == letter.status,
                    dlq_tasks.c.resubmissions == letter.resubmissions,
                    dlq_tasks.c.resubmitted_as.is_not_distinct_from(letter.resubmitted_as),
                    dlq_tasks.c.task_id == letter.task_id,
                    dlq_tasks.c.generation == letter.generation,
                )
                .values(values)
            )
            if claimed.rowcount == 0:
                now = await self._read(connection, letter.id)
                raise ConflictError(f"{_state(now)}: somebody else acted on it meanwhile")

    async def dispatch(self, row_id: int, repeat: str) -> None:
        """Record that the task for which a letter was claimed is submitted.

        Raises:
            NotFoundError: no such row.
            ConflictError: it is claimed for another task.
        """
        pending = dlq_tasks.c.status == Status.PENDING
        if not await self._advance(row_id, repeat, pending, status=Status.DISPATCHED):
            letter = await self.get(row_id)
            if letter.resubmitted_as != repeat:
                raise ConflictError(f"{_state(letter)}; it is not claimed for task {repeat}")

    async def release(self, letter: DeadLetter, repeat: str) -> None:
        """Take back `claim`, because ``repeat`` is not submitted; nothing if it has gone on.

        Args:
            letter: as it was read before it was claimed.
        """
        await self._advance(
            letter.id,
            repeat,
            dlq_tasks.c.status == Status.PENDING,
            status=letter.status,
            resubmitted_as=letter.resubmitted_as,
            resubmissions=letter.resubmissions,
        )

    async def mark_failed(self, row_id: int, repeat: str) -> bool:
        """Record that the repeat of a letter died again, under a letter of its own.

        Returns:
            False if the row is gone, or is another letter now, or has another repeat.
        """
        return await self._advance(
            row_id, repeat, dlq_tasks.c.status != Status.FAILED, status=Status.FAILED
        )

    async def _advance(
        self, row_id: int, repeat: str, still: sa.ColumnElement[bool], **values: Any
    ) -> bool:
        """Change a row if `repeat` is its last repeat, and what `still` says is so."""
        is_its = dlq_tasks.c.resubmitted_as == _identity(repeat)
        async with self._transaction() as connection:
            changed = await connection.execute(
                self._update(row_id).where(is_its, still).values(values)
            )
            return changed.rowcount > 0

    async def discard(self, row_id: int, *, only: LetterFilter | None = None) -> None:
        """Delete a letter.

        Args:
            only: leave it alone if it does not fit (any more): somebody may have acted on it.

        Raises:
            NotFoundError: no such row.
            ConflictError: it does not fit `only`.
        """
        if self._database.is_missing:
            raise _no_such_row(row_id)
        fits = only.clauses() if only else []
        async with self._transaction() as connection:
            gone = await connection.execute(
                sa.delete(dlq_tasks).where(dlq_tasks.c.id == row_id, self._own, *fits)
            )
            if gone.rowcount == 0:
                letter = await self._read(connection, row_id)
                raise ConflictError(f"{_state(letter)}: it is not one of those that were meant")

    async def pages(self, selection: LetterFilter) -> AsyncIterator[builtins.list[int]]:
        """Row ids of the letters that fit, oldest first, some hundred at a time.

        Letters that come while the pages are read are not in them: a task that is submitted
        again and dies again would be met without end.
        """
        if self._database.is_missing:
            return
        async with self._transaction() as connection:
            end = await connection.scalar(sa.select(sa.func.max(dlq_tasks.c.id)))
        last: int | None = 0
        while last is not None and last < (end or 0):
            rows, last = await self._page(selection, last, end)
            if rows:
                yield rows

    async def _page(
        self, selection: LetterFilter, last: int, end: int
    ) -> tuple[builtins.list[int], int | None]:
        """What fits of the next rows up to `end`, and the last one looked at; None at the end.

        Each statement looks at a range of ids, however few of them fit.
        """
        row = dlq_tasks.c.id
        async with self._transaction() as connection:
            first = await connection.scalar(sa.select(sa.func.min(row)).where(row > last))
            if first is None:
                return [], None
            last = min(first + _PAGE_ROWS - 1, end)
            query = sa.select(row).where(row.between(first, last), self._own, *selection.clauses())
            return list((await connection.scalars(query.order_by(row))).all()), last

    async def purge(self, selection: LetterFilter) -> AsyncIterator[int]:
        """Delete the letters that fit, oldest first, some hundred at a time.

        Each batch is a transaction that locks its own rows alone. Gives how many it deleted.
        """
        async for rows in self.pages(selection):
            async with self._transaction() as connection:
                gone = await connection.execute(
                    # Looked at again: somebody may have acted on one meanwhile.
                    sa.delete(dlq_tasks).where(
                        dlq_tasks.c.id.in_(rows), self._own, *selection.clauses()
                    )
                )
            yield gone.rowcount

    async def count(self) -> dict[Status, int]:
        """How many letters there are in each status, zeros included."""
        query = sa.select(dlq_tasks.c.status, sa.func.count()).where(self._own)
        query = query.group_by(dlq_tasks.c.status)
        if self._database.is_missing:
            return dict.fromkeys(Status, 0)
        async with self._transaction() as connection:
            found = {Status(status): n for status, n in await connection.execute(query)}
        return {status: found.get(status, 0) for status in Status}

    def _update(self, row_id: int) -> sa.Update:
        return sa.update(dlq_tasks).where(dlq_tasks.c.id == row_id, self._own)

    async def _read(self, connection: AsyncConnection, row_id: int) -> DeadLetter:
        query = sa.select(dlq_tasks).where(dlq_tasks.c.id == row_id, self._own)
        row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise await self._missing(connection, row_id)
        return _letter(row)

    async def _missing(self, connection: AsyncConnection, row_id: int) -> NotFoundError:
        """Why this namespace has no such row, and what to do."""
        whose = await connection.scalar(
            sa.select(dlq_tasks.c.namespace).where(dlq_tasks.c.id == row_id)
        )
        if whose is None:
            return _no_such_row(row_id)
        if whose == self.namespace:
            return NotFoundError(f"dead letter {row_id} is of namespace {whose} already")
        if whose:
            return NotFoundError(
                f"dead letter {row_id} is of namespace {whose}, not of {self.namespace}: "
                f"use --namespace {whose}"
            )
        return NotFoundError(
            f"dead letter {row_id} was written by a release without namespaces: if it is of "
            f"{self.namespace}, 'task-run dlq adopt {row_id}' takes it there"
        )

    async def close(self) -> None:
        """Close all connections; do it before the event loop ends."""
        await self._database.close()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        async with self._database.transaction() as connection:
            try:
                yield connection
            except IntegrityError as error:
                raise _AlreadyStored from error


class _AlreadyStored(Exception):
    """The namespace has a row for this task and generation: the only constraint to hit."""


# ---- the table (created by migrations/versions; a test compares the two) ------------------------

_MYSQL = ("mysql", "mariadb")

dlq_tasks = sa.Table(
    "dlq_tasks",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    sa.Column("namespace", sa.String(64), nullable=False, server_default=""),
    sa.Column("task_id", sa.String(128), nullable=False),
    sa.Column("generation", sa.BigInteger(), nullable=False),
    sa.Column("status", sa.String(16), nullable=False, index=True),
    sa.Column("task_class", sa.String(255), nullable=False),
    sa.Column("reason", sa.String(64), nullable=False),
    sa.Column("vo", sa.String(255)),
    sa.Column("parent_id", sa.String(128)),
    sa.Column("resubmitted_from", sa.BigInteger()),
    sa.Column("resubmitted_as", sa.String(128)),
    sa.Column("resubmissions", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("submitted_at", UtcDateTime(), nullable=False),
    sa.Column("last_attempted_at", UtcDateTime()),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("retry_count", sa.Integer(), nullable=False),
    sa.Column("max_retries", sa.Integer()),
    sa.Column("error_type", sa.String(255), nullable=False),
    sa.Column("error_message", sa.Text(), nullable=False),
    sa.Column("last_error", sa.Text(), nullable=False),
    sa.Column("labels", sa.JSON(), nullable=False),
    sa.Column("history", sa.JSON(), nullable=False),
    # Large values last: SQLite reads through them to get at what follows.
    sa.Column("traceback", sa.Text().with_variant(mysql.LONGTEXT(), *_MYSQL), nullable=False),
    sa.Column(
        "task_args", sa.LargeBinary().with_variant(mysql.LONGBLOB(), *_MYSQL), nullable=False
    ),
    sa.UniqueConstraint("namespace", "task_id", "generation", name="uq_dlq_tasks_identity"),
)


def _insertion(dialect: sa.Dialect) -> sa.Insert:
    """Insert rows; one that is there already stays as it is."""
    if dialect.name in _MYSQL:
        made = mysql.insert(dlq_tasks)
        return made.on_duplicate_key_update(task_id=made.inserted.task_id)
    insert = sqlite.insert if dialect.name == "sqlite" else postgresql.insert
    return insert(dlq_tasks).on_conflict_do_nothing(
        index_elements=["namespace", "task_id", "generation"]
    )


def _columns(letter: NewDeadLetter) -> dict[str, Any]:
    error = f"{letter.error_type}: {letter.error_message}".strip(": ") or letter.reason
    return {
        "task_id": _identity(letter.task_id),
        "generation": letter.generation,
        "status": Status.PENDING,
        "task_class": _chars(letter.task_class, 255),
        "reason": _chars(letter.reason, 64),
        "vo": None if letter.vo is None else _chars(letter.vo, 255),
        "parent_id": None if letter.parent_id is None else _identity(letter.parent_id),
        "resubmitted_from": letter.resubmitted_from,
        "submitted_at": letter.submitted_at,
        "last_attempted_at": letter.last_attempted_at,
        "created_at": datetime.now(UTC),
        "retry_count": letter.retry_count,
        "max_retries": letter.max_retries,
        "error_type": _chars(letter.error_type, 255),
        "error_message": storable(letter.error_message, TEXT_BYTES),
        "last_error": storable(error, TEXT_BYTES),
        "labels": _storable_json(letter.labels),
        "history": _storable_json(letter.history[-HISTORY_ENTRIES:]),
        "traceback": storable(letter.traceback, TRACEBACK_BYTES),
        "task_args": letter.task_args,
    }


def _letter(row: sa.Row[Any], **absent: Any) -> DeadLetter:
    values = {**row._mapping, **absent}
    return DeadLetter(**{**values, "status": Status(values["status"])})


def _no_such_row(row_id: int) -> NotFoundError:
    return NotFoundError(f"no dead letter {row_id}; 'task-run dlq list' shows those that exist")


def _state(letter: DeadLetter) -> str:
    again = "submission again begun" if letter.status is Status.PENDING else "submitted again"
    repeated = f" ({again} as task {letter.resubmitted_as})" if letter.resubmitted_as else ""
    return f"dead letter {letter.id} is {letter.status}{repeated}"


# ---- texts that every database takes ------------------------------------------------------------


def storable(text: str, limit: int) -> str:
    r"""``text`` in at most ``limit`` bytes of UTF-8; the middle is cut, both ends say most.

    NUL (PostgreSQL refuses it) and lone surrogates (which UTF-8 cannot carry) are escaped.

    >>> storable("caf\xe9 \udce9\0", 100)
    'café \\udce9\\x00'
    >>> storable("a" * 50 + "z" * 50, 40)
    'aaaaaa … cut from 100 bytes … zzzzzz'
    """
    data = text.encode("utf-8", "backslashreplace").replace(b"\0", b"\\x00")
    if len(data) <= limit:
        return data.decode()
    mark = f" … cut from {len(data)} bytes … ".encode()
    end = (limit - len(mark)) // 2
    return b"".join((data[:end], mark, data[-end:])).decode(errors="ignore")


def _chars(text: str, limit: int) -> str:
    """For a short column, which counts characters: an ASCII one is one byte."""
    return storable(text, 4 * limit)[:limit]


def _identity(task_id: str) -> str:
    """A task id that fits its column; those that do not keep their start and get a digest.

    Cutting alone would make one id of two, and lose the second letter. MySQL ignores blanks at
    the end when it compares.
    """
    if task_id == storable(task_id, 512)[:128].rstrip():
        return task_id
    digest = hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{storable(task_id, 512)[:63]}~{digest}"


def _storable_json(value: Any) -> Any:
    """A copy that JSON columns take: no NaN, no odd texts, no types that JSON lacks."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return storable(value, DETAIL_BYTES)
        case Mapping():
            return {storable(str(k), DETAIL_BYTES): _storable_json(v) for k, v in value.items()}
        case list() | tuple():
            return [_storable_json(item) for item in value]
        case _:
            return storable(str(value), DETAIL_BYTES)
