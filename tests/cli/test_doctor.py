"""``task-run doctor``, ``status`` and ``explain`` where SQL or the scheduler is not in order."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from cli.terminal import NAMESPACE, TaskRun

from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.publication import Publication
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql.database import upgrade
from nonet.stores.sql.migrating import VERSION_TABLE
from nonet.stores.sql.outbox import outbox_tasks


@pytest.fixture
def url(task_run: TaskRun, mariadb_url: str) -> str:
    """An empty MariaDB that the commands use."""
    task_run.environment["NONET_DB_URL"] = mariadb_url
    return mariadb_url


async def commit(task_run: TaskRun, url: str, age_seconds: float) -> None:
    """Leave one durable task in SQL, as a committed transaction does."""
    kept = Submission("kept", "errands:Kept", "normal:small", b"envelope")
    async with task_run.app() as app:
        outbox = await app.stores.outbox()
        async with outbox._database.transaction() as connection:
            await outbox.submit_within(connection, [kept])
            created = datetime.now(UTC) - timedelta(seconds=age_seconds)
            await connection.execute(sa.update(outbox_tasks).values(created_at=created))


async def execute(url: str, statement: str) -> None:
    engine = sa.ext.asyncio.create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(sa.text(statement))
    await engine.dispose()


async def test_missing_tables_are_a_problem(task_run: TaskRun, url: str) -> None:
    """The hint makes them; one that was dropped later is a problem, too."""
    ended = await task_run("doctor", "--wait", "0", "--json")
    (problem,) = ended.json["problems"]
    assert (ended.code, problem["kind"], problem["what"]) == (1, "sql", "tables")
    assert problem["command"] == "task-run db upgrade"
    assert (await task_run(*problem["command"].split()[1:])).code == 0
    assert (await task_run("doctor", "--wait", "0")).code == 0
    for table in ("dlq_tasks", "outbox_tasks"):
        await execute(url, f"RENAME TABLE {table} TO kept")
        ended = await task_run("doctor", "--wait", "0", "--json")
        assert ended.code == 1
        assert [problem["kind"] for problem in ended.json["problems"]] == ["sql"]
        await execute(url, f"RENAME TABLE kept TO {table}")


async def test_tables_of_a_newer_release_are_a_hint(task_run: TaskRun, url: str) -> None:
    """After a roll-back `db check` is 1, and `db upgrade` refuses."""
    await upgrade(url)
    await execute(url, f"UPDATE {VERSION_TABLE} SET version_num = 'newer'")
    ended = await task_run("doctor", "--wait", "0", "--json")
    (told,) = (hint for hint in ended.json["hints"] if hint["kind"] == "sql")
    assert (ended.code, ended.json["problems"]) == (0, []) and "roll-back" in told["hint"]
    checked, refused = await task_run("db", "check"), await task_run("db", "upgrade")
    assert (checked.code, refused.code) == (1, 2) and "roll-back" in checked.err


async def test_missing_tables_of_sqlite_are_no_problem(task_run: TaskRun) -> None:
    """They are made when they are needed."""
    task_run.environment["NONET_DB_URL"] = f"sqlite:///{task_run.home}/unused.db"
    assert (await task_run("doctor", "--wait", "0")).code == 0


async def test_a_durable_task_that_stays_in_sql_is_a_problem(task_run: TaskRun, url: str) -> None:
    """Without a scheduler it becomes a problem with its age; `status` and `explain` find it."""
    await upgrade(url)
    await commit(task_run, url, age_seconds=0)
    assert (await task_run("doctor", "--wait", "0")).code == 0
    await commit(task_run, url, age_seconds=60)
    ended = await task_run("doctor", "--wait", "0", "--json")
    (problem,) = ended.json["problems"]
    assert ended.code == 1 and problem["command"] == "task-scheduler"
    assert re.match(r"1 durable task is still not in Redis, \d", problem["problem"])
    status = (await task_run("status", "kept", "--json")).json
    assert (status["state"], status["name"]) == ("delayed", "errands:Kept")
    explained = await task_run("explain", "kept")
    assert explained.code == 0 and "no scheduler leads" in explained.out
    for command in ("status", "explain"):
        assert (await task_run(command, "never-submitted")).code == 4


async def test_failures_of_the_scheduler_are_problems(task_run: TaskRun) -> None:
    """They name the entry that cannot be fired, or the configuration that is refused."""
    async with task_run.app() as app:
        info = {"broken": {"errands:Nightly||default": "ValueError: no"}, "remembers": "process"}
        term = await Leadership(app.broker, NAMESPACE).lead("a", 60, json.dumps(info)) or ""
        await Publication(app.broker.client, NAMESPACE).report(term, "c.yaml:1: bad")
        ended = await task_run("doctor", "--wait", "0", "--json")
    assert ended.code == 1
    assert [(problem["what"], problem["command"]) for problem in ended.json["problems"]] == [
        ("errands:Nightly||default", "task-run schedules show errands:Nightly"),
        ("configuration", "task-run config status"),
    ]
    assert any("NONET_DB_URL" in hint["hint"] for hint in ended.json["hints"])
