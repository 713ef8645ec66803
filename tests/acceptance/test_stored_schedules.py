"""Schedules that programs make fire whatever happens to leaders, SQL and Redis."""

from __future__ import annotations

import asyncio
from datetime import datetime
from itertools import pairwise

import pytest
from acceptance.site import SHORT, Site
from acceptance.stored_tasks import Ring
from daemons import Daemon
from doors import Door
from waits import until

from nonet import IntervalSecondsSchedule, ServerUnreachableError
from nonet.stores.sql.database import upgrade

TASKS = "acceptance.stored_tasks"
EACH_SECOND = IntervalSecondsSchedule(1)


@pytest.mark.long
async def test_a_schedule_in_sql_fires_once_whatever_fails(
    own_site: Site, mariadb_behind_a_door: tuple[Door, str]
) -> None:
    """Two puts at once, a killed leader, SQL away, an emptied Redis, a change and a removal."""
    site, (door, url) = own_site, mariadb_behind_a_door
    await upgrade(url)
    site.settings |= {**SHORT, "NONET_DB_URL": url}
    site.worker()
    daemons = [site.scheduler() for _ in range(2)]
    async with site.app(db_url=url) as app:
        both = (app.schedules.put("bell", Ring("a"), EACH_SECOND) for _ in range(2))
        assert sorted(await asyncio.gather(*both)) == ["created", "unchanged"]
        await _rung(site, "a", 2)
        (leader,) = await until(lambda: _leaders(site, daemons), "a scheduler leads")
        leader.kill()
        leader.wait()
        await _rung(site, "a", 2)
        (survivor,) = [one for one in daemons if one is not leader]
        await door.close()
        await until(lambda: "schedules in SQL failed" in survivor.log, "SQL is missed")
        await _rung(site, "a", 2)
        with pytest.raises(ServerUnreachableError):
            await app.schedules.put("bell", Ring("b"), EACH_SECOND)
        _ring_each_second(site, "a")
        site.redis.flushall()
        await _rung(site, "a", 2)
        assert survivor.log.count("schedules in SQL failed") == 1
        await door.open()
        assert await app.schedules.put("bell", Ring("b"), EACH_SECOND) == "changed"
        await _rung(site, "b", 2)
        assert await app.schedules.remove("bell")
        await until(lambda: not site.redis.hlen(site.key("periodic:entries")), "it is dropped")
    await site.all_ended()
    _ring_each_second(site, "b")
    rung = [_second(event.details["occurrence"]) for event in site.journal("start")]
    assert len(rung) == len({*rung})


def _leaders(site: Site, daemons: list[Daemon]) -> list[Daemon]:
    owner = site.redis.hget(site.key("leader"), "owner") or ""
    return [one for one in daemons if owner.startswith(f"{one.pid}@")]


def _seconds(site: Site, bell: str) -> list[float]:
    return sorted(
        _second(event.details["occurrence"])
        for event in site.journal("start")
        if event.details["bell"] == bell
    )


def _second(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def _rung(site: Site, bell: str, times: int) -> None:
    """Wait until it has rung so often from now on."""
    count = len(_seconds(site, bell))
    await until(lambda: len(_seconds(site, bell)) >= count + times, f"bell {bell} has rung")


def _ring_each_second(site: Site, bell: str) -> None:
    steps = {later - earlier for earlier, later in pairwise(_seconds(site, bell))}
    assert steps == {1.0}, "an occurrence is missing or doubled"
