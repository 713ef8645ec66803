"""The leader merges the schedules of programs with the entries of classes and configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from nonet import BaseTask, CatchUp, IntervalSecondsSchedule, Nonet
from nonet.base.errors import ServerUnreachableError
from nonet.base.messages.message import decode_envelope
from nonet.config.entries import Entry, stored_entry
from nonet.config.settings import plain_settings
from nonet.scheduler.periodic.memory import PERIODIC, Memory
from nonet.scheduler.periodic.periodic_loop import PeriodicLoop
from nonet.scheduler.periodic.stored import StoredEntries
from nonet.stores.sql.schedules import ScheduleRows

pytestmark = pytest.mark.server

HOUR, SECOND = IntervalSecondsSchedule(3600), IntervalSecondsSchedule(1)
NAME = "test_stored_entries:Digest"
STORED, CONFIGURED = f"{NAME}||d-7", f"{NAME}||weekly"


class Digest(BaseTask):
    user: int

    async def execute(self) -> None: ...


class Leader:
    """What a leading scheduler has, with a database that fails on demand."""

    def __init__(self, app: Nonet) -> None:
        stores, may_have_sql = app.stores, app.settings.may_have_sql
        self.is_away = False
        self.memory = Memory(stores.mirror, may_have_sql)
        self.loop = PeriodicLoop(app.client, stores.periodic, self.memory, timedelta(seconds=60))
        self.stored = StoredEntries(self._rows, may_have_sql, app.registry, self.loop.adopt_stored)
        self._app = app

    async def _rows(self) -> ScheduleRows:
        if self.is_away:
            raise ServerUnreachableError("SQL does not answer")
        return await self._app.stores.schedules()

    async def plan(self, *configured: Entry) -> dict[str, str]:
        """Read, plan, and return the origin of each entry."""
        term = await self._app.stores.leadership.lead("a", 3600, "{}") or ""
        self.loop.adopt(configured)
        try:
            await self.stored.tick(term)
        except ServerUnreachableError:
            assert self.is_away
        assert self.stored.is_tried_in(term)
        await self.loop.tick(term)
        await self.memory.save(term)
        return {item.entry: item.origin for item in await self._app.stores.periodic.statuses()}


@pytest.fixture
async def app(redis_url: str, sqlite_url: str) -> AsyncIterator[Nonet]:
    settings = plain_settings(
        redis_url=redis_url, namespace="test", db_url=sqlite_url, tasks=(__name__,)
    )
    async with Nonet(settings) as opened:
        yield opened


def entry(name: str, **more: Any) -> Entry:
    return Entry(f"{NAME}||{name}", NAME, None, name, HOUR, {"user": 1}, origin="common", **more)


async def test_entries_of_both_are_planned_and_the_configuration_wins(app: Nonet) -> None:
    """A schedule with the name of a configured entry is left out, with a sentence."""
    await app.schedules.put("d-7", Digest(7), HOUR)
    await app.schedules.put("weekly", Digest(8), HOUR)
    leader = Leader(app)
    assert await leader.plan(entry("weekly")) == {STORED: "database", CONFIGURED: "common"}
    (problem,) = leader.loop.problems.items()
    assert problem[0] == "database|weekly" and "common has an entry named 'weekly'" in problem[1]
    assert await leader.plan() == {STORED: "database", CONFIGURED: "database"}
    assert leader.loop.problems == {}
    await app.schedules.remove("weekly")
    assert await leader.plan() == {STORED: "database"}


async def test_without_sql_what_was_read_last_stays_planned(app: Nonet) -> None:
    """A leader keeps it, and a new leader, which has read nothing, drops nothing."""
    await app.schedules.put("d-7", Digest(7), HOUR)
    leader, both = Leader(app), {STORED: "database", CONFIGURED: "common"}
    await leader.plan()
    last = await (await app.stores.mirror()).load(PERIODIC)
    assert STORED in last
    leader.is_away = True
    await app.schedules.remove("d-7")
    assert await leader.plan(entry("weekly", enabled=False)) == both
    successor = Leader(app)
    successor.is_away = True
    assert await successor.plan(entry("weekly", enabled=False)) == both
    assert await (await app.stores.mirror()).load(PERIODIC) == last
    successor.is_away = False
    assert await successor.plan() == {}


async def test_a_class_that_the_leader_does_not_know_breaks_one_schedule(app: Nonet) -> None:
    """Its entry names the class; another one fires as its put says."""
    await app.schedules.put(
        "d-7", Digest(7), SECOND, tenant="acme", catch_up=CatchUp.SKIP, misfire_grace=7
    )
    rows = await app.stores.schedules()
    (item,) = await rows.list()
    planned = stored_entry(item, app.registry)
    assert (planned.catch_up, planned.misfire_grace) == (CatchUp.SKIP, 7)
    odd = type(item)("odd", "gone:Digest", "", item.schedule, item.changed, item.envelope)
    await rows.put(odd, lambda _: False)
    leader = Leader(app)
    while not (found := (await app.broker.fetch("medium-a", "medium", 1))[0]):
        await leader.plan()
    while not leader.loop.problems:
        await leader.plan()
    assert "gone:Digest" in leader.loop.problems["gone:Digest||odd"]
    task = decode_envelope(found[0].envelope)
    assert (task.args, task.labels["vo"]) == ({"user": 7}, "acme")
    assert task.labels["entry"] == f"{NAME}|acme|d-7"
