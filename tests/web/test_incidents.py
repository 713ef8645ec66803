"""A server refuses or is silent: pages show what can be read, and begin with what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from doors import Door
from servers import RedisServer
from waits import until
from web.conftest import Fixed, asking, principal
from web.test_scale import reading_paths
from web_tasks import Mail, Report

from nonet import Nonet
from nonet.base.errors import ServerUnreachableError
from nonet.config.web_settings import WebSettings
from nonet.stores.sql import database as sql
from nonet.web.app import create_app

pytestmark = pytest.mark.server


def cannot_save(client: redis.Redis) -> None:
    """Its disk is full: the snapshot fails, so Redis stops to write."""
    folder = Path(client.config_get("dir")["dir"])
    (folder / "dump.rdb").unlink(missing_ok=True)
    (folder / "dump.rdb" / "in the way").mkdir(parents=True)
    client.config_set("save", "1 1")
    client.bgsave()


def lost_its_replicas(client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", 1)


def is_full(client: redis.Redis) -> None:
    client.config_set("maxmemory", 1)


def became_a_replica(client: redis.Redis) -> None:
    client.replicaof("127.0.0.1", 1)


# How it breaks, what the first finding says, and its hint.
INCIDENTS: dict[str, tuple[Callable[[redis.Redis], None], str, str]] = {
    "MISCONF": (cannot_save, "MISCONF", "check the disk and the log of Redis"),
    "NOREPLICAS": (lost_its_replicas, "NOREPLICAS", "start the replicas of Redis again"),
    "OOM": (is_full, "Redis refuses submits", "raise maxmemory"),
    "READONLY": (became_a_replica, "READONLY", "point NONET_REDIS_URL to the master"),
}


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis of its own, which may break."""
    with RedisServer() as server:
        yield server


def opened_on(redis_url: str, state_dir: Path, **settings: Any) -> Nonet:
    return Nonet.from_settings(
        redis_url=redis_url, namespace="test", state_dir=state_dir, tasks=("web_tasks",), **settings
    )


@pytest.fixture
async def nonet(own_redis: RedisServer, tmp_path: Path) -> AsyncIterator[Nonet]:
    """A namespace with some tasks, a pause and a lock; no scheduler leads."""
    async with opened_on(own_redis.url, tmp_path) as opened:
        await opened.submit_many([Mail() for _ in range(3)])
        await opened.submit(Report(7), id="known")
        await opened.stores.controls.pause(["task:web_tasks:Mail"], "ann@host 1")
        await opened.broker.fetch("small-a", "small", 1)
        yield opened


@pytest.mark.parametrize("words", INCIDENTS)
async def test_what_can_be_read_is_shown(own_redis: RedisServer, nonet: Nonet, words: str) -> None:
    """Every page and every read of the API answers as before; the cause is named first."""
    breaks, problem, hint = INCIDENTS[words]
    app = create_app(nonet, WebSettings.plain(), Fixed(principal()))
    async with asking(app) as client:
        before = {path: (await client.get(path)).status_code for path in reading_paths()}
        with own_redis.client() as admin:
            breaks(admin)
            await until(lambda: _is_refused(admin), f"Redis answers {words}")
        app.state.site.shared.forget()
        after = {path: (await client.get(path)).status_code for path in reading_paths()}
        assert after == before
        app.state.site.shared.forget()
        first = (await client.get("/api/v1/overview")).json()["findings"][0]
    assert problem in first["problem"] and hint in first["hint"], first
    problems = (await nonet.doctor(wait=0)).problems
    assert any(hint in item.hint for item in problems), problems


def _is_refused(admin: redis.Redis) -> bool:
    try:
        admin.set("x", "y")
    except redis.RedisError:
        return True
    return False


async def test_a_script_that_runs_on_is_named(own_redis: RedisServer, nonet: Nonet) -> None:
    """Redis serves nothing: commands and the page say at once why, and what to type."""
    stores, app = nonet.stores, create_app(nonet, WebSettings.plain(), Fixed(principal()))
    reads = (nonet.overview, nonet.doctor, stores.results.workers, stores.measures.figures)
    with own_redis.client() as admin, own_redis.client(socket_timeout=None) as other:
        admin.config_set("busy-reply-threshold", 1)
        endless = asyncio.create_task(asyncio.to_thread(_run_on, other))
        await until(lambda: _is_refused(admin), "Redis answers BUSY")
        for read in reads:
            with pytest.raises(ServerUnreachableError, match="Type redis-cli SCRIPT KILL"):
                await read()
        async with asking(app) as client:
            answer = await client.get("/")
        admin.script_kill()
        await endless
    assert answer.status_code == 503 and "Type redis-cli SCRIPT KILL" in answer.text
    assert await nonet.stores.results.workers() == []


def _run_on(other: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="killed"):
        other.eval("while true do end", 0)


@pytest.mark.parametrize("was_current", [True, False])
async def test_a_frozen_database_hides_nothing_of_redis(
    redis_url: str,
    mariadb_behind_a_door: tuple[Door, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    was_current: bool,
) -> None:
    """The overview begins with it, also while the page remembers that SQL was well."""
    monkeypatch.setattr("nonet.operate.overview._SQL_SECONDS", 1.0)
    door, db_url = mariadb_behind_a_door
    await sql.upgrade(db_url)
    async with opened_on(redis_url, tmp_path, db_url=db_url) as nonet:
        await nonet.submit(Mail())
        app = create_app(nonet, WebSettings.plain(), Fixed(principal()))
        async with asking(app) as client:
            await client.get("/dead-letters")  # it connects
            if was_current:
                await app.state.site.shared.read(("sql",), 0.0, _current)
            door.freeze()
            found = (await client.get("/api/v1/overview")).json()
            page = (await client.get("/")).text
            queues = (await client.get("/api/v1/queues")).json()
        door.thaw()
    assert "does not answer within 1 s" in found["findings"][0]["problem"]
    assert found["queued"] == 1 and queues["items"] and "does not answer within 1 s" in page


async def _current() -> str:
    return "current"
