"""Durable tasks of sync programs are part of the caller's transaction."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from daemons import _clean_environment
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sync.conftest import settings_of
from sync.sync_tasks import Add, Kept
from waits import WAIT_SECONDS

import nonet
from nonet import ConfigurationError, InvalidArgumentsError, NotFoundError, ServerUnreachableError
from nonet.stores.sql import database as sql
from nonet.stores.sql.outbox import outbox_tasks
from nonet.stores.sql.sync_database import SyncDatabase

pytestmark = pytest.mark.server

Environment = dict[str, str]


@pytest.fixture(params=["sqlite", "mariadb", "postgres"])
async def database(request: pytest.FixtureRequest, environment: Environment) -> str:
    """A database of each kind with the tables."""
    if request.param != "sqlite":
        environment["NONET_DB_URL"] = request.getfixturevalue(f"{request.param}_url")
        await sql.upgrade(environment["NONET_DB_URL"])
    return environment["NONET_DB_URL"]


@pytest.fixture
def engine(database: str) -> Iterator[sa.Engine]:
    """An engine of the caller's own."""
    found: Any = SyncDatabase(database).engine
    yield found._engine
    found._engine.dispose()


def rows(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        found = connection.execute(sa.select(outbox_tasks.c.task_id))
        return sorted(row.task_id for row in found)


def test_a_task_is_part_of_a_transaction_of_sqlalchemy(
    engine: sa.Engine, app: nonet.SyncNonet
) -> None:
    """The task exists with its commit, and never after a rollback."""
    with engine.begin() as connection:
        handle = Kept(1).schedule_sync(id="committed", transaction=connection)
        if engine.dialect.name != "sqlite":  # others see nothing of it yet
            with pytest.raises(NotFoundError):
                handle.status()
    assert handle.status().blocker.startswith("kept in SQL")
    with pytest.raises(ZeroDivisionError), engine.begin() as connection:
        app.submit(Kept(1), id="rolled-back", transaction=connection)
        raise ZeroDivisionError
    assert rows(engine) == ["committed"]


def test_a_session_is_a_transaction(engine: sa.Engine, app: nonet.SyncNonet) -> None:
    """A ``Session``, and the scoped one that Flask programs have."""
    with Session(engine) as session:
        app.submit(Kept(1), id="a", transaction=session)
        session.commit()
        app.submit(Kept(1), id="b", transaction=session)
    scoped = scoped_session(sessionmaker(engine))
    tasks = [Kept(n).with_options(id=f"c{n}") for n in range(300)]
    assert len(app.submit_many(tasks, transaction=scoped)) == 300
    scoped.commit()
    scoped.remove()
    assert rows(engine) == sorted(["a", *(f"c{n}" for n in range(300))])


def test_a_durable_task_needs_no_transaction(engine: sa.Engine, app: nonet.SyncNonet) -> None:
    """A durable task is written first, and queued at once."""
    handle = Kept(1).schedule_sync(id="kept")
    again = Kept(1).schedule_sync(id="kept")
    assert (handle.created, again.created, handle.status().state) == (True, False, "queued")
    assert rows(engine) == ["kept"]
    assert app.cancel([handle]) == {"kept": "cancelled"}
    assert rows(engine) == []


def test_an_unsuitable_transaction_is_refused(environment: Environment, tmp_path: Path) -> None:
    """Of another database, of another kind, or for a class that is not durable."""
    other = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    with nonet.SyncNonet(settings_of(environment)) as app:
        with pytest.raises(TypeError, match=r"pass a Connection or Session .* not builtins\.str"):
            app.submit(Kept(1), transaction="x")
        with other.begin() as connection:
            with pytest.raises(ConfigurationError, match="it is on the database sqlite://"):
                app.submit(Kept(1), transaction=connection)
            with pytest.raises(InvalidArgumentsError, match="the class is not durable"):
                app.submit(Add(1), transaction=connection)
    other.dispose()


@pytest.mark.parametrize("scheme", ["sqlite", "postgresql", "mysql"])
def test_a_submission_fails_without_its_database(environment: Environment, scheme: str) -> None:
    """The submission fails, as nothing would keep the task."""
    hosts = {"sqlite": "//proc/no.db", "postgresql": "127.0.0.1:1/x", "mysql": "127.0.0.1:1/x"}
    environment["NONET_DB_URL"] = f"{scheme}://{hosts[scheme]}"
    app = nonet.SyncNonet(settings_of(environment))
    app.open()
    with pytest.raises((ServerUnreachableError, ConfigurationError), match=scheme):
        app.submit(Kept(1))
    app.close()


DJANGO = """
import json, os, sys
import django
from django.conf import settings
settings.configure(DATABASES={"default": json.loads(os.environ["DATABASE"])}, USE_TZ=True)
django.setup()
from django.db import connection, transaction
from sync.sync_tasks import Kept
import nonet

with nonet.SyncNonet.from_settings() as app:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE invoices (name VARCHAR(9))")
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO invoices VALUES ('a')")
        Kept(1).schedule_sync(id="committed", transaction=connection, delay=3600)
        tasks = [Kept(n).with_options(id=f"n{n}") for n in range(3)]
        app.submit_many(tasks, transaction=connection)
    try:
        with transaction.atomic():
            Kept(1).schedule_sync(id="rolled-back", transaction=connection)
            Kept(1).schedule_sync(id="committed", transaction=connection)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    print(app.status("committed").blocker[:11])
    print(app.cancel(["n0"])["n0"])
"""


@pytest.fixture(params=["sqlite", "postgres"])
async def of_django(request: pytest.FixtureRequest, environment: Environment) -> str:
    """A database, and what Django calls it: the other drivers of ours are not Django's."""
    url = sa.make_url(environment["NONET_DB_URL"])
    found = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database}
    if request.param == "postgres":
        environment["NONET_DB_URL"] = request.getfixturevalue("postgres_url")
        await sql.upgrade(environment["NONET_DB_URL"])
        url = sa.make_url(environment["NONET_DB_URL"])
        found = {"ENGINE": "django.db.backends.postgresql", "NAME": url.database}
        found |= {"HOST": url.host, "PORT": str(url.port), "USER": url.username}
    environment["DATABASE"] = json.dumps(found)
    return environment["NONET_DB_URL"]


def test_a_task_is_part_of_a_transaction_of_django(
    of_django: str, environment: Environment
) -> None:
    """The connection of Django is one, inside ``atomic()``."""
    done = subprocess.run(
        [sys.executable, "-c", DJANGO],
        env={**_clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["kept in SQL", "cancelled"]), (
        done.stderr
    )
    found: Any = SyncDatabase(of_django).engine
    engine: sa.Engine = found._engine
    assert rows(engine) == ["committed", "n1", "n2"]
    with engine.connect() as connection:
        query = sa.select(outbox_tasks).where(outbox_tasks.c.task_id == "committed")
        (row,) = connection.execute(query)
        assert connection.execute(sa.text("SELECT name FROM invoices")).all() == [("a",)]
    assert row.task_class == "sync_tasks:Kept"
    assert 3000 < row.due_us / 1e6 - row.created_at.timestamp() <= 3600
    engine.dispose()
