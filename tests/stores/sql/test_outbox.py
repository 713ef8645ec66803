"""The rows of durable tasks, on a real Redis and on SQLite and MariaDB."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from servers import RedisServer
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session
from waits import WAIT_SECONDS

from nonet.base.errors import ConfigurationError, LimitImpossible, ServerUnreachableError
from nonet.stores.queue.broker import Broker, Presence
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql import database as sql
from nonet.stores.sql.outbox import Outbox, _insertion, outbox_tasks
from nonet.tasks.locks import RateLimiter, encode_locks

STREAM = "normal:small"
UNREACHABLE = "redis://127.0.0.1:1"


@pytest.fixture
def outbox(database: sql.Database, broker: Broker) -> Outbox:
    return Outbox(database, broker, "test")


@pytest.fixture
async def apart(database: sql.Database) -> AsyncIterator[Outbox]:
    """An outbox whose Redis does not answer."""
    ttls = {"lock_ttl": 30.0, "lease": 45.0, "result_ttl": 60.0, "dedup_ttl": 60.0}
    away = Broker(UNREACHABLE, "test", **ttls)
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


# ---- submitting ---------------------------------------------------------------------------------


async def test_row_is_kept_and_marked(
    outbox: Outbox, database: sql.Database, broker: Broker
) -> None:
    """A submitted task is in Redis, and its row says in which epoch; closing deletes the row."""
    assert await outbox.submit([task()], ids_are_new=False) == [True]
    epoch = await epoch_of(broker)
    assert await epochs(database) == {"task-1": epoch}
    assert await state_of(broker, "task-1") is Presence.LIVE
    assert await waiting(outbox, epoch) == []
    assert await outbox.close(["task-1", "never-submitted"]) == 1
    assert await outbox.count() == 0


async def test_everything_comes_back_as_submitted(apart: Outbox) -> None:
    """What the relay hands over is what was submitted: bytes, locks, due time and stream."""
    locks = encode_locks([RateLimiter("job", "a|b\n\udce9")] * 1)
    whole = task(locks=locks, due_us=1_800_000_000_123_456, envelope=bytes(range(256)) * 4096)
    await apart.submit([whole], ids_are_new=True)
    assert await apart.due(1, again=False, skip=0) == [whole]


async def test_known_id_is_the_same_task(outbox: Outbox, broker: Broker) -> None:
    """Submitted twice, it has one row and is queued once."""
    assert await outbox.submit([task()], ids_are_new=False) == [True]
    assert await outbox.submit([task(envelope=b"other")], ids_are_new=False) == [False]
    assert await outbox.count() == 1
    assert await run_all(broker) == ["task-1"]


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


async def test_accepted_while_redis_is_away(
    apart: Outbox, outbox: Outbox, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The row is enough; the handle says new, a warning says later, and the relay finds it."""
    assert await apart.submit([task()], ids_are_new=False) == [True]
    assert await apart.submit([task()], ids_are_new=False) == [False]
    assert "stored 1 durable tasks in SQL, the relay submits them later" in caplog.text
    (found,) = await outbox.due(await epoch_of(broker), again=False, skip=0)
    assert await outbox.hand_over([found], await epoch_of(broker)) == [True]
    assert await run_all(broker) == ["task-1"]


async def test_accepted_while_redis_is_full(outbox: Outbox, redis_server: RedisServer) -> None:
    """A Redis that takes nothing more does not refuse a durable task."""
    with redis_server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            assert await outbox.submit([task()], ids_are_new=True) == [True]
        finally:
            client.config_set("maxmemory", 0)
    assert await waiting(outbox, 1) == ["task-1"]


async def test_nothing_is_submitted_while_sql_is_away(broker: Broker) -> None:
    """The error says that SQL does not answer, and Redis knows nothing of the task."""
    database = sql.Database("mysql://nonet@127.0.0.1:1/nonet")
    with pytest.raises(ServerUnreachableError, match=r"mysql://nonet@127\.0\.0\.1:1/nonet"):
        await Outbox(database, broker, "test").submit([task()], ids_are_new=True)
    assert await state_of(broker, "task-1") is Presence.UNKNOWN
    await database.close()


async def test_impossible_task_leaves_no_row(outbox: Outbox) -> None:
    """What a limit can never let run is refused, as without a row; others keep their rows."""
    rate = RateLimiter("job", "a", limit=1, window_seconds=60, n_items=5)
    locks = encode_locks([rate])
    await outbox.submit([task("fine")], ids_are_new=False)
    with pytest.raises(LimitImpossible, match="task bad was not submitted"):
        await outbox.submit([task("fine"), task("bad", locks=locks)], ids_are_new=False)
    assert await outbox.count() == 1


async def test_refusal_leaves_what_was_accepted_before(
    outbox: Outbox, database: sql.Database
) -> None:
    """A row that came with a commit stays, although submitting its id now is refused."""
    rate = RateLimiter("job", "a", limit=1, window_seconds=60, n_items=5)
    impossible = task(locks=encode_locks([rate]))
    async with database.transaction() as connection:
        await outbox.submit_within(connection, [impossible])
    with pytest.raises(LimitImpossible):
        await outbox.submit([impossible], ids_are_new=False)
    assert await outbox.count() == 1


async def test_faster_relay_does_not_make_an_id_known(outbox: Outbox, broker: Broker) -> None:
    """A relay may find the row before its submitter asks Redis: the task is new all the same."""
    await broker.submit([task()])
    assert await outbox.submit([task()], ids_are_new=True) == [True]


async def test_many_are_submitted_in_pages(outbox: Outbox, broker: Broker) -> None:
    """More than a page of tasks: each has its row, and each runs."""
    many = [task(f"task-{n}") for n in range(2 * sql.PAGE_ROWS + 1)]
    assert await outbox.submit(many, ids_are_new=True) == [True] * len(many)
    assert await outbox.count() == len(many)
    assert sorted(await run_all(broker)) == sorted(item.id for item in many)


# ---- in the caller's transaction ----------------------------------------------------------------


async def test_row_comes_with_the_commit(
    outbox: Outbox, database: sql.Database, broker: Broker
) -> None:
    """Before the commit nobody sees the task, Redis is not asked, a roll-back leaves none."""
    await outbox.prepare()
    async with database.engine.connect() as connection:
        await outbox.submit_within(connection, [task("taken-back")])
        await connection.rollback()
        await outbox.submit_within(connection, [task("kept")])
        assert await waiting(outbox, 1) == []
        await connection.commit()
    assert await waiting(outbox, 1) == ["kept"]
    assert await state_of(broker, "kept") is Presence.UNKNOWN


async def test_session_is_taken_too(outbox: Outbox, database: sql.Database) -> None:
    """An AsyncSession commits or takes back the row like the caller's own."""
    await outbox.prepare()
    async with async_sessionmaker(database.engine)() as session:
        await outbox.submit_within(session, [task("kept")])
        await session.commit()
        await outbox.submit_within(session, [task("taken-back")])
    assert await waiting(outbox, 1) == ["kept"]


async def test_known_id_does_not_abort_the_transaction(
    outbox: Outbox, database: sql.Database, broker: Broker
) -> None:
    """The caller goes on; the relay asks Redis again, because the row may be a left-over."""
    await outbox.submit([task()], ids_are_new=True)
    async with database.transaction() as connection:
        await outbox.submit_within(connection, [task(envelope=b"other"), task("task-2")])
    epoch = await epoch_of(broker)
    found = await outbox.due(epoch, again=False, skip=0)
    assert sorted(item.id for item in found) == ["task-1", "task-2"]
    assert task() in found  # as it was submitted first
    assert sorted(await outbox.hand_over(found, epoch)) == [False, True]
    assert await waiting(outbox, epoch) == []


@pytest.mark.parametrize("wrong", [object(), Session(), "transaction", sql.Database])
async def test_something_else_is_refused(outbox: Outbox, wrong: object) -> None:
    """What is no asynchronous connection or session is named, and what is needed."""
    with pytest.raises(TypeError, match=r"pass an AsyncConnection or AsyncSession .*, not \w+"):
        await outbox.submit_within(wrong, [task()])


async def test_session_without_a_database_is_refused(outbox: Outbox) -> None:
    """A session that is bound to nothing has no transaction to join."""
    with pytest.raises(ConfigurationError, match="transaction: the session"):
        await outbox.submit_within(AsyncSession(), [task()])


async def test_transaction_on_another_database_is_refused(outbox: Outbox, tmp_path: Path) -> None:
    """Its rows would never be found; both databases are named, without passwords."""
    other = sql.open_engine(f"sqlite:///{tmp_path}/other.db")
    async with other.connect() as connection:
        with pytest.raises(ConfigurationError, match=r"on the database .*other\.db.*NONET_DB_URL"):
            await outbox.submit_within(connection, [task()])
    await other.dispose()


def test_statement_compiles_for_postgresql() -> None:
    """No server of this kind is here: the statement is at least what its manual says."""
    dialect = postgresql.dialect()
    text = str(_insertion(dialect).compile(dialect=dialect))
    epoch = "CASE WHEN (outbox_tasks.epoch > 0) THEN NULL ELSE outbox_tasks.epoch END"
    assert text.endswith(f"ON CONFLICT (namespace, task_id) DO UPDATE SET epoch = {epoch}")


# ---- the relay's side ---------------------------------------------------------------------------


async def test_new_epoch_gets_all_rows_again(
    outbox: Outbox, broker: Broker, redis_server: RedisServer
) -> None:
    """After a FLUSHALL every row is due, oldest first, and runs; then none is."""
    many = [task(f"task-{n}") for n in (3, 1, 4, 2, 5)]
    await outbox.submit(many[:3], ids_are_new=True)
    await outbox.submit(many[3:], ids_are_new=True)
    with redis_server.client() as client:
        client.flushall()
    epoch = await epoch_of(broker)
    found = await outbox.due(epoch, again=True, skip=0)
    assert found == many
    assert await outbox.due(epoch, again=True, skip=3) == many[3:]
    await outbox.hand_over(found, epoch)
    assert await waiting(outbox, epoch) == []
    assert len(await run_all(broker)) == 5


async def test_mark_is_of_the_epoch_before_the_submission(
    outbox: Outbox, broker: Broker, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis emptied right after it took the task: the row is due again."""
    submit = broker.submit

    async def then_flush(submissions: Sequence[Submission]) -> list[bool]:
        made = await submit(submissions)
        with redis_server.client() as client:
            client.flushall()
        return made

    monkeypatch.setattr(broker, "submit", then_flush)
    await outbox.submit([task()], ids_are_new=True)
    assert await waiting(outbox, await epoch_of(broker)) == ["task-1"]


async def test_review_deletes_rows_of_what_has_ended(
    outbox: Outbox, broker: Broker, database: sql.Database
) -> None:
    """A worker that died before it closed the rows: those that ended go, those that live stay."""
    ended = [task(f"ended-{n}") for n in range(sql.PAGE_ROWS + 1)]
    await outbox.submit(ended, ids_are_new=True)
    await run_all(broker)
    await outbox.submit([task("lives")], ids_are_new=True)
    # Clocks are coarse, and several processes write: rows of one instant fill more than a page.
    async with database.transaction() as connection:
        await connection.execute(sa.update(outbox_tasks).values(created_at=datetime.now(UTC)))
    assert await outbox.review(await epoch_of(broker)) == (len(ended), 0)
    assert await outbox.count() == 1


async def test_review_finds_what_redis_has_lost(
    outbox: Outbox, broker: Broker, redis_server: RedisServer
) -> None:
    """Data without their last moments, unnoticed: the task is unknown, and handed over again."""
    await outbox.submit([task("lost"), task("lives")], ids_are_new=True)
    epoch = await epoch_of(broker)
    with redis_server.client() as client:
        client.delete("{test}:t:lost", "{test}:b:lost")
    assert await outbox.review(epoch) == (0, 1)
    assert await waiting(outbox, epoch) == ["lost"]


async def test_review_believes_only_the_epoch_it_is_about(
    outbox: Outbox, broker: Broker, redis_server: RedisServer, database: sql.Database
) -> None:
    """Redis emptied in the middle of a review: what it then does not know says nothing."""
    await outbox.submit([task()], ids_are_new=True)
    before = await epoch_of(broker)
    with redis_server.client() as client:
        client.flushall()
    assert await outbox.review(before) == (0, 0)
    assert await epochs(database) == {"task-1": before}
    assert await waiting(outbox, await epoch_of(broker)) == ["task-1"]


async def test_row_tells_of_its_task(outbox: Outbox, database: sql.Database) -> None:
    """What SQL knows is found by id, in its namespace, once it is committed."""
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
    outbox: Outbox, database: sql.Database, redis_server: RedisServer
) -> None:
    """What is not handed over counts from an age on; what was handed over does not, until Redis
    is emptied."""
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
    with redis_server.client() as client:
        client.flushall()
    assert (await outbox.overdue(60))[0] == 2


async def test_nothing_makes_a_sqlite_file_but_a_submission(tmp_path: Path, broker: Broker) -> None:
    """Looking for durable tasks, or closing rows, leaves no file behind."""
    database = sql.Database(f"sqlite:///{tmp_path}/state/nonet.db")
    outbox = Outbox(database, broker, "test")
    assert await waiting(outbox, 1) == []
    assert (await outbox.review(1), await outbox.close(["x"]), await outbox.count()) == (
        (0, 0),
        0,
        0,
    )
    assert (await outbox.find("x"), await outbox.overdue(0)) == (None, (0, 0.0))
    assert os.listdir(tmp_path) == []
    await outbox.submit([task()], ids_are_new=True)
    assert await outbox.count() == 1
    await database.close()


async def test_writers_do_not_get_in_each_others_way(
    outbox: Outbox, database: sql.Database, broker: Broker
) -> None:
    """Submits, closings, reviews and transactions at the same time: none fails, no row is left."""
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
        await asyncio.gather(*(one(n) for n in range(40)))
    assert await epochs(database) == {}


async def test_deadlock_is_no_failure(mariadb_url: str, broker: Broker) -> None:
    """MariaDB gives our transaction up for one that has done more: we repeat it."""
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


async def test_relay_finds_its_rows_by_the_index(database: sql.Database, outbox: Outbox) -> None:
    """Thousands of open tasks do not cost the relay a look at each of them, once a second."""
    await outbox.submit([task()], ids_are_new=True)
    explain = "EXPLAIN QUERY PLAN" if database.engine.dialect.name == "sqlite" else "EXPLAIN"
    async with database.transaction() as connection:
        plan = await connection.exec_driver_sql(
            f"{explain} SELECT task_id FROM outbox_tasks WHERE namespace = 'test' "
            "AND epoch IS NULL ORDER BY epoch, created_at, task_id LIMIT 200"
        )
        assert "ix_outbox_tasks_epoch" in str(plan.all())
