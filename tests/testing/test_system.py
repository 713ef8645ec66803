"""`System`: a whole system in one test, and its clock."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
import redis
from waits import WAIT_SECONDS

from nonet import (
    BaseTask,
    CallbackSpawner,
    CronSchedule,
    DependencyError,
    Depends,
    Epoch,
    ExponentialBackoff,
    IntervalSeconds,
    LockedObjectType,
    MutexLock,
    NotBoundError,
    Overlap,
    PeriodicBaseTask,
    RateLimiter,
    RegistrationError,
    Size,
    TaskFailed,
    Unique,
    Workflow,
    context,
    startup_hook,
)
from nonet.base.errors import ConfigurationError
from nonet.stores.connection.embedded import open_embedded
from nonet.tasks.locks import BaseLock
from nonet.testing import NotIdleError, System

pytestmark = pytest.mark.server

JOB = LockedObjectType.JOB
HALF_PAST = datetime(2001, 2, 3, 4, 30, tzinfo=UTC)


@dataclass
class Add(BaseTask):
    a: int
    b: int

    async def execute(self) -> int:
        return self.a + self.b


class Fails(BaseTask):
    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=60, max_retries=2)
    dlq_eligible = True

    async def execute(self) -> None:
        raise ValueError(f"attempt {context().attempt}")


class Doubles(BaseTask):
    number: int
    size = Size.SMALL

    async def execute(self) -> int:
        context().add_step(Add(self.number, self.number))
        return self.number


class Hourly(PeriodicBaseTask):
    _schedule = CronSchedule("0 * * * *")

    async def execute(self) -> None:
        context().after_commit(Add(1, 1))


class Gate:
    """Tasks wait here until the test opens it."""

    def __init__(self) -> None:
        self.open, self.entered = asyncio.Event(), asyncio.Event()


def gate() -> Gate:
    raise NotImplementedError


@dataclass
class Held(BaseTask):
    """Holds a mutex until the gate is open."""

    number: int = 1

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock(JOB, 1)]

    async def execute(self, its: Annotated[Gate, Depends(gate)]) -> int:
        its.entered.set()
        await its.open.wait()
        context().ensure_lease()
        return self.number


@dataclass
class Limited(BaseTask):
    number: int

    @property
    def execution_locks(self) -> list[BaseLock]:
        limiter = RateLimiter(JOB, "shared")
        limiter.limit, limiter.window_seconds = 2, 3600
        return [limiter]

    async def execute(self) -> None: ...


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all tests of this file."""
    with open_embedded(tmp_path_factory.mktemp("server")) as opened:
        yield opened.url


@pytest.fixture
async def system(server: str) -> AsyncIterator[System]:
    """A system with the tasks of this file."""
    tasks = [Add, Fails, Held, Limited, Doubles]
    async with System(tasks, redis_url=server) as opened:
        yield opened


async def test_all_sizes_are_executed(system: System) -> None:
    """There is a worker of each size, and the result is that of the task."""
    handles = [
        await Add(1, number).schedule(labels={"size": size}) for number, size in enumerate(Size)
    ]
    await system.run_until_idle()
    assert [await system.result(handle) for handle in handles] == [1, 2, 3]


async def test_it_needs_nothing_but_a_server_binary() -> None:
    """Without a URL it brings its own Redis, and nothing is left of it."""
    async with System([Add]) as system:
        url = system.app.broker.url
        assert await (await system.submit(Add(2, 2))).result(timeout=WAIT_SECONDS) == 4
    with redis.Redis.from_url(url) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    with pytest.raises(NotBoundError):
        await Add(1, 1).schedule()


async def test_its_own_server_has_lost_nothing() -> None:
    """So no lock is withheld from a task."""
    its = Gate()
    its.open.set()
    async with System([Held], overrides={gate: lambda: its}) as system:
        assert await (await system.submit(Held())).result(timeout=WAIT_SECONDS) == 1


@dataclass
class Confided(Add):
    encrypted = True


async def test_encrypted_tasks_run_with_a_key(server: str) -> None:
    """It is an argument, as each setting is; without one the submission says what to set."""
    key = f"test:{base64.b64encode(b'k' * 32).decode()}"
    async with System([Confided], redis_url=server, encryption_keys=key) as system:
        assert await system.result(await Confided(1, 2).schedule()) == 3
    async with System([Confided], redis_url=server) as system:
        with pytest.raises(ConfigurationError, match="NONET_ENCRYPTION_KEYS=ID:KEY"):
            await Confided(1, 2).schedule()


async def test_its_namespace_is_deleted(server: str) -> None:
    """In a Redis of somebody else nothing is left, also if the test failed."""
    with pytest.raises(ZeroDivisionError):
        async with System([Add], redis_url=server, namespace="gone"):
            await Add(1, 2).schedule(at_time=datetime(2040, 1, 1, tzinfo=UTC))
            raise ZeroDivisionError
    with redis.Redis.from_url(server) as client:
        assert list(client.scan_iter("{gone}:*")) == []


async def test_the_environment_has_no_say(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    """Variables of whoever runs the tests neither break nor change it."""
    monkeypatch.setenv("NONET_NAMESPACE", "production")
    monkeypatch.setenv("NONET_NONSENSE", "1")
    async with System([Add], redis_url=server) as system:
        assert system.app.settings.namespace == "test"


async def test_delays_pass_by_the_clock_of_the_test(system: System) -> None:
    """A task of tomorrow is left alone until the clock is moved, and runs then."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    handle = await Add(1, 2).schedule(at_time=tomorrow)
    await system.run_until_idle()
    assert (await handle.status()).state == "delayed"
    await system.advance(timedelta(hours=23))
    await system.run_until_idle()
    assert (await handle.status()).state == "delayed"
    await system.advance(3601)
    await system.run_until_idle()
    assert await system.result(handle) == 3


async def test_a_delay_after_a_move_counts_from_then(system: System) -> None:
    """at_time is by the clock of the process, which nobody moves: an hour stays an hour."""
    await system.advance(timedelta(days=3))
    handle = await Add(1, 2).schedule(at_time=datetime.now(UTC) + timedelta(hours=1))
    await system.run_until_idle()
    assert (await handle.status()).state == "delayed"
    await system.advance(timedelta(hours=1))
    await system.run_until_idle()
    assert await system.result(handle) == 3


async def test_retries_come_when_the_clock_says(system: System) -> None:
    """Each attempt waits for its time; the last one is followed by a dead letter."""
    handle = await Fails().schedule()
    for attempt, pause in ((1, 61), (2, 121), (3, 0)):
        await system.run_until_idle()
        assert (await handle.status()).attempt == attempt
        assert (await system.dead_letters() == []) == (attempt < 3)
        await system.advance(pause)
    with pytest.raises(TaskFailed, match=r"\(test_system:Fails\) is dead .*attempt 3"):
        await system.result(handle)
    (letter,) = await system.dead_letters()
    assert (letter.task_id, letter.reason, letter.retry_count) == (handle, "retries", 2)


async def test_a_jump_fires_every_occurrence_that_it_passes(server: str) -> None:
    """A day of an hourly schedule is 24 tasks, one after the other."""
    async with System([Hourly, Add], redis_url=server, now=HALF_PAST) as system:
        await system.advance(timedelta(days=1))
        await system.run_until_idle()
        found = system.assert_submitted(Hourly, times=24)
        instants = [datetime.fromisoformat(item.labels["occurrence"]) for item in found]
        hour = HALF_PAST.replace(minute=0)
        assert instants == [hour + timedelta(hours=number) for number in range(1, 25)]
        system.assert_submitted(Add, a=1, times=24)


async def test_idle_means_that_every_occurrence_has_ended(server: str) -> None:
    """Also between two of them, when one has just ended and the next is not submitted yet."""

    class Quick(PeriodicBaseTask):
        _schedule = CronSchedule("0 * * * *")

        async def execute(self) -> None: ...

    async with System([Quick], redis_url=server, now=HALF_PAST) as system:
        for number in range(1, 13):
            await system.advance(timedelta(hours=6))
            await system.run_until_idle()
            assert len(system.submitted) == 6 * number
        await system.advance(timedelta(days=1))
        await system.run_until_idle()
        assert len(system.submitted) == 12 * 6 + 24


async def test_what_waits_for_a_retry_holds_up_those_that_queue_only(server: str) -> None:
    """What may begin beside the failed one is due now."""

    class Flaky(PeriodicBaseTask):
        _schedule = CronSchedule("0 * * * *")
        _overlap = Overlap.ALLOW
        retry_policy = ExponentialBackoff(base_delay_seconds=86_400, max_retries=1)

        async def execute(self) -> None:
            raise ValueError

    class Patient(Flaky):
        _overlap = Overlap.QUEUE

    async with System([Flaky, Patient], redis_url=server, now=HALF_PAST) as system:
        await system.advance(timedelta(hours=3))
        await system.run_until_idle()
        system.assert_submitted(Flaky, times=3)
        system.assert_submitted(Patient, times=1)


async def test_settings_are_those_of_the_test(server: str) -> None:
    """With the misfire grace of production, a jump leaves out what is too late."""
    async with System([Hourly, Add], redis_url=server, now=HALF_PAST, misfire_grace=60) as system:
        await system.advance(timedelta(days=1))
        await system.run_until_idle()
        system.assert_submitted(Hourly, times=1)


async def test_jitter_is_by_the_moved_clock(server: str) -> None:
    """An occurrence that is late on purpose is so by its jitter, not by how far the clock went."""

    class Late(PeriodicBaseTask):
        _schedule = IntervalSeconds(3600)
        _jitter = 600

        async def execute(self) -> None: ...

    async with System([Late], redis_url=server, now=datetime(2040, 1, 1, tzinfo=UTC)) as system:
        await system.advance(timedelta(days=1))
        await system.run_until_idle()
        await system.advance(3600)
        await system.run_until_idle()
        await system.advance(600)
        await system.run_until_idle()
        assert [item async for item in system.app.live()] == []


async def test_an_occurrence_waits_for_the_one_before(server: str) -> None:
    """What a jump passes is late, as after an outage: nothing is skipped because one still runs."""
    its = Gate()

    class Slow(PeriodicBaseTask):
        _schedule = CronSchedule("0 * * * *")

        async def execute(self, its: Annotated[Gate, Depends(gate)]) -> None:
            its.entered.set()
            await its.open.wait()

    overrides = {gate: lambda: its}
    now = datetime(2040, 1, 1, 4, 30, tzinfo=UTC)
    async with System([Slow], redis_url=server, now=now, overrides=overrides) as system:
        await system.advance(timedelta(hours=2))
        await its.entered.wait()
        first = await looks_at_entries(system)
        # Meanwhile the second one is looked at again and again, ever more seldom.
        while await looks_at_entries(system) - first < timedelta(seconds=0.7):
            await system.advance(0)
        its.open.set()
        await system.run_until_idle()
        system.assert_submitted(Slow, times=2)


async def looks_at_entries(system: System) -> datetime:
    """When the leader looked at the periodic entries last, as it has said."""
    leader = await system.app.leader()
    assert leader
    return datetime.fromisoformat(json.loads(leader.info)["loops"]["periodic entries"]["last"])


async def test_rate_limits_go_by_the_clock(system: System) -> None:
    """What exceeds the limit waits, which is no work; when the window has passed, it runs."""
    handles = [await Limited(number).schedule() for number in range(3)]
    await system.run_until_idle()
    states = [(await handle.status()).state for handle in handles]
    assert sorted(states) == ["done", "done", "waiting"]
    await system.advance(3601)
    await system.run_until_idle()
    assert [(await handle.status()).state for handle in handles] == ["done"] * 3


async def test_what_runs_survives_a_jump(system: System) -> None:
    """A task that holds a mutex keeps it although years pass: the next one waits for its end."""
    its = Gate()
    system.dependency_overrides[gate] = lambda: its
    first, second = await Held(1).schedule(), await Held(2).schedule()
    await its.entered.wait()
    for _ in range(3):
        await system.advance(timedelta(days=400))
    assert (await first.status()).state == "running"
    assert (await second.status()).state == "waiting"
    its.open.set()
    await system.run_until_idle()
    assert [await system.result(first), await system.result(second)] == [1, 2]
    assert (await first.status()).attempt == 1


async def test_a_hold_survives_a_jump(system: System) -> None:
    """So does what the test itself holds; what waits for it is no work."""
    async with system.app.hold(MutexLock(JOB, 1)):
        its = Gate()
        its.open.set()
        system.dependency_overrides[gate] = lambda: its
        handle = await Held().schedule()
        await system.advance(timedelta(days=1))
        await system.run_until_idle()
        assert (await handle.status()).state == "waiting"
        assert (await system.app.explain(handle)).cause == "lock"
    await system.run_until_idle()
    assert await system.result(handle) == 1


async def test_the_lock_of_a_dead_holder_ends_by_the_clock(server: str, system: System) -> None:
    """Nobody renews it: its time to live passes with the clock of the test."""
    its = Gate()
    its.open.set()
    system.dependency_overrides[gate] = lambda: its
    end = int((await system.app.broker.logical_now()).timestamp() + 30) * 1_000_000
    with redis.Redis.from_url(server) as client:
        client.set("{test}:lock:mutex:job:1", f"dead/1/1|{end}")
    handle = await Held().schedule()
    await system.run_until_idle()
    assert (await handle.status()).state == "waiting"
    await system.advance(31)
    await system.run_until_idle()
    assert await system.result(handle) == 1


async def test_time_does_not_go_back(system: System) -> None:
    """A negative step is refused."""
    with pytest.raises(ValueError, match="time does not go back"):
        await system.advance(-1)


@pytest.mark.parametrize("by", [timedelta.max, timedelta(days=80_000), 1e300])
async def test_time_does_not_go_beyond_what_is_counted(
    system: System, by: float | timedelta
) -> None:
    """Nothing has changed then."""
    before = await system.now()
    with pytest.raises(ValueError, match="after the year 2199"):
        await system.advance(by)
    assert await system.now() - before < timedelta(days=1)
    await system.advance(timedelta(days=36_500))
    handle = await Add(1, 1).schedule()
    await system.run_until_idle()
    assert await system.result(handle) == 2


async def test_two_systems_are_nested_or_refused(server: str) -> None:
    """Beside each other they would exchange their tasks."""

    async def open_another(namespace: str) -> int:
        async with System([Add], redis_url=server, namespace=namespace) as system:
            handle = await Add(3, 4).schedule()
            await system.run_until_idle()
            result: int = await system.result(handle)
            return result

    async with System([Add], redis_url=server, namespace="outer") as system:
        with pytest.raises(NotBoundError, match="inside the block of the first"):
            await asyncio.create_task(open_another("beside"))
        assert await open_another("inner") == 7
        await Add(1, 2).schedule()
        system.assert_submitted(Add, times=1)
    assert await asyncio.create_task(open_another("after")) == 7


async def test_the_leader_leads_on(system: System) -> None:
    """Its term survives each jump, and it does not take the jump back."""
    before = await system.app.leader()
    for _ in range(5):
        await system.advance(3600)
        await asyncio.sleep(0)
    await system.run_until_idle()
    after = await system.app.leader()
    assert before and after and before.term == after.term
    assert await system.now() - datetime.now(UTC) > timedelta(hours=4.9)
    assert await system.app.stores.events.last(5, kind="clock") == []


async def test_not_idle_says_what_runs(system: System) -> None:
    """Who waits in vain is told which task runs, and for how long."""
    its = Gate()
    system.dependency_overrides[gate] = lambda: its
    handle = await Held().schedule()
    await its.entered.wait()
    with pytest.raises(
        NotIdleError, match=rf"not idle after 0.2 s:\n  \w+:Held {handle}: running on"
    ):
        await system.run_until_idle(timeout=0.2)
    its.open.set()
    await system.run_until_idle()


async def test_what_can_never_run_is_explained(server: str) -> None:
    """Without a worker of its size a task does not get idle, and that is said at once."""
    async with System([Add], redis_url=server, sizes=[Size.SMALL]) as system:
        await Add(1, 2).schedule()
        with pytest.raises(NotIdleError, match=r"1 task can never run here:\n.*medium worker"):
            await system.run_until_idle()


async def test_a_pause_is_no_work(system: System) -> None:
    """What the test has paused stays queued until it is resumed."""
    await system.app.stores.controls.pause(["all"], "the test", "to see")
    handle = await Add(1, 2).schedule()
    await system.run_until_idle()
    assert (await handle.status()).state == "queued"
    await system.app.stores.controls.resume(["all"], "the test")
    await system.run_until_idle()
    assert await system.result(handle) == 3


async def test_submissions_are_told_apart(system: System) -> None:
    """By class, arguments and number; a known id is the same task."""
    await Add(1, 2).schedule(id="once", labels={"vo": "lhcb"})
    await Add(1, 2).schedule(id="once")
    await Add(1, 3).schedule()
    assert [item.task for item in system.submitted] == [Add(1, 2), Add(1, 3)]
    (found,) = system.assert_submitted(Add, a=1, b=2, times=1)
    assert (found.id, found.labels) == ("once", {"vo": "lhcb"})
    assert len(system.assert_submitted(Add, a=1)) == 2
    system.assert_not_submitted(Add, a=2)
    system.assert_not_submitted(Fails)


async def test_steps_of_workflows_are_submissions(system: System) -> None:
    """With values that are results of others, and those that steps add; the test waits for all."""
    flow = Workflow()
    number = flow.step(Add(1, 2))
    doubled = flow.step(Doubles.given(number), delay=60)
    run = await flow.submit()
    await system.run_until_idle()
    (found,) = system.assert_submitted(Doubles, number=number)
    assert str(found) == "Doubles(number=<step 0: Add>)"
    system.assert_submitted(Add, times=1)
    await system.advance(60)
    await system.run_until_idle()
    system.assert_submitted(Add, a=3, b=3, times=1)
    assert (await run.status()).state == "done"
    assert await run.result(doubled, timeout=0) == 3


async def test_a_wrong_expectation_is_explained(system: System) -> None:
    """The message names what was expected and all that was submitted instead."""
    await Limited(7).schedule(labels={"why": "test"})
    await Add(1, 2).schedule()
    await Add(1, 2).schedule()
    with pytest.raises(AssertionError) as wrong:
        system.assert_submitted(Add, a=5, times=1)
    assert str(wrong.value) == (
        "Add(a=5) was submitted never, not once\n"
        "these tasks were submitted:\n"
        "  Add(a=1, b=2) (twice)\n"
        "  Limited(number=7) labels={'why': 'test'}"
    )
    with pytest.raises(AssertionError, match=r"Add\(\) was submitted twice, not never"):
        system.assert_not_submitted(Add)


async def test_a_misspelt_expectation_is_none(system: System) -> None:
    """An argument or class that does not exist would never be submitted."""
    with pytest.raises(TypeError, match=r"Limited has no argument 'nmber'\. Did you mean number"):
        system.assert_not_submitted(Limited, nmber=1)
    with pytest.raises(RegistrationError, match="Hourly is not registered"):
        system.assert_not_submitted(Hourly)


async def test_what_tasks_submit_counts_once_it_is_submitted(server: str) -> None:
    """Children and the callback of a group do; what a failed attempt would have committed not."""

    class Spawns(BaseTask):
        async def execute(self, spawn: CallbackSpawner) -> None:
            await spawn([Add(1, 1), Add(2, 2)], Add(3, 3), on_failure=Add(4, 4))

    class Breaks(BaseTask):
        async def execute(self) -> None:
            context().after_commit(Add(5, 5))
            raise ValueError

    async with System([Add, Spawns, Breaks], redis_url=server) as system:
        await Spawns().schedule()
        await Breaks().schedule()
        await system.run_until_idle()
        added = [item.task for item in system.submitted if isinstance(item.task, Add)]
        assert added == [Add(1, 1), Add(2, 2), Add(3, 3)]


async def test_deadlines_to_start_go_by_the_clock(server: str) -> None:
    """Nobody starts it, so it expires when the clock says; before, it owns its keys."""
    async with System([Add], redis_url=server, sizes=[]) as system:
        handle = await Add(1, 2).schedule(start_by=60, unique=Unique.until_done())
        system.assert_clean()
        await system.advance(59)
        assert (await handle.status()).state == "queued"
        await system.advance(2)
        await system.run_until_idle()
        assert (await handle.status()).state == "expired"


async def test_a_leaked_key_fails_the_test(server: str) -> None:
    """A key that nobody owns is named when the system closes; an unfinished task owns its own."""
    with pytest.raises(AssertionError, match=r"expire nor belong.*\n  \{test\}:stray$"):
        async with System([Add], redis_url=server) as system:
            await Add(1, 2).schedule(at_time=datetime(2040, 1, 1, tzinfo=UTC))
            await system.run_until_idle()
            system.assert_clean()
            with redis.Redis.from_url(server) as client:
                client.set("{test}:stray", 1)


async def test_what_nobody_provides_is_found_at_once(server: str) -> None:
    """A dependency that cannot be provided keeps the system from opening."""

    class Needs(BaseTask):
        async def execute(self, what: int) -> None: ...

    with pytest.raises(DependencyError, match="what"):
        async with System([Needs], redis_url=server):
            raise NotImplementedError


async def test_configuration_holds(server: str) -> None:
    """It may be a mapping: limits, entries, overrides."""
    config = {"common": {"tasks": {"Fails": {"retry-policy": {"class": "NoRetry"}}}}}
    async with System([Fails], redis_url=server, config=config) as system:
        handle = await Fails().schedule()
        await system.run_until_idle()
        assert (await handle.status()).state == "dead"
        assert len(await system.dead_letters()) == 1


async def test_plain_functions_and_overrides_work(server: str) -> None:
    """A ``def`` task runs in a thread, with replaced dependencies."""

    class Plain(BaseTask):
        size = Size.LARGE

        def execute(self, its: Annotated[Gate, Depends(gate)]) -> tuple[bool, bool]:
            return threading.current_thread() is threading.main_thread(), its.open.is_set()

    async with System([Plain], redis_url=server, overrides={gate: Gate}):
        assert await (await Plain().schedule()).result(timeout=WAIT_SECONDS) == (False, False)


async def test_what_runs_at_the_end_is_cancelled(server: str) -> None:
    """A task that nobody waits for does not outlive the test, nor hold it up."""
    its = Gate()
    async with System([Held], redis_url=server, overrides={gate: lambda: its}):
        await Held().schedule()
        await its.entered.wait()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@dataclass
class Kept(BaseTask):
    durable = True

    async def execute(self) -> str:
        return "kept"


async def test_durable_tasks_are_handed_over(server: str) -> None:
    """One that was submitted within a transaction is work, as soon as that is committed."""
    async with System([Kept], redis_url=server) as system:
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(system.app.settings.sql_url())
        async with engine.begin() as connection:
            handle = await Kept().schedule(transaction=connection)
        await engine.dispose()
        await system.run_until_idle()
        assert await system.result(handle, timeout=0.1) == "kept"


async def test_start_up_hooks_are_told_when_the_epoch_began(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the system was opened, so that they find what is older."""
    monkeypatch.setattr("nonet.tasks.hooks._registered", {})
    told: list[datetime] = []

    @startup_hook
    async def note(epoch: Epoch) -> None:
        told.append(epoch.began)

    before = datetime.now(UTC)
    async with System(redis_url=server):
        (began,) = told
    assert before <= began <= datetime.now(UTC)


@pytest.mark.parametrize("given", [Add, "Add", None])
async def test_what_is_no_task_is_refused_by_name(system: System, given: Any) -> None:
    """A class, a text and nothing: the message says what to give instead."""
    with pytest.raises(TypeError, match=r"^submit: .*: pass an instance"):
        await system.submit(given)


async def test_what_is_open_says_where(server: str) -> None:
    """A system and its application name their namespace, and whether they are open."""
    async with System([Add], redis_url=server) as opened:
        assert repr(opened) == "System('test', open)"
        assert repr(opened.app) == f"Nonet('test' on {server}, open)"
        assert repr(opened.app.client) == "Client('test')"
    assert repr(opened) == "System('test', closed)"
