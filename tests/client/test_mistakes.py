"""What programs give Nonet by mistake is refused at once: what it was, and what to give instead."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from nonet import (
    BaseTask,
    CallbackSpawner,
    ConflictError,
    InvalidArgumentsError,
    LockedObjectType,
    MutexLock,
    Nonet,
    NotBoundError,
    RegistrationError,
    Size,
    UnknownTaskError,
    register_dependency,
    register_locked_object_type,
)
from nonet.config.settings import plain_settings
from nonet.testing import System, run_inline


@dataclass
class Add(BaseTask):
    a: int

    size = Size.SMALL

    async def execute(self) -> int:
        return self.a


@dataclass
class Unregistered(BaseTask):
    async def execute(self) -> None: ...


def closed(redis_url: str) -> Nonet:
    """An application that knows `Add`."""
    made = Nonet(plain_settings(redis_url=redis_url, namespace="test"), load_tasks=False)
    made.registry.add(Add, "sums")
    return made


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[Nonet]:
    """An open application, beside which no worker runs."""
    async with closed(redis_url) as opened:
        yield opened


Call = Callable[[Nonet], Awaitable[Any]]


async def refused(awaited: Awaitable[Any], kind: type[Exception], text: str) -> None:
    """Awaiting it raises an error with this text in its message."""
    with pytest.raises(kind, match=re.escape(text)):
        await awaited


LATER = datetime(2099, 1, 1, tzinfo=UTC)
DELAYS = [-1, math.nan, math.inf, True, "60", timedelta(-1), 4e8]
SUBMITTED: list[tuple[dict[str, Any], str]] = [
    *(({"id": given}, f"id: {given!r} must be text") for given in (UUID(int=7), 3)),
    *(
        ({"at_time": given}, f"at_time: {given!r} must be a datetime")
        for given in (3, 0, "2026-07-01", date(2026, 7, 1), timedelta(hours=1))
    ),
    *(
        ({name: datetime(2099, 1, 1)}, f"{name}: {datetime(2099, 1, 1)!r} has no time zone")
        for name in ("at_time", "start_by")
    ),
    *(
        ({"delay": given}, f"must be seconds or a timedelta from 0 to ten years, not {given!r}")
        for given in DELAYS
    ),
    ({"at_time": LATER, "delay": 60}, "sums:Add: pass at_time or delay, not both"),
]


@pytest.mark.parametrize(("options", "text"), SUBMITTED, ids=str)
async def test_options_of_a_submission(app: Nonet, options: dict[str, Any], text: str) -> None:
    """Nothing is guessed or taken for now; the message shows what to write."""
    await refused(app.submit(Add(1), **options), InvalidArgumentsError, text)


async def test_an_argument_that_does_not_fit(app: Nonet) -> None:
    """The class has its full name, as wherever it is named."""
    given: Any = "x"
    text = "sums:Add: a: Input should be a valid integer"
    await refused(app.submit(Add(given)), InvalidArgumentsError, text)


@pytest.mark.parametrize("verb", ["call", "submit"])
async def test_a_class_is_no_task(app: Nonet, verb: str) -> None:
    """What is missing is the call of the class."""
    await refused(getattr(app, verb)(Add), TypeError, f"{verb}: Add is a class: pass an instance")


GROUPS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "child": (([Add(1), 3], Add(2)), {}, TypeError, "children[1]: 3 is not a task"),
    "callback": (([Add(1)], None), {}, TypeError, "callback: None is not a task"),
    "class": (([Add(1)], Add), {}, TypeError, "callback: Add is a class"),
    "on_failure": (
        ([], Add(1)),
        {"on_failure": "Add"},
        TypeError,
        "on_failure: 'Add' is not a task",
    ),
    "policy": (([], Add(1)), {"policy": "any"}, ValueError, "'any' must be one of ('all_succ"),
    "no policy": (([], Add(1)), {"policy": None}, ValueError, "policy=None must be one of"),
    "time": (([], Add(1)), {"ttl_seconds": 0}, ValueError, "ttl_seconds=0 must be above 0"),
}


@pytest.mark.parametrize("name", GROUPS)
async def test_what_is_no_group(app: Nonet, name: str) -> None:
    """A group of what is no task, or with an option that nobody knows, is refused."""
    args, options, kind, text = GROUPS[name]
    await refused(app.client.spawn_with_callback(*args, **options), kind, text)


@pytest.mark.parametrize("name", GROUPS)
async def test_what_is_no_group_in_a_test_without_server(name: str) -> None:
    """`run_inline` refuses the same."""
    args, options, kind, text = GROUPS[name]

    class Spawn(BaseTask):
        async def execute(self, spawn: CallbackSpawner) -> None:
            await spawn(*args, **options)

    await refused(run_inline(Spawn()), kind, text)


OPTIONS: dict[str, tuple[Call, type[Exception], str]] = {
    "wait_locks": (
        lambda app: app.call(Add(1), wait_locks=-1),
        ValueError,
        "call: wait_locks=-1 must be 0 seconds or more",
    ),
    "debugger": (
        lambda app: app.call(Add(1), debugger="x"),  # type: ignore[arg-type]
        ValueError,
        "call: debugger='x' must be one of ('none', 'before', 'exception')",
    ),
    "doctor": (
        lambda app: app.doctor(wait=-1),
        ValueError,
        "doctor: wait=-1 must be 0 seconds or more, or None",
    ),
    "timeout": (
        lambda app: app.result("t-1", timeout="x"),  # type: ignore[call-overload]
        TypeError,
        "task t-1: timeout='x' must be a number of seconds, or None",
    ),
    "cancel_many": (
        lambda app: app.client.cancel_many(task=3),  # type: ignore[arg-type]
        TypeError,
        "cancel_many: task=3 must be a task class or its name",
    ),
    "cancel_many unknown": (
        lambda app: app.client.cancel_many(task="Ad"),
        UnknownTaskError,
        "unknown task 'Ad'. Did you mean sums:Add?",
    ),
    "cancel_many unregistered": (
        lambda app: app.client.cancel_many(task=Unregistered),
        RegistrationError,
        "Unregistered is not registered",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
async def test_an_option_that_means_nothing(app: Nonet, name: str) -> None:
    """Its value is named, and those that mean something."""
    call, kind, text = OPTIONS[name]
    await refused(call(app), kind, text)


@pytest.mark.parametrize("name", ["Add", "sums:Add"])
async def test_a_class_without_tasks_is_cancelled_whole(app: Nonet, name: str) -> None:
    """Zero tasks of a known class are no mistake, by which name ever."""
    assert await app.client.cancel_many(task=name) == 0


async def test_a_state_that_no_live_task_has(app: Nonet) -> None:
    """It is refused before the first task is asked for."""
    with pytest.raises(ValueError, match="live: state='done' must be one of"):
        app.live(state="done")


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        (Add, "such as tasks=[SendInvoice]"),
        ("mypackage.tasks", "such as tasks=[SendInvoice]"),
        ([Add, 3], "3 is neither a task class nor a module"),
        ([int], "<class 'int'> is neither a task class nor a module"),
    ],
)
def test_a_system_of_what_are_no_tasks(tasks: Any, text: str) -> None:
    """One class is no list, and a number no class."""
    with pytest.raises(TypeError, match=re.escape(text)):
        System(tasks=tasks)


async def test_what_cannot_have_been_submitted(redis_url: str) -> None:
    """A name is no class; the arguments of a class are told."""
    given: Any = "Add"
    async with System([Add], redis_url=redis_url) as system:
        with pytest.raises(TypeError, match="assert_submitted: 'Add' is not a class"):
            system.assert_submitted(given)
        with pytest.raises(TypeError, match=r"Add has no argument 'x'\. It has a\."):
            system.assert_submitted(Add, x=1)


def test_a_lock_on_a_number() -> None:
    """A kind of object is a text."""
    kind: Any = 3
    with pytest.raises(RegistrationError, match=r"type 3: give a LockedObjectType, such as"):
        MutexLock(kind, 1)
    with pytest.raises(RegistrationError, match="type 3 must be a lower-case identifier"):
        register_locked_object_type(kind)
    assert MutexLock(LockedObjectType.JOB, 1).obj == "job"


@pytest.mark.parametrize(("base", "provider"), [(3, str), (Add, 4)])
def test_a_provider_of_nothing(base: Any, provider: Any) -> None:
    """Neither a number for a class nor one for a function is registered."""
    with pytest.raises(TypeError, match=r"register_dependency\(.*: pass a class, and a function"):
        register_dependency(base, provider)


def test_an_application_of_a_url() -> None:
    """It says where the URL belongs, and does not repeat its password."""
    given: Any = "redis://:s3cret@localhost"
    with pytest.raises(TypeError, match=r"Nonet\.from_settings\(redis_url=…\)") as caught:
        Nonet(given)
    assert "s3cret" not in str(caught.value)


async def test_an_application_that_is_open_cannot_be_opened(app: Nonet) -> None:
    """The inner end would close the outer one; it stays open, and can be opened again later."""
    with pytest.raises(ConflictError, match="this Nonet is already open"):
        async with app:
            pass
    assert await app.submit(Add(1), id="one") == "one"


async def test_an_application_is_opened_again_after_its_end(redis_url: str) -> None:
    """One after the other is fine, also after a start that has failed."""
    app = closed(redis_url)
    for _ in range(2):
        async with app:
            await app.submit(Add(1))


@pytest.mark.parametrize("ask", ["status", "result", "cancel"])
async def test_a_handle_of_a_closed_application(redis_url: str, ask: str) -> None:
    """It connects to nothing that nobody would close, and says why."""
    async with closed(redis_url) as app:
        handle = await app.submit(Add(1), id="one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = "task one: the application that submitted it is closed"
        await refused(getattr(handle, ask)(), NotBoundError, text)
