"""A function becomes a task class like any other."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from tasks.function_tasks import Database, add, between, clean, nightly, resize, shout

from nonet import (
    BaseTask,
    ConcurrencyLimiter,
    ExponentialBackoff,
    FunctionTask,
    InvalidArgumentsError,
    Isolation,
    LockedObjectType,
    MutexLock,
    Priority,
    RateLimiter,
    Size,
    task,
)
from nonet.tasks.registry import Registry, locked_types
from nonet.testing import System

MODULE = "tasks.function_tasks"


@pytest.fixture
def registry() -> Registry:
    found = Registry()
    found.add_module(MODULE)
    return found


def test_functions_of_a_module_are_registered_by_name(registry: Registry) -> None:
    assert [item.name for item in registry] == [
        f"function_tasks:{name}"
        for name in ("add", "between", "clean", "nightly", "resize", "shout")
    ]
    assert registry.get("add").location == f"{MODULE}.add"
    assert registry.warnings() == []


def test_a_function_becomes_a_class_with_its_name_and_signature() -> None:
    assert issubclass(add, BaseTask) and issubclass(add, FunctionTask)
    assert (add.__name__, add.__module__, add.__doc__) == ("add", MODULE, "Add two numbers.")
    assert str(inspect.signature(add)) == "(a: 'int', b: 'int' = 2) -> 'int'"


def test_options_become_class_attributes() -> None:
    assert resize.isolation is Isolation.CHILD
    assert resize.retry_policy == ExponentialBackoff(base_delay_seconds=0, max_retries=2)
    assert (resize.dlq_eligible, resize.start_by) == (True, 60)
    assert (add.size, shout.priority, nightly.size) == (Size.SMALL, Priority.REALTIME, Size.MEDIUM)


def test_injected_parameters_and_defaults_are_not_sent(registry: Registry) -> None:
    names = {item.cls: item.arguments.names for item in registry}
    assert names[add] == ["a", "b"]
    assert names[between] == ["first", "last"]
    assert names[resize] == ["path", "size", "vo"]
    assert registry.of(add(1)).arguments.pack(add(1)) == {"a": 1}
    assert registry.of(clean()).arguments.pack(clean(a=1)) == {"a": 1}


def test_arguments_are_validated_as_those_of_a_class(registry: Registry) -> None:
    with pytest.raises(InvalidArgumentsError, match="function_tasks:add: a: Input should be"):
        registry.of(add(1)).arguments.pack(add("x"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"argument: 'a'; for the .* write add.given\(…=PREV"):
        add()  # type: ignore[call-arg]


def test_arguments_become_attributes_unless_the_class_has_the_name() -> None:
    made = resize("/a.png", 640)
    assert (vars(made)["path"], vars(made)["vo"]) == ("/a.png", "lhcb")
    assert made.size is Size.SMALL
    assert repr(made) == "resize(path='/a.png', size=640, vo='lhcb')"
    assert made == resize(size=640, path="/a.png")
    assert made != resize("/a.png", 641) and made != add(1)


def test_locks_are_computed_from_the_arguments(registry: Registry) -> None:
    own = [RateLimiter("task", "resize"), ConcurrencyLimiter("task", "resize")]
    mutex = MutexLock(LockedObjectType.JOB, "/a.png")
    assert _keys(resize("/a.png", 1)) == [lock.redis_key for lock in [*own, mutex]]
    assert _keys(clean())[-1] == MutexLock(LockedObjectType.JOB, "all").redis_key
    assert "job" in locked_types(resize)
    assert _keys(nightly()) == [MutexLock("task", "nightly").redis_key]


def _keys(made: BaseTask) -> list[str]:
    return [lock.redis_key for lock in made.execution_locks]


async def test_execute_can_be_called_with_what_would_be_injected() -> None:
    assert await add(1).execute() == 3
    database = Database()
    assert resize("/a.png", 7).execute(database) == resize("/a.png", size=7).execute(db=database)
    made = between(1, last=2)  # type: ignore[call-arg]  # a checker sees what is injected, too
    context: Any = type("Context", (), {"attempt": 1})
    assert await made.execute(database, context) == [1, "Database", False, 2, 1]


@pytest.mark.server
async def test_a_function_runs_in_a_loop_a_thread_or_a_child_process(redis_url: str) -> None:
    async with System(redis_url=redis_url, tasks=[add, shout, between, resize]) as system:
        handles = [
            await add(1, b=5).schedule(),
            await shout("a").schedule(),
            await between(1, last=2).schedule(),  # type: ignore[call-arg]
            await resize("/a.png", 640).schedule(),
        ]
        await system.run_until_idle()
        found = [await handle.result() for handle in handles]
        expected = [6, ["A by function_tasks:shout"], [1, "Database", False, 2, 1], 640]
        assert found == expected
        system.assert_submitted(resize, path="/a.png", size=640)


def _generator() -> Any:
    yield 1


class _Class:
    def method(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_Class, "is a class: derive it from BaseTask"),
        (3, "3 is not a function"),
        (lambda: None, "is not a function"),
        (_Class.method, "_Class.method has a parameter self: use a function"),
        (_generator, "_generator is a generator: return the result"),
    ],
)
def test_only_a_function_can_be_decorated(function: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        task(function)


async def _plain(path: str) -> None: ...


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"prioriti": 1}, "there is no option 'prioriti'. Did you mean priority?"),
        ({"max_retries": 1}, r"Write retry_policy = ExponentialBackoff\(max_retries=…\)"),
        ({"rate_limit": "10/m"}, "Write a RateLimiter among its locks"),
        ({"track_started": True}, "no option 'track_started'. There are cpu_limit, dlq_eligible,"),
        ({"locks": MutexLock("job", 1)}, "locks is one lock: put it into a list"),
        (
            {"locks": lambda job: []},
            "locks takes job, which is not an argument of the task: it has path",
        ),
    ],
)
def test_an_unknown_option_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        task(**options)(_plain)
