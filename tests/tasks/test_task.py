"""The bases that authors subclass: defaults, locks, scheduling and the context of an attempt."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from clients import broker_at, client_of

from nonet import (
    BaseTask,
    ConcurrencyLimiter,
    LockedObjectType,
    MutexLock,
    PeriodicBaseTask,
    PeriodicVoAwareBaseTask,
    TaskContext,
    context,
)
from nonet.base.errors import InvalidArgumentsError, LeaseLostError
from nonet.tasks.execution import enter_context, running_context
from nonet.tasks.locks import BaseLock
from nonet.tasks.registry import Registry
from nonet.tasks.task import declared_locks


@dataclass
class Simple(BaseTask):
    number: int = 0

    async def execute(self) -> None: ...


class Greedy(Simple):
    @property
    def execution_locks(self) -> list[Any]:
        return [MutexLock("job", number) for number in range(100)]


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


class Yielding(RemoveFile):
    @property
    def execution_locks(self) -> Any:  # type: ignore[override]
        yield from super().execution_locks()


class RemoveFileByProperty(RemoveFile):
    @property
    def execution_locks(self) -> list[BaseLock]:  # type: ignore[override]
        return super().execution_locks()


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
            for cls in (RemoveFile, RemoveFileByProperty, Yielding)
        ],
    ],
)
def test_locks_are_a_property_or_a_method_and_add_to_those_of_the_base(
    task: BaseTask, keys: list[str]
) -> None:
    assert [lock.redis_key for lock in declared_locks(task)] == keys


def test_the_vo_aware_base_sets_the_attributes_it_gets() -> None:
    task = PeriodicVoAwareBaseTask(vo="lhcb", ce_regex=".*")
    assert vars(task)["ce_regex"] == ".*"
    with pytest.raises(TypeError, match="vo"):
        VoSweep()  # type: ignore[call-arg]


def make_context() -> TaskContext:
    return TaskContext("id", "files:Audit", 2, 7, {"vo": "lhcb"})


def test_context_fails_outside_of_a_task() -> None:
    assert running_context() is None
    with pytest.raises(LookupError, match="inside a running task"):
        context()


async def test_each_attempt_has_its_own_context() -> None:
    async def attempt(value: TaskContext) -> TaskContext:
        enter_context(value)
        await asyncio.sleep(0)
        return context()

    one, other = make_context(), make_context()
    assert await asyncio.gather(attempt(one), attempt(other)) == [one, other]
    assert running_context() is None


def test_ensure_lease_raises_with_the_first_reason_of_the_loss() -> None:
    value = make_context()
    value.ensure_lease()
    value.lose_lease("taken away")
    value.lose_lease("late")
    for _ in range(2):
        with pytest.raises(LeaseLostError, match=r"task id \(files:Audit, attempt 2\): taken away"):
            value.ensure_lease()


async def test_only_a_callback_can_read_its_group() -> None:
    value = make_context()
    with pytest.raises(LookupError, match="not the callback of a group"):
        await value.group_results()

    async def read(group: str) -> list[str]:
        return [group]

    value.group = "g"
    value.read_group_with(read)
    assert await value.group_results() == ["g"]


def test_groups_of_a_repeated_attempt_have_the_same_numbers() -> None:
    first, again = make_context(), make_context()
    assert [first.next_spawn(), first.next_spawn()] == [1, 2]
    assert again.next_spawn() == 1


@pytest.mark.parametrize(
    ("task", "labels", "reason"),
    [
        (Simple(), {1: "x"}, "labels: names must be printable text"),
        (Simple(), {"\udce9": "x"}, "labels: names must be printable text"),
        (Simple(), {"a\nb": "x"}, "labels: names must be printable text"),
        (Simple(), {"a": object()}, "value is a object, which cannot be serialised"),
        (Simple(), {"priority": "urgent"}, "'urgent' is not a valid Priority"),
        (Simple(), {"size": "tiny"}, r"'tiny' is not a valid Size \('small', 'medium', 'large'\)"),
        (Greedy(), {}, r"locks: the locks take \d+ bytes"),
    ],
)
async def test_a_task_that_no_message_can_carry_is_refused_before_it_is_sent(
    task: BaseTask, labels: dict[Any, Any], reason: str
) -> None:
    registry = Registry()
    registry.add(type(task), "tests")
    broker = broker_at("redis://127.0.0.1:1", message_limit=1024)  # no server listens there
    client = client_of(broker, registry)
    with pytest.raises(InvalidArgumentsError, match=rf"tests:{type(task).__name__}: .*{reason}"):
        await client.submit(task, labels=labels)
    await client.aclose()
    await broker.aclose()


@pytest.mark.parametrize("given", [None, MutexLock("job", 1), [None], "job"])
def test_execution_locks_must_be_a_list_of_locks(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^execution_locks must return a list of locks"):
        declared_locks(type("Odd", (Simple,), {"execution_locks": given})())
