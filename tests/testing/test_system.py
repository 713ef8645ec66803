"""`System`: a whole system in one test, and its clock."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
import redis
from waits import WAIT_SECONDS, until

from nonet import (
    BaseTask,
    CallbackSpawner,
    CronSchedule,
    Depends,
    ExponentialBackoff,
    LockedObjectType,
    MutexLock,
    NotBoundError,
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


class Late(Hourly):
    _jitter = 1800


class Gate:
    def __init__(self) -> None:
        self.open, self.entered = asyncio.Event(), asyncio.Event()


def gate() -> Gate:
    raise NotImplementedError


@dataclass
class Held(BaseTask):
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
    with open_embedded(tmp_path_factory.mktemp("server")) as opened:
        yield opened.url


@pytest.fixture
async def system(server: str) -> AsyncIterator[System]:
    tasks = [Add, Fails, Held, Limited, Doubles]
    async with System(tasks, redis_url=server) as opened:
        yield opened


async def test_there_is_a_worker_of_each_size(system: System) -> None:
    handles = [
        await Add(1, number).schedule(labels={"size": size}) for number, size in enumerate(Size)
    ]
    await system.run_until_idle()
    assert [await system.result(handle) for handle in handles] == [1, 2, 3]


async def test_a_system_without_url_has_its_own_redis_until_it_closes() -> None:
    """It has lost no data, so no lock is withheld."""
    its = Gate()
    its.open.set()
    async with System([Held], overrides={gate: lambda: its}) as system:
        url = system.app.broker.url
        assert await (await system.submit(Held())).result(timeout=WAIT_SECONDS) == 1
    with redis.Redis.from_url(url) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    with pytest.raises(NotBoundError):
        await Add(1, 1).schedule()


async def test_the_namespace_is_deleted_even_if_the_test_fails(server: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with System([Add], redis_url=server, namespace="gone"):
            await Add(1, 2).schedule(at_time=datetime(2040, 1, 1, tzinfo=UTC))
            raise ZeroDivisionError
    with redis.Redis.from_url(server) as client:
        assert list(client.scan_iter("{gone}:*")) == []


class Plain(BaseTask):
    size = Size.LARGE
    encrypted = True

    def execute(self, its: Annotated[Gate, Depends(gate)]) -> tuple[bool, bool]:
        return threading.current_thread() is threading.main_thread(), its.open.is_set()


async def test_settings_configuration_and_overrides_are_arguments(
    monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    """The environment of the tests has no influence."""
    monkeypatch.setenv("NONET_NAMESPACE", "production")
    monkeypatch.setenv("NONET_NONSENSE", "1")
    options: dict[str, Any] = {
        "encryption_keys": f"test:{base64.b64encode(b'k' * 32).decode()}",
        "config": {"common": {"tasks": {"Fails": {"retry-policy": {"class": "NoRetry"}}}}},
        "overrides": {gate: Gate},
    }
    async with System([Plain, Fails], redis_url=server, **options) as system:
        assert system.app.settings.namespace == "test"
        plain, failing = await Plain().schedule(), await Fails().schedule()
        await system.run_until_idle()
        assert await system.result(plain) == (False, False)
        assert (await failing.status()).state == "dead"
        assert len(await system.dead_letters()) == 1
    async with System([Plain], redis_url=server, overrides={gate: Gate}) as system:
        with pytest.raises(ConfigurationError, match="NONET_ENCRYPTION_KEYS=ID:KEY"):
            await Plain().schedule()


async def test_delays_pass_by_the_clock_of_the_test(system: System) -> None:
    """A delay counts from the submission, also after a jump."""
    for _ in range(2):
        handle = await Add(1, 2).schedule(at_time=datetime.now(UTC) + timedelta(days=1))
        for step, state in ((0, "delayed"), (23 * 3600, "delayed"), (3601, "done")):
            await system.advance(step)
            await system.run_until_idle()
            assert (await handle.status()).state == state


async def test_retries_wait_for_the_clock_of_the_test(system: System) -> None:
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
    """Idle means that all of them have ended; with a grace, old ones are left out."""
    async with System([Hourly, Add], redis_url=server, now=HALF_PAST) as system:
        for hours in range(6, 25, 6):
            await system.advance(timedelta(hours=6))
            await system.run_until_idle()
            found = system.assert_submitted(Hourly, times=hours)
        instants = [datetime.fromisoformat(item.labels["occurrence"]) for item in found]
        hour = HALF_PAST.replace(minute=0)
        assert instants == [hour + timedelta(hours=number) for number in range(1, 25)]
        system.assert_submitted(Add, a=1, times=24)
    async with System([Hourly, Add], redis_url=server, now=HALF_PAST, misfire_grace=60) as system:
        await system.advance(timedelta(days=1))
        await system.run_until_idle()
        system.assert_submitted(Hourly, times=1)


async def test_jitter_passes_by_the_clock_of_the_test(server: str) -> None:
    async with System([Late, Add], redis_url=server, now=HALF_PAST) as system:
        await system.advance(1801)
        await system.run_until_idle()
        (late,) = system.assert_submitted(Late, times=1)
        assert (await system.app.status(late.id)).state == "delayed"
        await system.advance(1800)
        await system.run_until_idle()
        assert (await system.app.status(late.id)).state == "done"


async def test_start_up_hooks_run_with_the_installed_tasks_only(server: str) -> None:
    called: list[str] = []
    startup_hook(lambda: called.append("once"))
    async with System([Add], redis_url=server) as system:
        await Add(1, 2).schedule()
        await system.run_until_idle()
        assert called == []
    async with System(redis_url=server):
        await until(lambda: called == ["once"], "the hook has run")


async def test_rate_limits_pass_by_the_clock_of_the_test(system: System) -> None:
    handles = [await Limited(number).schedule() for number in range(3)]
    await system.run_until_idle()
    states = [(await handle.status()).state for handle in handles]
    assert sorted(states) == ["done", "done", "waiting"]
    await system.advance(3601)
    await system.run_until_idle()
    assert [(await handle.status()).state for handle in handles] == ["done"] * 3


async def test_locks_of_tasks_and_of_the_test_survive_a_jump(system: System) -> None:
    """What waits for them is no work."""
    its = Gate()
    system.dependency_overrides[gate] = lambda: its
    async with system.app.hold(MutexLock(JOB, 1)):
        first = await Held(1).schedule()
        await system.advance(timedelta(days=1))
        await system.run_until_idle()
        assert (await first.status()).state == "waiting"
        assert (await system.app.explain(first)).cause == "lock"
    second = await Held(2).schedule()
    await its.entered.wait()
    for _ in range(3):
        await system.advance(timedelta(days=400))
    states = [(await handle.status()).state for handle in (first, second)]
    assert states == ["running", "waiting"]
    its.open.set()
    await system.run_until_idle()
    assert [await system.result(first), await system.result(second)] == [1, 2]
    assert (await first.status()).attempt == 1


@pytest.mark.parametrize(
    ("by", "problem"),
    [
        (-1, "time does not go back"),
        *((by, "after the year 2199") for by in (timedelta.max, timedelta(days=80_000), 1e300)),
    ],
)
async def test_an_impossible_jump_is_refused_without_effect(
    system: System, by: float | timedelta, problem: str
) -> None:
    before = await system.now()
    with pytest.raises(ValueError, match=problem):
        await system.advance(by)
    assert await system.now() - before < timedelta(days=1)


async def test_two_systems_are_nested_or_refused(server: str) -> None:
    """Beside each other they would exchange their tasks."""

    async def open_another(namespace: str) -> int:
        async with System([Add], redis_url=server, namespace=namespace) as system:
            handle = await Add(3, 4).schedule()
            await system.run_until_idle()
            return await system.result(handle)  # type: ignore[no-any-return]

    async with System([Add], redis_url=server, namespace="outer") as system:
        with pytest.raises(NotBoundError, match="inside the block of the first"):
            await asyncio.create_task(open_another("beside"))
        assert await open_another("inner") == 7
        await Add(1, 2).schedule()
        system.assert_submitted(Add, times=1)
    assert await asyncio.create_task(open_another("after")) == 7


async def test_the_leader_survives_a_jump(system: System) -> None:
    before = await system.app.leader()
    for _ in range(5):
        await system.advance(3600)
        await asyncio.sleep(0)
    await system.run_until_idle()
    after = await system.app.leader()
    assert before and after and before.term == after.term
    assert await system.now() - datetime.now(UTC) > timedelta(hours=4.9)
    assert await system.app.stores.events.last(5, kind="clock") == []


async def test_the_error_of_a_busy_system_names_what_runs(system: System) -> None:
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


async def test_a_long_step_over_a_short_schedule_is_explained(server: str) -> None:
    """Each occurrence on the way is submitted, which may take longer than a test waits."""
    async with System([Hourly], redis_url=server, sizes=[]) as system:
        await system.advance(timedelta(days=100))
        with pytest.raises(NotIdleError, match=r"not idle after 0 s:\n  \w+:Hourly: [\d,]+ occurr"):
            await system.run_until_idle(timeout=0)


async def test_a_task_that_can_never_run_is_explained_at_once(server: str) -> None:
    async with System([Add], redis_url=server, sizes=[Size.SMALL]) as system:
        await Add(1, 2).schedule()
        with pytest.raises(NotIdleError, match=r"1 task can never run here:\n.*medium worker"):
            await system.run_until_idle()


async def test_a_paused_task_is_no_work(system: System) -> None:
    await system.app.stores.controls.pause(["all"], "the test", "to see")
    handle = await Add(1, 2).schedule()
    await system.run_until_idle()
    assert (await handle.status()).state == "queued"
    await system.app.stores.controls.resume(["all"], "the test")
    await system.run_until_idle()
    assert await system.result(handle) == 3


async def test_submissions_are_compared_by_class_and_arguments(system: System) -> None:
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


async def test_a_misspelt_expectation_is_refused(system: System) -> None:
    with pytest.raises(TypeError, match=r"^submit: .*: pass an instance"):
        await system.submit(Add)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Limited has no argument 'nmber'\. Did you mean number"):
        system.assert_not_submitted(Limited, nmber=1)
    with pytest.raises(RegistrationError, match="Hourly is not registered"):
        system.assert_not_submitted(Hourly)


async def test_submissions_of_tasks_count_once_committed(server: str) -> None:
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


async def test_deadlines_to_start_pass_by_the_clock_of_the_test(server: str) -> None:
    async with System([Add], redis_url=server, sizes=[]) as system:
        handle = await Add(1, 2).schedule(start_by=60, unique=Unique.until_done())
        system.assert_clean()
        await system.advance(59)
        assert (await handle.status()).state == "queued"
        await system.advance(2)
        await system.run_until_idle()
        assert (await handle.status()).state == "expired"


async def test_a_leaked_key_fails_the_test(server: str) -> None:
    with pytest.raises(AssertionError, match=r"expire nor belong.*\n  \{test\}:stray$"):
        async with System([Add], redis_url=server) as system:
            await Add(1, 2).schedule(at_time=datetime(2040, 1, 1, tzinfo=UTC))
            await system.run_until_idle()
            system.assert_clean()
            with redis.Redis.from_url(server) as client:
                client.set("{test}:stray", 1)


async def test_running_tasks_are_cancelled_at_the_end(server: str) -> None:
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


async def test_durable_tasks_are_work_once_committed(server: str) -> None:
    async with System([Kept], redis_url=server) as system:
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(system.app.settings.sql_url())
        async with engine.begin() as connection:
            handle = await Kept().schedule(transaction=connection)
        await engine.dispose()
        await system.run_until_idle()
        assert await system.result(handle, timeout=0.1) == "kept"
