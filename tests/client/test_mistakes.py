"""What programs give Nonet by mistake is refused at once: what it was, and what to give instead."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from nonet import (
    BaseTask,
    CallbackSpawner,
    ConflictError,
    InvalidArgumentsError,
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


class Add(BaseTask):
    a: int
    size = Size.SMALL

    async def execute(self) -> int:
        return self.a


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


async def refused(call: Callable[[], Awaitable[Any]], kind: type[Exception], text: str) -> None:
    """The call raises an error with this text in its message."""
    with pytest.raises(kind, match=re.escape(text)):
        await call()


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
async def test_an_invalid_option_of_a_submission_is_refused(
    app: Nonet, options: dict[str, Any], text: str
) -> None:
    """Nothing is guessed; the message shows what to write."""
    await refused(lambda: app.submit(Add(1), **options), InvalidArgumentsError, text)


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
    "argument": (([Add("x")], Add(1)), {}, InvalidArgumentsError, "a: Input should be a valid"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", GROUPS)
async def test_an_invalid_group_is_refused(app: Nonet, name: str) -> None:
    """Its parts are tasks, and its options known."""
    args, options, kind, text = GROUPS[name]
    await refused(lambda: app.client.spawn_with_callback(*args, **options), kind, text)


@pytest.mark.parametrize("name", GROUPS)
async def test_run_inline_refuses_the_same_groups(name: str) -> None:
    """A test without a server notices the mistake, too."""
    args, options, kind, text = GROUPS[name]

    class Spawn(BaseTask):
        async def execute(self, spawn: CallbackSpawner) -> None:
            await spawn(*args, **options)

    await refused(lambda: run_inline(Spawn()), kind, text)


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
    "live": (
        lambda app: app.live(state="done"),  # type: ignore[arg-type,return-value]
        ValueError,
        "live: state='done' must be one of",
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
    "cancel_many all": (
        lambda app: app.client.cancel_many(),
        ValueError,
        "cancel_many: pass a task class or labels, or it would cancel all tasks",
    ),
    "start_by a text": (
        lambda app: app.submit(Add(1), start_by="soon"),  # type: ignore[arg-type]
        InvalidArgumentsError,
        "start_by",
    ),
    "start_by before at_time": (
        lambda app: app.submit(Add(1), start_by=60, delay=61),
        InvalidArgumentsError,
        "start_by",
    ),
    "cancel_many unknown": (
        lambda app: app.client.cancel_many(task="Ad"),
        UnknownTaskError,
        "unknown task 'Ad'. Did you mean sums:Add?",
    ),
    "call of a class": (
        lambda app: app.call(Add),
        TypeError,
        "call: Add is a class: pass an instance",
    ),
    "submit of a class": (lambda app: app.submit(Add), TypeError, "submit: Add is a class"),
    "argument": (
        lambda app: app.submit(Add("x")),  # type: ignore[arg-type]
        InvalidArgumentsError,
        "sums:Add: a: Input should be a valid integer",
    ),
    "cancel_many unregistered": (
        lambda app: app.client.cancel_many(task=Unregistered),
        RegistrationError,
        "Unregistered is not registered",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
async def test_an_invalid_argument_of_a_method_is_refused(app: Nonet, name: str) -> None:
    """The error names the value, and the valid ones."""
    call, kind, text = OPTIONS[name]
    await refused(lambda: call(app), kind, text)


@pytest.mark.parametrize("name", ["Add", "sums:Add"])
async def test_zero_tasks_of_a_class_are_cancelled(app: Nonet, name: str) -> None:
    """A known class without tasks is no mistake, by its short or full name."""
    assert await app.client.cancel_many(task=name) == 0


GIVEN: dict[str, tuple[Callable[[Any], object], Any, type[Exception], str]] = {
    "a class as tasks": (lambda x: System(tasks=x), Add, TypeError, "such as tasks=[SendInvoice]"),
    "a name as tasks": (lambda x: System(tasks=x), "m.tasks", TypeError, "such as tasks=[SendInv"),
    "a number as a task": (
        lambda x: System(tasks=x),
        [Add, 3],
        TypeError,
        "3 is neither a task cl",
    ),
    "another class": (
        lambda x: System(tasks=x),
        [int],
        TypeError,
        "<class 'int'> is neither a task",
    ),
    "a lock on a number": (
        lambda x: MutexLock(x, 1),
        3,
        RegistrationError,
        "type 3: give a LockedObjectType, such as",
    ),
    "a number as a type": (
        register_locked_object_type,
        3,
        RegistrationError,
        "type 3 must be a lower-case identifier",
    ),
    "a provider of a number": (
        lambda x: register_dependency(x, str),
        3,
        TypeError,
        "pass a class, and a function",
    ),
    "a number as a provider": (
        lambda x: register_dependency(Add, x),
        4,
        TypeError,
        "pass a class, and a function",
    ),
    "a URL as settings": (
        Nonet,
        "redis://:s3cret@h",
        TypeError,
        "Nonet.from_settings(redis_url=…)",
    ),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_value_of_the_wrong_kind_is_refused(name: str) -> None:
    """The error says what to give instead, and repeats no password."""
    call, given, kind, text = GIVEN[name]
    with pytest.raises(kind, match=re.escape(text)) as caught:
        call(given)
    assert "s3cret" not in str(caught.value)


async def test_assert_submitted_refuses_what_cannot_be_submitted(redis_url: str) -> None:
    """A name is no class; the error lists the arguments of a class."""
    given: Any = "Add"
    async with System([Add], redis_url=redis_url) as system:
        with pytest.raises(TypeError, match="assert_submitted: 'Add' is not a class"):
            system.assert_submitted(given)
        with pytest.raises(TypeError, match=r"Add has no argument 'x'\. It has a\."):
            system.assert_submitted(Add, x=1)


async def test_an_open_application_cannot_be_opened(app: Nonet) -> None:
    """It stays open."""
    with pytest.raises(ConflictError, match="this Nonet is already open"):
        async with app:
            pass
    assert await app.submit(Add(1), id="one") == "one"


@pytest.mark.parametrize("ask", ["status", "result", "cancel"])
async def test_a_handle_of_a_closed_application_refuses_calls(redis_url: str, ask: str) -> None:
    """It opens no connection that would never be closed, and says why."""
    async with closed(redis_url) as app:
        handle = await app.submit(Add(1), id="one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = "task one: the application that submitted it is closed"
        await refused(lambda: getattr(handle, ask)(), NotBoundError, text)
