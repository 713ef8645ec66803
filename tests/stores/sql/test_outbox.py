"""The rows of durable tasks, on a real Redis and on SQLite and MariaDB."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from clients import broker_at
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session
from waits import WAIT_SECONDS

from nonet.base.errors import ConfigurationError, LimitImpossible, ServerUnreachableError
from nonet.stores.queue.broker import Broker, Presence
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql import database as sql
from nonet.stores.sql.outbox import Outbox, outbox_tasks
from nonet.tasks.locks import RateLimiter, encode_locks

STREAM = "normal:small"
UNREACHABLE = "redis://127.0.0.1:1"


@pytest.fixture
def outbox(database: sql.Database, broker: Broker) -> Outbox:
    return Outbox(database, broker, "test")


@pytest.fixture
async def apart(database: sql.Database) -> AsyncIterator[Outbox]:
    """An outbox whose Redis does not answer."""
    away = broker_at(UNREACHABLE)
    yield Outbox(database, away, "test")
    await away.aclose()


def task(id: str = "task-1", **changes: Any) -> Submission:
    values = {"name": "files:Remove", "stream": STREAM, "envelope": b"\x00\xff" + id.encode()}
    return Submission(id=id, **(values | changes))


async def epoch_of(broker: Broker) -> int:
    epoch, _ = await broker.presence([])
    return epoch


async def state_of(broker: Broker, id: str) -> Presence:
    _, (state,) = await broker.presence([id])
    return state


async def waiting(outbox: Outbox, epoch: int) -> list[str]:
    """Ids of all rows that the relay would hand over."""
    pages = [await outbox.due(epoch, again=again, skip=0) for again in (False, True)]
    return [item.id for page in pages for item in page]


async def run_all(broker: Broker) -> list[str]:
    """Fetch and settle what is queued; the ids."""
    ran = []
    while (fetched := await broker.fetch("worker", "small", 100))[0]:
        for delivery in fetched[0]:
            assert await broker.settle(delivery, "done", b"") == "OK"
            ran.append(delivery.id)
    return ran


async def epochs(database: sql.Database) -> dict[str, int | None]:
    query = sa.select(outbox_tasks.c.task_id, outbox_tasks.c.epoch)
    async with database.transaction() as connection:
        return {row.task_id: row.epoch for row in await connection.execute(query)}


async def test_a_row_has_an_epoch(outbox: Outbox, database: sql.Database, broker: Broker) -> None:
    """The task is in Redis; closing deletes the row."""
    assert await outbox.submit([task()], ids_are_new=False) == [True]
    epoch = await epoch_of(broker)
    assert await epochs(database) == {"task-1": epoch}
    assert await state_of(broker, "task-1") is Presence.LIVE
    assert await waiting(outbox, epoch) == []
    assert await outbox.close(["task-1", "never-submitted"]) == 1
    assert await outbox.count() == 0


async def test_the_relay_reads_what_was_submitted(apart: Outbox) -> None:
    """Bytes, locks, due time and stream."""
    locks = encode_locks([RateLimiter("job", "a|b\n\udce9")] * 1)
    whole = task(locks=locks, due_us=1_800_000_000_123_456, envelope=bytes(range(256)) * 4096)
    await apart.submit([whole], ids_are_new=True)
    assert await apart.due(1, again=False, skip=0) == [whole]


async def test_a_known_id_is_the_same_task(outbox: Outbox, broker: Broker) -> None:
    """It has one row and is queued once; a relay that was faster does not make an id known."""
    assert await outbox.submit([task()], ids_are_new=False) == [True]
    assert await outbox.submit([task(envelope=b"other")], ids_are_new=False) == [False]
    assert await outbox.count() == 1
    await broker.submit([task("relayed")])
    assert await outbox.submit([task("relayed")], ids_are_new=True) == [True]
    assert await run_all(broker) == ["task-1", "relayed"]


async def test_namespaces_do_not_see_each_other(
    outbox: Outbox, database: sql.Database, broker: Broker
) -> None:
    """Installations that share a database relay and close their own rows only."""
    other = Outbox(database, broker, "other")
    async with database.transaction() as connection:
        await outbox.submit_within(connection, [task()])
    assert await waiting(other, 1) == []
    assert (await other.count(), await other.close(["task-1"])) == (0, 0)
    assert await waiting(outbox, 1) == ["task-1"]


async def test_a_task_is_accepted_without_redis(
    apart: Outbox, outbox: Outbox, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The handle says new, a warning says later, and the relay finds the row."""
    assert await apart.submit([task()], ids_are_new=False) == [True]
    assert await apart.submit([task()], ids_are_new=False) == [False]
    assert "stored 1 durable tasks in SQL, the relay submits them later" in caplog.text
    (found,) = await outbox.due(await epoch_of(broker), again=False, skip=0)
    assert await outbox.hand_over([found], await epoch_of(broker)) == [True]
    assert await run_all(broker) == ["task-1"]


async def test_a_full_redis_accepts_a_task(outbox: Outbox, broker: Broker) -> None:
    """The row is enough."""
    await broker.client.config_set("maxmemory", 1)
    try:
        assert await outbox.submit([task()], ids_are_new=True) == [True]
    finally:
        await broker.client.config_set("maxmemory", 0)
    assert await waiting(outbox, 1) == ["task-1"]


async def test_nothing_is_submitted_without_sql(broker: Broker) -> None:
    """The error names the server, and Redis does not know the task."""
    database = sql.Database("mysql://nonet@127.0.0.1:1/nonet")
    with pytest.raises(ServerUnreachableError, match=r"mysql://nonet@127\.0\.0\.1:1/nonet"):
        await Outbox(database, broker, "test").submit([task()], ids_are_new=True)
    assert await state_of(broker, "task-1") is Presence.UNKNOWN
    await database.close()


async def test_an_impossible_task_leaves_no_row(outbox: Outbox, database: sql.Database) -> None:
    """Unless its row came with a commit before; the others keep their rows."""
    rate = RateLimiter("job", "a", limit=1, window_seconds=60, n_items=5)
    bad = task("bad", locks=encode_locks([rate]))
    await outbox.submit([task("fine")], ids_are_new=False)
    with pytest.raises(LimitImpossible, match="task bad was not submitted"):
        await outbox.submit([task("fine"), bad], ids_are_new=False)
    assert await outbox.count() == 1
    async with database.transaction() as connection:
        await outbox.submit_within(connection, [bad])
    with pytest.raises(LimitImpossible):
        await outbox.submit([bad], ids_are_new=False)
    assert await outbox.count() == 2


async def test_a_commit_makes_the_row(
    outbox: Outbox, database: sql.Database, broker: Broker
) -> None:
    """Of a connection or a session; before it Redis is not asked, a roll-back leaves no row."""
    await outbox.prepare()
    async with database.engine.connect() as connection:
        await outbox.submit_within(connection, [task("taken-back")])
        await connection.rollback()
        await outbox.submit_within(connection, [task("kept")])
        assert await waiting(outbox, 1) == []
        await connection.commit()
    assert await waiting(outbox, 1) == ["kept"]
    assert await state_of(broker, "kept") is Presence.UNKNOWN
    async with async_sessionmaker(database.engine)() as session:
        await outbox.submit_within(session, [task("second")])
        await session.commit()
        await outbox.submit_within(session, [task("taken-back")])
    assert await waiting(outbox, 1) == ["kept", "second"]


async def test_a_known_id_does_not_abort_a_transaction(
    outbox: Outbox, database: sql.Database, broker: Broker
) -> None:
    """The relay asks Redis again, because the row may be left over."""
    await outbox.submit([task()], ids_are_new=True)
    async with database.transaction() as connection:
        await outbox.submit_within(connection, [task(envelope=b"other"), task("task-2")])
    epoch = await epoch_of(broker)
    found = await outbox.due(epoch, again=False, skip=0)
    assert sorted(item.id for item in found) == ["task-1", "task-2"]
    assert task() in found  # as it was submitted first
    assert sorted(await outbox.hand_over(found, epoch)) == [False, True]
    assert await waiting(outbox, epoch) == []


async def test_other_transactions_are_refused(outbox: Outbox, tmp_path: Path) -> None:
    """What is no asynchronous transaction, is bound to no database, or to another one."""
    for wrong in (object(), Session(), "transaction", sql.Database):
        with pytest.raises(TypeError, match=r"pass an AsyncConnection or AsyncSession .*, not \w+"):
            await outbox.submit_within(wrong, [task()])
    with pytest.raises(ConfigurationError, match="transaction: the session"):
        await outbox.submit_within(AsyncSession(), [task()])
    other = sql.open_engine(f"sqlite:///{tmp_path}/other.db")
    async with other.connect() as connection:
        with pytest.raises(ConfigurationError, match=r"on the database .*other\.db.*NONET_DB_URL"):
            await outbox.submit_within(connection, [task()])
    await other.dispose()


async def test_a_new_epoch_gets_all_rows_again(outbox: Outbox, broker: Broker) -> None:
    """After a FLUSHALL every row is due, oldest first, and runs once."""
    many = [task(f"task-{n}") for n in (3, 1, 4, 2, 5)]
    await outbox.submit(many[:3], ids_are_new=True)
    await outbox.submit(many[3:], ids_are_new=True)
    await broker.client.flushall()
    epoch = await epoch_of(broker)
    found = await outbox.due(epoch, again=True, skip=0)
    assert found == many
    assert await outbox.due(epoch, again=True, skip=3) == many[3:]
    await outbox.hand_over(found, epoch)
    assert await waiting(outbox, epoch) == []
    assert len(await run_all(broker)) == 5


async def test_the_mark_is_of_the_epoch_before_the_submit(
    outbox: Outbox, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Redis is emptied right after it took the task, the row is due again."""
    submit = broker.submit

    async def then_flush(submissions: Sequence[Submission]) -> list[bool]:
        made = await submit(submissions)
        await broker.client.flushall()
        return made

    monkeypatch.setattr(broker, "submit", then_flush)
    await outbox.submit([task()], ids_are_new=True)
    assert await waiting(outbox, await epoch_of(broker)) == ["task-1"]


async def test_a_review_deletes_rows_of_ended_tasks(
    outbox: Outbox, broker: Broker, database: sql.Database
) -> None:
    """Their worker died before it closed the rows."""
    ended = [task(f"ended-{n}") for n in range(sql.PAGE_ROWS + 1)]
    await outbox.submit(ended, ids_are_new=True)
    await run_all(broker)
    await outbox.submit([task("lives")], ids_are_new=True)
    # Clocks are coarse, and several processes write: rows of one instant fill more than a page.
    async with database.transaction() as connection:
        await connection.execute(sa.update(outbox_tasks).values(created_at=datetime.now(UTC)))
    assert await outbox.review(await epoch_of(broker)) == (len(ended), 0)
    assert await outbox.count() == 1


async def test_a_review_finds_losses(outbox: Outbox, broker: Broker) -> None:
    """Redis lost its last moments: the task is unknown, and handed over again."""
    await outbox.submit([task("lost"), task("lives")], ids_are_new=True)
    epoch = await epoch_of(broker)
    await broker.client.delete("{test}:t:lost", "{test}:b:lost")
    assert await outbox.review(epoch) == (0, 1)
    assert await waiting(outbox, epoch) == ["lost"]


async def test_a_review_believes_only_its_epoch(
    outbox: Outbox, broker: Broker, database: sql.Database
) -> None:
    """A Redis that was emptied meanwhile knows no task."""
    await outbox.submit([task()], ids_are_new=True)
    before = await epoch_of(broker)
    await broker.client.flushall()
    assert await outbox.review(before) == (0, 0)
    assert await epochs(database) == {"task-1": before}
    assert await waiting(outbox, await epoch_of(broker)) == ["task-1"]


async def test_a_task_is_found_by_its_row(outbox: Outbox, database: sql.Database) -> None:
    """In its namespace, once it is committed."""
    await outbox.prepare()
    began, due = datetime.now(UTC), datetime(2100, 1, 1, 12, 0, 0, 5, tzinfo=UTC)
    due_us = round(due.timestamp()) * 10**6 + 5
    async with database.transaction() as connection:
        await outbox.submit_within(connection, [task("now"), task("then", due_us=due_us)])
    now, then = await outbox.find("now"), await outbox.find("then")
    assert now is not None and then is not None
    assert (now.id, now.name, now.stream, now.due) == ("now", "files:Remove", STREAM, None)
    assert then.due == due and now.created >= began
    assert await outbox.find("NOW") is None
    assert await Outbox(database, outbox._broker, "other").find("now") is None


async def test_overdue_rows_are_counted(
    outbox: Outbox, database: sql.Database, broker: Broker
) -> None:
    """Rows from an age on that were not handed over to this Redis."""
    async with database.transaction() as connection:
        await outbox.submit_within(connection, [task("a"), task("b")])
    await outbox.submit([task("handed")], ids_are_new=True)
    assert await outbox.overdue(60) == (0, 0.0)
    old = datetime.now(UTC) - timedelta(seconds=100)
    async with database.transaction() as connection:
        await connection.execute(
            sa.update(outbox_tasks).where(outbox_tasks.c.task_id != "b").values(created_at=old)
        )
    number, age = await outbox.overdue(60)
    assert number == 1 and 100 <= age < 160
    await broker.client.flushall()
    assert (await outbox.overdue(60))[0] == 2


async def test_many_writers_succeed(outbox: Outbox, database: sql.Database, broker: Broker) -> None:
    """Submits, closings, reviews and transactions at once leave no row."""
    await outbox.prepare()

    async def one(n: int) -> None:
        await outbox.submit([task(f"own-{n}-{i}") for i in range(3)], ids_are_new=n % 2 == 0)
        shared = random.Random(n).sample(range(50), 10)
        await outbox.submit([task(f"shared-{i}") for i in shared], ids_are_new=False)
        await outbox.close([f"shared-{i}" for i in reversed(shared)])
        await outbox.close([f"own-{n}-{i}" for i in range(4)])
        async with database.transaction() as connection:
            await outbox.submit_within(connection, [task(f"given-{n}")])
        await outbox.review(await epoch_of(broker))
        await outbox.close([f"given-{n}"])

    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.gather(*(one(n) for n in range(12)))
    assert await epochs(database) == {}


async def test_a_deadlock_is_repeated(mariadb_url: str, broker: Broker) -> None:
    """MariaDB gives up our transaction for one that has done more."""
    await sql.upgrade(mariadb_url)
    database = sql.Database(mariadb_url)
    outbox = Outbox(database, broker, "test")
    await outbox.submit([task(id) for id in ("a", *(f"b{n}" for n in range(50)))], ids_are_new=True)
    change = "UPDATE outbox_tasks SET stream = 'other' WHERE namespace = 'test' AND task_id "
    async with database.engine.connect() as other, database.engine.connect() as watching:
        await other.exec_driver_sql(f"{change} >= 'b'")
        ours = asyncio.create_task(outbox.close(["a", "b0"]))
        waits = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        async with asyncio.timeout(WAIT_SECONDS):
            while not (await watching.exec_driver_sql(waits)).scalar():  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # the server looks again no more often
        await other.exec_driver_sql(f"{change} = 'a'")
        await other.commit()
        assert await ours == 2
    await database.close()
