"""The bases that authors subclass: defaults, locks, scheduling and the context of an attempt."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from clients import client_of

from nonet import (
    BaseTask,
    ConcurrencyLimiter,
    LockedObjectType,
    MutexLock,
    NoRetry,
    NotBoundError,
    PeriodicBaseTask,
    PeriodicVoAwareBaseTask,
    Priority,
    RateLimiter,
    Size,
    TaskContext,
    context,
)
from nonet.base.errors import InvalidArgumentsError, LeaseLostError
from nonet.stores.queue.broker import Broker
from nonet.tasks.execution import enter_context, running_context
from nonet.tasks.locks import BaseLock, encode_locks
from nonet.tasks.registry import Registry
from nonet.tasks.task import current_submitter, declared_locks, submitters


@dataclass
class Simple(BaseTask):
    number: int = 0

    async def execute(self) -> None: ...


class Sweep(PeriodicBaseTask):
    async def execute(self) -> None: ...


class VoSweep(PeriodicVoAwareBaseTask):
    async def execute(self) -> None: ...


@dataclass
class RemoveFile(BaseTask):
    """As the decision record has it: a method that adds to the property of its base."""

    storage_element: str
    lfn: str

    def execution_locks(self) -> list[BaseLock]:  # type: ignore[override]  # both are accepted
        return [
            *super().execution_locks,
            MutexLock(LockedObjectType.JOB, self.lfn),
            ConcurrencyLimiter(LockedObjectType.TASK, self.storage_element, "RemoveFile", limit=2),
        ]


class RemoveFileByProperty(RemoveFile):
    @property
    def execution_locks(self) -> list[BaseLock]:  # type: ignore[override]
        return super().execution_locks()


def test_defaults() -> None:
    """A class that says nothing runs at normal priority, medium, once."""
    assert (BaseTask.priority, BaseTask.size) == (Priority.NORMAL, Size.MEDIUM)
    assert isinstance(BaseTask.retry_policy, NoRetry)
    assert BaseTask.dlq_eligible is False
    assert PeriodicBaseTask._enabled is True
    assert PeriodicBaseTask._schedule is PeriodicBaseTask.default_schedule is None
    assert PeriodicBaseTask.validate_config([]) is None  # type: ignore[func-returns-value]


def test_names_of_priorities_and_sizes() -> None:
    """They are text: part of stream names, labels and configuration."""
    assert [*Priority] == ["realtime", "normal", "background"]
    assert [*Size] == ["small", "medium", "large"]


@pytest.mark.parametrize(
    ("task", "keys"),
    [
        (Simple(), ["limiter:rate:task:Simple", "limiter:conc:task:Simple"]),
        (Sweep(), ["lock:mutex:task:Sweep"]),
        (VoSweep(vo="lhcb"), ["lock:mutex:task:VoSweep:lhcb"]),
        *[
            (
                cls("CERN-DST", "/a"),
                [
                    f"limiter:rate:task:{cls.__name__}",
                    f"limiter:conc:task:{cls.__name__}",
                    "lock:mutex:job:/a",
                    "limiter:conc:task:CERN-DST:RemoveFile",
                ],
            )
            for cls in (RemoveFile, RemoveFileByProperty)
        ],
    ],
)
def test_declared_locks(task: BaseTask, keys: list[str]) -> None:
    """Locks may be a property or a method, and build on those of the base."""
    assert [lock.redis_key for lock in declared_locks(task)] == keys


def test_default_limiters_are_off() -> None:
    """A task without locks of its own waits for nothing until something is configured."""
    first, second = declared_locks(Simple())
    assert isinstance(first, RateLimiter)
    assert isinstance(second, ConcurrencyLimiter)
    assert encode_locks([first, second], task="Simple") == ""


def test_vo_aware_attributes_are_set() -> None:
    """The base takes what a subclass hands up, as the decision record does."""
    task = PeriodicVoAwareBaseTask(vo="lhcb", ce_regex=".*")
    assert vars(task)["ce_regex"] == ".*"
    with pytest.raises(TypeError, match="vo"):
        VoSweep()  # type: ignore[call-arg]


class Recorder:
    """A submitter that remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[BaseTask, dict[str, Any]]] = []

    async def submit(self, task: BaseTask, **options: Any) -> str:
        self.calls.append((task, options))
        return "handle"


async def test_schedule_needs_an_open_application() -> None:
    """Outside of one the error says what to write."""
    with pytest.raises(NotBoundError, match="async with"):
        await Simple().schedule()


async def test_schedule_goes_to_the_application_that_opened_last() -> None:
    """All its options are passed on, and closing gives the place back."""
    outer, inner = Recorder(), Recorder()
    task, options = Simple(1), {"at_time": datetime(2026, 1, 1, tzinfo=UTC), "unique": None}
    submitters.append(outer)
    submitters.append(inner)
    try:
        assert await task.schedule(**options) == "handle"
        submitters.remove(inner)
        await task.schedule()
        assert current_submitter() is outer
    finally:
        submitters.remove(outer)
    assert (inner.calls, outer.calls) == ([(task, options)], [(task, {})])


def make_context() -> TaskContext:
    return TaskContext("id", "files:Audit", 2, 7, {"vo": "lhcb"})


def test_there_is_no_context_outside_of_a_task() -> None:
    """Asking for it says so; the framework can ask whether there is one."""
    assert running_context() is None
    with pytest.raises(LookupError, match="inside a running task"):
        context()


async def test_each_attempt_has_its_own_context() -> None:
    """Attempts that share a loop do not see each other's."""

    async def attempt(value: TaskContext) -> TaskContext:
        enter_context(value)
        await asyncio.sleep(0)
        return context()

    one, other = make_context(), make_context()
    assert await asyncio.gather(attempt(one), attempt(other)) == [one, other]
    assert running_context() is None


def test_a_lost_lease_raises_from_then_on() -> None:
    """The first reason is kept."""
    value = make_context()
    value.ensure_lease()
    value.lose_lease("taken away")
    value.lose_lease("late")
    for _ in range(2):
        with pytest.raises(LeaseLostError, match=r"task id \(files:Audit, attempt 2\): taken away"):
            value.ensure_lease()


async def test_only_a_callback_can_read_its_group() -> None:
    """Elsewhere there is no group, and the error says so."""
    value = make_context()
    with pytest.raises(LookupError, match="not the callback of a group"):
        await value.group_results()

    async def read(group: str) -> list[str]:
        return [group]

    value.group = "g"
    value.read_group_with(read)
    assert await value.group_results() == ["g"]


def test_groups_of_an_attempt_are_numbered() -> None:
    """A re-run counts the same, so that it finds the groups of the run before."""
    first, again = make_context(), make_context()
    assert [first.next_spawn(), first.next_spawn()] == [1, 2]
    assert again.next_spawn() == 1


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({1: "x"}, "names must be printable text"),
        ({"\udce9": "x"}, "names must be printable text"),
        ({"a\nb": "x"}, "names must be printable text"),
        ({"a": object()}, "value is a object, which cannot be serialised"),
        ({"priority": "urgent"}, "'urgent' is not a valid Priority"),
        ({"size": "tiny"}, r"'tiny' is not a valid Size \('small', 'medium', 'large'\)"),
    ],
)
async def test_labels_that_do_not_fit_are_refused(labels: dict[Any, Any], reason: str) -> None:
    """Before anything is sent: nobody answers at this address."""
    registry = Registry()
    registry.add(Simple, "tests")
    options = {"lock_ttl": 30.0, "lease": 45.0, "result_ttl": 1.0, "dedup_ttl": 60.0}
    broker = Broker("redis://127.0.0.1:1", "test", **options)
    client = client_of(broker, registry)
    with pytest.raises(InvalidArgumentsError, match=rf"tests:Simple: labels?: .*{reason}"):
        await client.submit(Simple(), labels=labels)
    await client.aclose()
    await broker.aclose()


async def test_more_locks_than_a_message_may_have_are_refused() -> None:
    """Before anything is sent: a worker would not get them either."""
    registry = Registry()

    class Greedy(BaseTask):
        @property
        def execution_locks(self) -> list[Any]:
            return [MutexLock("job", number) for number in range(100)]

        async def execute(self) -> None: ...

    registry.add(Greedy, "tests")
    options = {"lock_ttl": 30.0, "lease": 45.0, "result_ttl": 1.0, "dedup_ttl": 60.0}
    broker = Broker("redis://127.0.0.1:1", "test", **options)
    client = client_of(broker, registry)
    with pytest.raises(InvalidArgumentsError, match=r"execution_locks: the locks take \d+ bytes"):
        client.envelopes.prepare(Greedy())
    await client.aclose()
    await broker.aclose()


@pytest.mark.parametrize("given", [None, MutexLock("job", 1), [None], "job"])
def test_locks_that_are_no_list_of_locks_are_refused(given: Any) -> None:
    """What execution_locks gives is checked, and shown."""

    class Odd(BaseTask):
        @property
        def execution_locks(self) -> Any:
            return given

        async def execute(self) -> None: ...

    with pytest.raises(ValueError, match="must return a list of locks"):
        declared_locks(Odd())


def test_locks_may_come_from_a_generator() -> None:
    """`execution_locks` that yields its locks declares them all."""

    class Yielding(BaseTask):
        @property
        def execution_locks(self) -> Any:
            yield MutexLock("job", 1)
            yield MutexLock("job", 2)

        async def execute(self) -> None: ...

    assert [lock.key for lock in declared_locks(Yielding())] == [1, 2]
