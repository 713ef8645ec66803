"""``task-run doctor``, ``status`` and ``explain`` where SQL or the scheduler is not in order."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from cli.terminal import NAMESPACE, TaskRun

from nonet import Nonet
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.publication import Publication
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql.database import VERSION_TABLE, upgrade
from nonet.stores.sql.outbox import outbox_tasks


@pytest.fixture
def url(task_run: TaskRun, mariadb_url: str) -> str:
    """An empty MariaDB that the commands use."""
    task_run.environment["NONET_DB_URL"] = mariadb_url
    return mariadb_url


async def commit(task_run: TaskRun, url: str, age_seconds: float) -> None:
    """Leave one durable task in SQL, as a transaction does that was committed."""
    kept = Submission("kept", "errands:Kept", "normal:small", b"envelope")
    options = {key.removeprefix("NONET_").lower(): v for key, v in task_run.environment.items()}
    chosen = {key: options[key] for key in ("redis_url", "namespace", "db_url")}
    async with Nonet.from_settings(**chosen) as app:
        outbox = await app.stores.outbox()
        async with outbox._database.transaction() as connection:
            await outbox.submit_within(connection, [kept])
            created = datetime.now(UTC) - timedelta(seconds=age_seconds)
            await connection.execute(sa.update(outbox_tasks).values(created_at=created))


async def test_tables_that_were_never_made(task_run: TaskRun, url: str) -> None:
    """A database server without our tables is a problem; the hint makes them, and it is gone."""
    ended = await task_run("doctor", "--wait", "0", "--json")
    (problem,) = ended.json["problems"]
    assert (ended.code, problem["kind"], problem["what"]) == (1, "sql", "tables")
    assert problem["hint"] == "task-run db upgrade"
    assert (await task_run(*problem["hint"].split()[1:])).code == 0
    assert (await task_run("doctor", "--wait", "0")).code == 0


async def test_tables_of_a_newer_release(task_run: TaskRun, url: str) -> None:
    """After a roll-back: a hint, no problem; `db check` is 1, and `db upgrade` refuses."""
    await upgrade(url)
    engine = sa.ext.asyncio.create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = 'newer'"))
    await engine.dispose()
    ended = await task_run("doctor", "--wait", "0", "--json")
    (told,) = (hint for hint in ended.json["hints"] if hint["kind"] == "sql")
    assert (ended.code, ended.json["problems"]) == (0, []) and "roll-back" in told["hint"]
    checked, refused = await task_run("db", "check"), await task_run("db", "upgrade")
    assert (checked.code, refused.code) == (1, 2) and "roll-back" in checked.err


@pytest.mark.parametrize("table", ["dlq_tasks", "outbox_tasks"])
async def test_a_table_that_was_dropped(task_run: TaskRun, url: str, table: str) -> None:
    """The version of the tables is no evidence that they are there."""
    await upgrade(url)
    engine = sa.ext.asyncio.create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(sa.text(f"DROP TABLE {table}"))
    await engine.dispose()
    ended = await task_run("doctor", "--wait", "0", "--json")
    assert ended.code == 1
    assert [problem["kind"] for problem in ended.json["problems"]] == ["sql"]


async def test_an_unused_sqlite_is_in_order(task_run: TaskRun) -> None:
    """Its tables are made when they are needed: their absence is no problem."""
    task_run.environment["NONET_DB_URL"] = f"sqlite:///{task_run.home}/unused.db"
    assert (await task_run("doctor", "--wait", "0")).code == 0


async def test_durable_task_that_nobody_hands_over(task_run: TaskRun, url: str) -> None:
    """Committed, and no scheduler leads: a problem once it is old; others see where the task is."""
    await upgrade(url)
    await commit(task_run, url, age_seconds=0)
    assert (await task_run("doctor", "--wait", "0")).code == 0
    await commit(task_run, url, age_seconds=60)
    ended = await task_run("doctor", "--wait", "0", "--json")
    (problem,) = ended.json["problems"]
    assert ended.code == 1 and problem["hint"].startswith("start task-scheduler")
    assert problem["problem"].startswith("1 durable task is still not in Redis, 6")
    status = (await task_run("status", "kept", "--json")).json
    assert (status["state"], status["name"]) == ("delayed", "errands:Kept")
    explained = await task_run("explain", "kept")
    assert explained.code == 0 and "no scheduler leads" in explained.out
    for command in ("status", "explain"):
        assert (await task_run(command, "never-submitted")).code == 4


async def test_a_scheduler_that_cannot_do_its_work(task_run: TaskRun) -> None:
    """An entry that cannot be fired and a configuration that is refused are problems, by name."""
    async with task_run.app() as app:
        info = {"broken": {"errands:Nightly||default": "ValueError: no"}, "remembers": "process"}
        term = await Leadership(app.broker, NAMESPACE).lead("a", 60, json.dumps(info)) or ""
        await Publication(app.broker.client, NAMESPACE).report(term, "c.yaml:1: bad")
        ended = await task_run("doctor", "--wait", "0", "--json")
    assert ended.code == 1
    assert [(problem["what"], problem["hint"]) for problem in ended.json["problems"]] == [
        ("errands:Nightly||default", "task-run schedules show errands:Nightly"),
        ("configuration", "task-run config status"),
    ]
    assert any("NONET_DB_URL" in hint["hint"] for hint in ended.json["hints"])
