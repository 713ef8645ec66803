"""Schedules that programs make: what is stored, what is refused, and what another put changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

import nonet
from nonet import (
    BaseTask,
    CatchUp,
    ConfigurationError,
    ConflictError,
    CronSchedule,
    IntervalSecondsSchedule,
    InvalidArgumentsError,
    Nonet,
    NotFoundError,
    RRuleSchedule,
    TaskScheduleBase,
)
from nonet.base.errors import ServerUnreachableError
from nonet.config.settings import Settings, plain_settings
from nonet.stores.namespace.periodic import Change
from nonet.stores.sql import database as sql
from nonet.stores.sql.schedules import schedules

pytestmark = pytest.mark.server

KEY = "k1:" + "a2V5" * 10 + "a2U="
MORNING = CronSchedule("0 8 * * *", "Europe/Zurich")
TENS = IntervalSecondsSchedule(10)


class Digest(BaseTask):
    user: int

    async def execute(self) -> None: ...


class Sealed(BaseTask):
    token: SecretStr
    encrypted = True

    async def execute(self) -> None: ...


class Own(TaskScheduleBase):
    def next_occurrence(self, after: Any = None) -> None: ...


def settings_of(redis_url: str, database: str, **more: Any) -> Settings:
    return plain_settings(
        redis_url=redis_url,
        namespace="test",
        db_url=database,
        tasks=(__name__,),
        encryption_keys=KEY,
        signing_keys="s1:" + "c2lnbmluZy1rZXk" * 4,
        **more,
    )


@asynccontextmanager
async def opened(redis_url: str, database: str, **more: Any) -> AsyncIterator[Nonet]:
    async with Nonet(settings_of(redis_url, database, **more)) as app:
        yield app


@pytest.fixture(params=["sqlite", "mariadb", "postgres"])
async def database(request: pytest.FixtureRequest) -> str:
    """A database with its tables."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    await sql.upgrade(url)
    return url


@pytest.fixture
async def app(redis_url: str, sqlite_url: str) -> AsyncIterator[Nonet]:
    async with opened(redis_url, sqlite_url) as made:
        yield made


async def test_a_schedule_is_put_changed_and_removed(redis_url: str, database: str) -> None:
    """Two puts at once make one schedule; the same put changes nothing; any change is seen."""
    async with opened(redis_url, database) as app, opened(redis_url, database) as other:
        rows = await app.stores.schedules()
        assert await rows.revision() == ""
        both = (one.schedules.put("d-7", Digest(7), MORNING) for one in (app, other))
        assert sorted(await asyncio.gather(*both)) == ["created", "unchanged"]
        revision = await rows.revision()
        assert await app.schedules.put("d-7", Digest(7), MORNING) == "unchanged"
        assert await rows.revision() == revision
        answers = [
            await app.schedules.put("d-7", Digest(8), MORNING),
            await app.schedules.put("d-7", Digest(8), TENS),
            await app.schedules.put("d-7", Digest(8), TENS, tenant="acme"),
            await app.schedules.put(
                "d-7", Digest(8), TENS, tenant="acme", catch_up=CatchUp.ALL, misfire_grace=5
            ),
            await app.schedules.put("a", Digest(8), RRuleSchedule("FREQ=DAILY")),
        ]
        assert answers == ["changed", "changed", "changed", "changed", "created"]
        assert await rows.revision() != revision
        found = await other.schedules.list()
        assert [(item.id, item.tenant) for item in found] == [("a", ""), ("d-7", "acme")]
        assert found[1].schedule == "IntervalSecondsSchedule(10)"
        assert (found[1].catch_up, found[1].misfire_grace) == ("all", 5)
        assert [await app.schedules.remove("d-7") for _ in range(2)] == [True, False]
        assert [item.id for item in await app.schedules.list()] == ["a"]


async def test_a_schedule_is_paused_and_resumed(app: Nonet) -> None:
    """Both are safe to repeat, and need an existing schedule."""
    await app.schedules.put("d-7", Digest(7), TENS)
    assert [await app.schedules.pause("d-7", "away") for _ in range(2)] == [True, False]
    assert [item.paused for item in await app.schedules.list()] == [True]
    assert [await app.schedules.resume("d-7") for _ in range(2)] == [True, False]
    with pytest.raises(NotFoundError, match="no schedule d-8 in the database"):
        await app.schedules.pause("d-8")


def test_programs_without_an_event_loop_have_the_same(redis_url: str, sqlite_url: str) -> None:
    """`SyncNonet.schedules` has the methods of `Nonet.schedules`."""
    with nonet.SyncNonet(settings_of(redis_url, sqlite_url)) as app:
        answers = [app.schedules.put("d-7", Digest(7), TENS) for _ in range(2)]
        assert answers == ["created", "unchanged"]
        assert (app.schedules.pause("d-7"), app.schedules.resume("d-7")) == (True, True)
        assert [item.id for item in app.schedules.list()] == ["d-7"]
        assert app.schedules.remove("d-7")


async def test_arguments_are_signed_and_encrypted_as_those_of_tasks(
    redis_url: str, app: Nonet, sqlite_url: str
) -> None:
    """Secrets are in no column, a changed message is refused, and equal secrets are recognised."""
    sealed = Sealed(SecretStr("geheim"))
    await app.schedules.put("s", sealed, TENS)
    assert await app.schedules.put("s", Sealed(SecretStr("geheim")), TENS) == "unchanged"
    (item,) = await app.schedules.list()
    assert b"geheim" not in item.envelope and "geheim" not in repr(item)
    engine = (await app.stores.schedules())._database
    async with engine.transaction() as connection:
        broken = item.envelope[:-1] + bytes([item.envelope[-1] ^ 1])
        await connection.execute(sa.update(schedules).values(envelope=broken))
    with pytest.raises(nonet.MalformedMessageError):
        await app.schedules.content("s")
    assert await app.schedules.put("s", sealed, TENS) == "changed"
    assert (await app.schedules.content("s"))[1].name.endswith(":Sealed")


async def test_what_cannot_be_stored_is_refused(app: Nonet, redis_url: str, tmp_path: Path) -> None:
    """The error names the argument, or the setting that is missing."""
    with pytest.raises(InvalidArgumentsError, match="only cron, RRULE and intervals are stored"):
        await app.schedules.put("a", Digest(7), Own())
    with pytest.raises(InvalidArgumentsError, match="printable ASCII"):
        await app.schedules.put("a b", Digest(7), TENS)
    with pytest.raises(TypeError, match="Digest is a class"):
        await app.schedules.put("a", Digest, TENS)  # type: ignore[arg-type]
    assert await app.schedules.list() == []
    async with opened(redis_url, "", state_dir=tmp_path / "none") as without:
        for call in (without.schedules.put("a", Digest(7), TENS), without.schedules.list()):
            with pytest.raises(ConfigurationError, match="set NONET_DB_URL"):
                await call


async def test_a_name_of_the_configuration_is_refused(app: Nonet) -> None:
    """The error names where the other entry is; its own entry does not count."""
    term, task = await app.stores.leadership.lead("a", 300, "{}") or "", "test_schedules:Digest"
    for origin in ("common.periodic-tasks.Digest.0", "class", "database"):
        change = Change("new", f"{task}||all", task, shown={"origin": origin})
        await app.stores.periodic.plan(term, [change])
        put = app.schedules.put("all", Digest(7), TENS)
        if origin == "database":
            assert await put == "created"
        else:
            where = "the class itself" if origin == "class" else origin
            with pytest.raises(ConflictError, match=f"{where} has an entry named 'all'"):
                await put


async def test_a_database_that_does_not_answer_refuses_a_put(
    redis_url: str, mariadb_behind_a_door: tuple[Any, str]
) -> None:
    """The caller can put it again."""
    door, url = mariadb_behind_a_door
    await sql.upgrade(url)
    async with opened(redis_url, url) as app:
        await door.close()
        with pytest.raises(ServerUnreachableError):
            await app.schedules.put("a", Digest(7), TENS)
        await door.open()
        assert await app.schedules.put("a", Digest(7), TENS) == "created"
