"""What an older release left in Redis and SQL is brought to its end by this one."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from acceptance.site import Site
from servers import RedisServer
from waits import WAIT_SECONDS

from nonet.base.errors import NotFoundError

HERE = Path(__file__).parent
FIXTURES = sorted((HERE / "fixtures").glob("*.json"))
NAMESPACE = "upgrade"
P = f"{{{NAMESPACE}}}:"
ENDED = {"done", "dead", "cancelled", "expired"}
_MINUTE_US = 60_000_000
# No fixture has a task that anything died with. Their releases write so what was counted.
_COUNTED = {"queued": {"attempt": 1, "deaths": 2}, "labelled": {"attempt": 1, "crashes": 1}}


class Counts(NamedTuple):
    """How often a task was begun, and what died with it."""

    attempt: int
    crashes: int
    deaths: int


class Upgraded(Site):
    """A namespace as an older release has left it, and daemons of this one.

    Args:
        made: a fixture, see README.md.
    """

    def __init__(self, server: RedisServer, made: dict[str, Any], home: Path) -> None:
        super().__init__(server, home)
        self.made = made
        self.executed = home / "executed"
        self.executed.touch()
        database = home / "nonet.db"
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript("\n".join(made["sql"]))
        self.settings |= {
            "NONET_NAMESPACE": NAMESPACE,
            "NONET_DB_URL": f"sqlite+aiosqlite:///{database}",
            "NONET_TASKS": "upgrade_tasks",
            "PYTHONPATH": str(HERE),
            "UPGRADE_GO": "1",
            "UPGRADE_JOURNAL": str(self.executed),
        }
        self._load()

    def _load(self) -> None:
        self.redis.flushall()
        with self.redis.pipeline(transaction=False) as pipe:
            for command in self.made["redis"]:
                pipe.execute_command(*(part.encode("latin-1") for part in command))
            pipe.execute()
        for id, counts in _COUNTED.items():
            self.redis.hset(f"{P}t:{id}", mapping=counts)
        self.left = {id: self._counts(id) for id in self.made["expected"]}
        # A minute after it was made, whatever the clock says where this runs.
        seconds, micros = self.redis.time()
        made = round(datetime.fromisoformat(self.made["made"]).timestamp() * 1e6)
        self.redis.set(f"{P}clock", made + _MINUTE_US - (seconds * 1_000_000 + micros))

    def _counts(self, id: str) -> Counts:
        """What an end is to say, if it takes one attempt more."""
        names = ("attempt", "crashes", "deaths", "state")
        attempt, crashes, deaths, state = self.redis.hmget(f"{P}t:{id}", names)
        # The worker that ran a task is dead.
        return Counts(
            int(attempt or 0) + 1, int(crashes or 0), int(deaths or 0) + (state == b"running")
        )


@pytest.fixture(params=FIXTURES, ids=lambda path: path.stem)
def upgraded(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Upgraded]:
    """Each of the fixtures, loaded."""
    monkeypatch.syspath_prepend(str(HERE))
    made = Upgraded(redis_server, json.loads(request.param.read_text()), tmp_path)
    yield made
    made.redis.flushall()
    made.close()


async def test_all_that_was_left_comes_to_its_end(upgraded: Upgraded) -> None:
    """Each task is executed once and ends with its result; then the doctor finds nothing."""
    (callback,) = upgraded.redis.scan_iter(f"{P}g:*:callback")
    wanted = {
        **upgraded.made["expected"],
        str(upgraded.redis.hget(callback, "id")): [[1, 0, "1.10", 2026], 2],
    }
    assert upgraded.program("task-run", "db", "upgrade").wait() == 0
    upgraded.program("task-scheduler", "--config", str(HERE / "config.yaml"))
    for size in ("small", "large"):
        upgraded.program("task-worker", "--size", size)
    assert upgraded.program("task-run", "resume", "--task", "Paused").wait() == 0
    assert upgraded.program("task-run", "dlq", "resubmit", "1").wait() == 0
    short = {"lease": 2, "lock_ttl": 1, "worker_ttl": 2}
    database = upgraded.settings["NONET_DB_URL"]
    async with upgraded.app(namespace=NAMESPACE, db_url=database, **short) as app:
        letter = await (await app.dead_letters()).get(1)
        wanted[str(letter.resubmitted_as)] = "resubmitted"
        states, counted = {}, {}
        async with asyncio.timeout(WAIT_SECONDS):
            while unknown := wanted.keys() - states.keys():
                for id in unknown:
                    with suppress(NotFoundError):  # a callback that is not submitted yet
                        if (status := await app.status(id)).state in ENDED:
                            states[id] = status.state
                            counted[id] = Counts(
                                status.attempt, status.crashes, status.worker_deaths
                            )
                await asyncio.sleep(0.05)
        assert states == dict.fromkeys(wanted, "done")
        assert {id: await app.result(id) for id in wanted} == wanted
        times = Counter(upgraded.executed.read_text().split())
        assert times.keys() >= wanted.keys() - {"finished"}
        assert set(times.values()) == {1}
        assert {id: counted[id][:2] for id in upgraded.left} == {
            id: counts[:2] for id, counts in upgraded.left.items()
        }
        # A worker that gets no processor for a lease is taken for dead: more may be counted.
        fewer = [id for id, left in upgraded.left.items() if counted[id].deaths < left.deaths]
        assert fewer == []
        assert [item async for item in app.stores.quarantine.newest(10)] == []
        diagnosis = await app.doctor()
    assert diagnosis.is_healthy, diagnosis
