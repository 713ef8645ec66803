"""Redis refuses to write: pages show what they can read, and the overview begins with the cause."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis
from servers import RedisServer
from waits import until
from web.conftest import Fixed, asking, principal
from web.test_scale import reading_paths
from web_tasks import Mail, Report

from nonet import Nonet
from nonet.config.web_settings import WebSettings
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


def became_a_replica(client: redis.Redis) -> None:
    client.replicaof("127.0.0.1", 1)


INCIDENTS: dict[str, tuple[Callable[[redis.Redis], None], str]] = {
    "MISCONF": (cannot_save, "check the disk and the log of Redis"),
    "NOREPLICAS": (lost_its_replicas, "start the replicas of Redis again"),
    "READONLY": (became_a_replica, "point NONET_REDIS_URL to the master"),
}


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis of its own, which may break."""
    with RedisServer() as server:
        yield server


@pytest.fixture
async def nonet(own_redis: RedisServer, tmp_path: Path) -> AsyncIterator[Nonet]:
    """A namespace with some tasks, a pause and a lock; no scheduler leads."""
    async with Nonet.from_settings(
        redis_url=own_redis.url, namespace="test", state_dir=tmp_path, tasks=("web_tasks",)
    ) as opened:
        await opened.submit_many([Mail() for _ in range(3)])
        await opened.submit(Report(7), id="known")
        await opened.stores.controls.pause(["task:web_tasks:Mail"], "ann@host 1")
        await opened.broker.fetch("small-a", "small", 1)
        yield opened


@pytest.mark.parametrize("words", INCIDENTS)
async def test_what_can_be_read_is_shown(own_redis: RedisServer, nonet: Nonet, words: str) -> None:
    """Every page and every read of the API answers as before, without writing."""
    breaks, hint = INCIDENTS[words]
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
    assert words in first["problem"] and hint in first["hint"], first


def _is_refused(admin: redis.Redis) -> bool:
    try:
        admin.set("x", "y")
    except redis.RedisError:
        return True
    return False
