"""The loop that fires periodic entries: what it submits, over restarts, wipes and other plans.

The loop asks Redis what time it is; these tests answer for it, so that days pass in no time.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import records
from waits import WAIT_SECONDS

from nonet import CatchUp, IntervalSecondsSchedule, Nonet, Overlap, PeriodicBaseTask, Size
from nonet.base.messages.message import decode_envelope
from nonet.config.entries import Entry
from nonet.scheduler.periodic import asking, periodic_loop as periodic
from nonet.scheduler.periodic.memory import Memory
from nonet.scheduler.periodic.periodic_loop import PeriodicLoop, jitter
from nonet.stores.namespace.leadership import DeposedError, Leadership
from nonet.stores.namespace.periodic import Periodic
from nonet.tasks.schedules import CronSchedule, TaskScheduleBase

TENS = IntervalSecondsSchedule(10)
START = datetime(2026, 1, 1, tzinfo=UTC)
GRACE = timedelta(seconds=60)


@dataclass
class Sweep(PeriodicBaseTask):
    depth: int = 1
    size = Size.SMALL

    async def execute(self) -> None: ...


@dataclass
class Shared(Sweep):
    @property
    def execution_locks(self) -> list[Any]:
        return []


@dataclass
class Queued(Sweep):
    _overlap = Overlap.QUEUE


@dataclass
class Refusing(Sweep):
    def __post_init__(self) -> None:
        raise SystemExit("not today")


class Once(TaskScheduleBase):
    """An author's schedule that knows only the present, and is asked once per firing."""

    def __init__(self, *answers: datetime | None) -> None:
        self.answers = list(answers)

    def next_occurrence(self) -> datetime | None:  # type: ignore[override]  # that is the point
        return self.answers.pop(0)


def entry(task: str = "Sweep", name: str = "a", **more: Any) -> Entry:
    full = f"test_periodic_loop:{task}"
    more = {"schedule": TENS, "args": {}, "misfire_grace": 60.0, **more}
    return Entry(f"{full}||{name}", full, None, name, **more)


class Rig:
    """A periodic loop at a time that a test sets, and a worker that runs what it submits."""

    def __init__(self, app: Nonet) -> None:
        self.app = app
        self.now = START
        self.leadership = Leadership(app.broker, "test")
        self.store = Periodic(app.broker, "test")
        self.term = ""

    async def lead(self, owner: str = "a") -> None:
        self.term = await self.leadership.lead(owner, 3600, "{}") or self.term

    def loop(self, *entries: Entry) -> PeriodicLoop:
        memory = Memory(self.app.stores.mirror, self.app.settings.may_have_sql)
        loop = PeriodicLoop(self.app.client, self.store, memory, GRACE)
        self.app.broker.now = self._now  # type: ignore[method-assign]
        loop.adopt(entries)
        return loop

    async def _now(self) -> datetime:
        return self.now

    async def tick(self, loop: PeriodicLoop, seconds: float, **options: Any) -> float:
        """Tick once at a time; no worker runs what is submitted."""
        self.now = START + timedelta(seconds=seconds)
        return await loop.tick(self.term, **options)

    async def lose_everything(self) -> None:
        await self.app.broker.client.flushall()
        await self.lead()

    async def at(self, loop: PeriodicLoop, seconds: float, *, looks: int = 1) -> list[int]:
        """Tick at a time; the seconds of the occurrences that ran then, one after the other.

        It ends after so many `looks` at which nothing ran.
        """
        self.now = START + timedelta(seconds=seconds)
        ran: list[int] = []
        nothing = 0
        while nothing < looks:
            await loop.tick(self.term)
            done = await self.run_all()
            nothing = 0 if done else nothing + 1
            ran += done
            self.now += timedelta(milliseconds=20)  # what waited for the one before is tried again
        return ran

    async def run_all(self) -> list[int]:
        deliveries, _ = await self.app.broker.fetch("small-a", "small", 100)
        for delivery in deliveries:
            assert await self.app.broker.settle(delivery, "done", b"document") == "OK"
        return [await self._second_of(delivery.envelope) for delivery in deliveries]

    async def _second_of(self, envelope: bytes) -> int:
        said = decode_envelope(envelope).labels["occurrence"]
        return round((datetime.fromisoformat(said) - START).total_seconds())


@pytest.fixture
async def rig(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Rig]:
    # How long this machine takes to answer must not matter.
    monkeypatch.setattr(periodic, "_SHARE", 0)
    monkeypatch.setattr(periodic, "_since", lambda now, asked: now)
    async with Nonet.from_settings(
        redis_url=redis_url, namespace="test", tasks=(__name__,), state_dir=tmp_path
    ) as app:
        made = Rig(app)
        await made.lead()
        yield made


async def test_each_occurrence_is_submitted_once_over_a_restart(rig: Rig) -> None:
    loop = rig.loop(entry())
    assert await rig.at(loop, 5) == []
    assert await rig.at(loop, 10) == [10]
    assert await rig.at(loop, 19) == []
    restarted = rig.loop(entry())
    assert await rig.at(restarted, 42) == [20, 30, 40]
    assert await rig.at(restarted, 50.5) == [50]


async def test_old_occurrences_follow_the_catch_up_policy(rig: Rig) -> None:
    """`one`, `skip` and `all` differ only in what is older than the grace."""
    ran = {}
    for how in ("one", "skip", "all"):
        loop = rig.loop(entry(name=how, catch_up=CatchUp(how), catch_up_limit=2))
        await rig.at(loop, 0)
        ran[how] = await rig.at(loop, 105)
    young = [50, 60, 70, 80, 90, 100]
    assert ran == {"one": young, "skip": young, "all": [30, 40, *young]}
    (status,) = await rig.store.statuses()
    assert (status.name, status.fired, status.missed) == ("all", 8, 2)


async def test_an_outage_of_a_frequent_entry_costs_one_run(rig: Rig) -> None:
    """An interval that is shorter than the setting is its grace: nothing runs in a burst."""
    fives = entry(schedule=IntervalSecondsSchedule(5), misfire_grace=None)
    loop = rig.loop(fives)
    await rig.at(loop, 0)
    assert await rig.at(loop, 5) == [5]
    away = rig.loop(fives)  # for 18 seconds; three occurrences were missed
    assert await rig.at(away, 23) == [20]
    assert await rig.at(away, 25) == [25]
    (status,) = await rig.store.statuses()
    assert (status.fired, status.missed) == (3, 2)


async def test_overlap_follows_the_locks_of_the_task(rig: Rig) -> None:
    loop = rig.loop(entry("Sweep"), entry("Shared"), entry("Queued", overlap=Overlap.QUEUE))
    await rig.at(loop, 0)
    await rig.tick(loop, 10)
    running, _ = await rig.app.broker.fetch("small-a", "small", 10)
    started = round((START + timedelta(seconds=10)).timestamp() * 1_000_000)
    for delivery in running:
        await records.hset(rig.app.broker.client, f"{{test}}:t:{delivery.id}", "started", started)
    await rig.tick(loop, 20)
    found = await rig.store.statuses()
    counts = {item.task[-6:]: (item.fired, item.skipped) for item in found}
    assert counts == {":Sweep": (1, 1), "Shared": (2, 0), "Queued": (1, 0)}
    for delivery in running:
        await rig.app.broker.settle(delivery, "done", b"document")
    assert sorted(await rig.at(loop, 29)) == [20, 20]


async def test_a_stop_leaves_the_rest_of_what_is_due_to_the_next_leader(rig: Rig) -> None:
    """Of five due entries one is fired before the stop; the next leader fires the other four."""
    entries = [entry("Shared", name) for name in "abcde"]
    loop = rig.loop(*entries)
    await rig.at(loop, 0)
    answers = iter([True, True])  # asked before each entry, and before each of its occurrences
    assert await rig.tick(loop, 10, still_runs=lambda: next(answers, False)) == 0
    assert await rig.run_all() == [10]
    assert await rig.at(rig.loop(*entries), 10) == [10] * 4


async def test_nothing_repeats_or_shifts_after_a_loss_of_redis(rig: Rig) -> None:
    loop = rig.loop(entry("Shared"))
    assert await rig.at(loop, 10) == []
    assert await rig.at(loop, 20) == [20]
    await rig.lose_everything()
    assert await rig.at(loop, 43) == [30, 40]


async def test_a_standby_forgets_its_memory(rig: Rig) -> None:
    first, second = rig.loop(entry("Shared")), rig.loop(entry("Shared"))
    await rig.at(first, 10)
    assert await rig.at(first, 20) == [20]
    first.memory.stand_by()
    assert await rig.at(second, 30) == [30]
    await rig.lose_everything()
    assert await rig.at(first, 35) == []
    assert await rig.at(first, 40) == [40]


@pytest.mark.parametrize("has_sql", [True, False])
async def test_a_scheduler_that_starts_after_a_loss_continues_from_sql(
    rig: Rig, has_sql: bool
) -> None:
    """With a database nothing is lost; without one it continues from now and repeats nothing."""
    if has_sql:
        await (await rig.app.stores.mirror()).save("other", {"x": "1"})  # makes the SQLite file
    loop = rig.loop(entry("Shared"))
    await rig.at(loop, 10)
    assert await rig.at(loop, 20) == [20]
    await loop.memory.save(rig.term)
    await rig.lose_everything()
    restarted = rig.loop(entry("Shared"))
    assert await rig.at(restarted, 43) == ([30, 40] if has_sql else [])
    assert await rig.at(restarted, 55) == [50]


async def test_a_new_schedule_holds_from_its_adoption(rig: Rig) -> None:
    daily = replace(entry(), schedule=CronSchedule("0 0 * * *"))
    loop = rig.loop(daily)
    hours = 3600
    await rig.at(loop, 14 * hours)
    loop.adopt([replace(entry(), schedule=CronSchedule("0 13 * * *"))])
    assert await rig.at(loop, 14 * hours + 1) == []
    assert await rig.at(loop, 37 * hours) == [37 * hours]
    loop.adopt([replace(entry(), schedule=IntervalSecondsSchedule(hours))])
    assert await rig.at(loop, 37 * hours + 5) == []
    assert await rig.at(loop, 38 * hours) == [38 * hours]


async def test_a_waiting_occurrence_survives_a_new_schedule(rig: Rig) -> None:
    loop = rig.loop(entry("Shared"))
    await rig.at(loop, 5)
    for seconds in (10, 21):  # no worker is there: 20 waits for 10
        await rig.tick(loop, seconds)
    loop.adopt([replace(entry("Shared"), schedule=IntervalSecondsSchedule(5))])
    assert await rig.at(loop, 22) == [10, 15, 20]


async def test_jitter_delays_an_occurrence(rig: Rig) -> None:
    late = entry("Shared", jitter=3600)
    due = START + jitter(late, START)
    assert rig.loop().prepare(late, START).due_us == round(due.timestamp() * 1_000_000)
    assert rig.loop().prepare(entry(), START).due_us == 0


async def test_only_changed_entries_are_planned_again(rig: Rig) -> None:
    one, other = entry(name="one", args={"depth": 1}), entry(name="other")
    loop = rig.loop(one, other)
    await rig.at(loop, 5)
    store, sent = loop._store.plan, []

    async def listen(term: str, changes: Any) -> Any:
        sent.append([change.entry for change in changes])
        return await store(term, changes) if len(sent) != 3 else None

    loop._store.plan = listen  # type: ignore[method-assign]
    truth = replace(one, args={"depth": True})  # equal to 1, but another argument
    for entries in ([replace(one), other], [truth, other], [truth, entry(name="new")]):
        loop.adopt(entries)
        with suppress(DeposedError):
            await loop.tick(rig.term)
    await loop.tick(rig.term)
    failed = [entry(name="new").key, other.key]
    assert sent == [[], [one.key], failed, [one.key, *failed]]
    assert await rig.at(loop, 10) == [10, 10]


async def test_a_frequent_entry_does_not_wait_for_a_crowd(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many that are due, each tick fires a few: those that waited, and those that fire often."""
    monkeypatch.setattr(periodic, "_BATCH", 4)
    hourly = CronSchedule("0 * * * *")
    crowd = [entry("Shared", name=f"{number:02}", schedule=hourly) for number in range(40)]
    often = entry("Shared", "often", schedule=IntervalSecondsSchedule(1))
    loop = rig.loop(*crowd, often)
    assert await rig.at(loop, 3598) == []
    assert await rig.at(loop, 3599) == [3599]
    rig.now = START + timedelta(seconds=3600)
    ran, pauses = [], []
    for _ in range(12):
        pauses.append(await loop.tick(rig.term))
        ran.append(await rig.run_all())
        rig.now += timedelta(milliseconds=200)
    assert ran[0] == [3600] * 4 and sorted(ran[5]) == [3600, 3600, 3600, 3601]
    assert sum(seconds.count(3600) for seconds in ran) == len(crowd) + 1
    assert pauses[0] == 0.0


async def test_entries_adopted_during_a_plan_are_planned_next(rig: Rig) -> None:
    loop = rig.loop(entry())
    fired = loop._store.fired

    async def adopt_meanwhile() -> Any:
        loop.adopt([entry(), entry("Shared")])
        loop._store.fired = fired  # type: ignore[method-assign]
        return await fired()

    loop._store.fired = adopt_meanwhile  # type: ignore[method-assign]
    await rig.at(loop, 5)
    assert await rig.at(loop, 10) == [10]
    assert sorted(await rig.at(loop, 20)) == [20, 20]


async def test_a_broken_entry_does_not_affect_others(rig: Rig) -> None:
    wrong = Once("soon", None)  # type: ignore[arg-type]  # that is the point
    loop = rig.loop(entry("Refusing"), entry("Sweep", "odd", schedule=wrong), entry())
    await rig.at(loop, 5)
    assert await rig.at(loop, 10) == [10]
    assert set(loop.problems) == {entry("Refusing").key, entry("Sweep", "odd").key}
    assert "not today" in loop.problems[entry("Refusing").key]


async def test_entries_refused_by_a_full_redis_fire_later(rig: Rig) -> None:
    loop = rig.loop(entry())
    await rig.at(loop, 5)
    client = rig.app.broker.client
    await client.config_set("maxmemory", 1)
    try:
        await rig.tick(loop, 10)
        assert "BrokerFullError" in loop.problems[entry().key]
    finally:
        await client.config_set("maxmemory", 0)
    assert await rig.at(loop, 21) == [10, 20]
    assert loop.problems == {}


async def test_a_deposed_leader_fires_nothing(rig: Rig) -> None:
    loop = rig.loop(entry())
    await rig.at(loop, 5)
    await rig.leadership.resign("a", rig.term)
    rig.now = START + timedelta(seconds=10)
    with pytest.raises(DeposedError):
        await loop.tick(rig.term)
    with pytest.raises(DeposedError):
        await rig.loop(entry()).tick(rig.term)


async def test_nothing_repeats_when_redis_returns_with_older_data(rig: Rig) -> None:
    loop = rig.loop(entry("Shared"))
    await rig.at(loop, 5)
    assert await rig.at(loop, 10) == [10]
    client = rig.app.broker.client
    older = {key: await client.dump(key) for key in (b"{test}:periodic", b"{test}:epoch")}
    assert await rig.at(loop, 30) == [20, 30]
    await client.flushall()
    for key, value in older.items():
        await client.restore(key, 0, value)
    await rig.lead()
    assert await rig.at(loop, 35) == []
    assert await rig.at(loop, 40) == [40]


async def test_an_entry_whose_schedule_fails_is_planned_later(rig: Rig) -> None:
    class Flaky(TaskScheduleBase):
        fails = True

        def next_occurrence(self, after: datetime | None = None) -> datetime | None:
            if Flaky.fails:
                raise OSError("the calendar server is away")
            return TENS.next_occurrence(after)

    flaky = entry("Shared", "flaky", schedule=Flaky())
    loop = rig.loop(flaky, entry("Shared"))
    await rig.at(loop, 5)
    assert await rig.at(loop, 10) == [10]
    assert "calendar server" in loop.problems[flaky.key]
    Flaky.fails = False
    await rig.at(loop, 21)
    assert sorted(await rig.at(loop, 40)) == [30, 30, 40, 40]
    assert loop.problems == {}


async def test_a_schedule_that_returns_the_past_is_broken(rig: Rig) -> None:
    loop = rig.loop(entry("Shared", schedule=Once(*[START] * 9)))
    await rig.tick(loop, 5)
    assert "not after" in loop.problems[entry("Shared").key]
    assert await loop.tick(rig.term) > 0.5


async def test_a_schedule_that_hangs_does_not_hold_up_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked in a thread, is broken after a while, and not asked again before it answers."""
    go_on = threading.Event()

    class Hanging(TaskScheduleBase):
        asked = 0

        def next_occurrence(self, after: datetime | None = None) -> datetime | None:
            Hanging.asked += 1
            go_on.wait(WAIT_SECONDS)
            return TENS.next_occurrence(after)

    hanging = entry("Shared", "hanging", schedule=Hanging())
    loop = rig.loop(hanging, entry("Shared"))
    monkeypatch.setattr(asking, "_LONGEST_SECONDS", 0.05)
    try:
        await rig.at(loop, 5)
        assert await rig.at(loop, 10) == [10]
        assert "has not answered" in loop.problems[hanging.key]
        await rig.at(loop, 60)  # it is planned again, and still hangs
        assert Hanging.asked == 1
    finally:
        go_on.set()


async def test_occurrences_during_startup_hooks_fire_after_them(rig: Rig) -> None:
    loop = rig.loop(entry("Shared"))
    for seconds in (5, 12, 21):
        await rig.tick(loop, seconds, may_fire=False)
        assert await rig.run_all() == []
    assert await rig.at(loop, 25) == [10, 20]


async def test_an_entry_disabled_during_a_tick_does_not_fire(rig: Rig) -> None:
    first, second = entry("Shared"), entry("Shared", "b")
    loop = rig.loop(first, second)
    await rig.at(loop, 5)
    fire = loop._store.fire

    async def adopt_meanwhile(*args: Any, **options: Any) -> str:
        loop.adopt([first, replace(second, enabled=False)])
        return await fire(*args, **options)

    loop._store.fire = adopt_meanwhile  # type: ignore[method-assign]
    assert await rig.at(loop, 10) == [10]


async def test_the_time_in_which_an_entry_was_disabled_is_not_made_up_for(rig: Rig) -> None:
    await (await rig.app.stores.mirror()).save("other", {"x": "1"})  # makes the SQLite file
    loop = rig.loop(entry("Shared"))
    await rig.at(loop, 10)
    await loop.memory.save(rig.term)
    off = replace(entry("Shared"), enabled=False)
    loop.adopt([off])
    await rig.at(loop, 15)  # and it ends before it could write to SQL
    second = rig.loop(off)
    await rig.at(second, 500)
    await second.memory.save(rig.term)
    second.adopt([entry("Shared")])
    assert await rig.at(second, 1000) == []
    assert await rig.at(second, 1010) == [1010]


def test_jitter_is_the_same_in_every_process_and_within_its_bound() -> None:
    item = entry(jitter=30)
    late = [jitter(item, START + timedelta(minutes=n)) for n in range(200)]
    assert late == [jitter(item, START + timedelta(minutes=n)) for n in range(200)]
    assert timedelta(0) <= min(late) < timedelta(seconds=3)
    assert timedelta(seconds=27) < max(late) < timedelta(seconds=30)
