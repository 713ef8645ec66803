"""What programs give Nonet by mistake is refused at once: what it was, and what to give instead."""

from __future__ import annotations

import asyncio
import math
import re
import warnings
from collections.abc import AsyncIterator, Callable
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


ANY_ADD: Any = Add  # no type checker knows its mistakes
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
    with pytest.raises(InvalidArgumentsError, match=re.escape(text)):
        await app.submit(Add(1), **options)


GROUPS: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (([Add(1), 3], Add(2)), {}, TypeError, "children[1]: 3 is not a task"),
    (([Add(1)], None), {}, TypeError, "callback: None is not a task"),
    (([Add(1)], Add), {}, TypeError, "callback: Add is a class"),
    (([], Add(1)), {"on_failure": "Add"}, TypeError, "on_failure: 'Add' is not a task"),
    (([], Add(1)), {"policy": "any"}, ValueError, "'any' must be one of ('all_succ"),
    (([], Add(1)), {"policy": None}, ValueError, "policy=None must be one of"),
    (([], Add(1)), {"ttl_seconds": 0}, ValueError, "ttl_seconds=0 must be above 0"),
    (([ANY_ADD("x")], Add(1)), {}, InvalidArgumentsError, "a: Input should be a valid integer"),
]


@pytest.mark.parametrize(("args", "options", "kind", "text"), GROUPS)
@pytest.mark.parametrize("is_inline", [False, True])
async def test_an_invalid_group_is_refused(
    app: Nonet,
    args: tuple[Any, ...],
    options: dict[str, Any],
    kind: type[Exception],
    text: str,
    is_inline: bool,
) -> None:
    """Its parts are tasks, and its options known; a test without a server notices it, too."""

    class Spawn(BaseTask):
        async def execute(self, spawn: CallbackSpawner) -> None:
            await spawn(*args, **options)

    with pytest.raises(kind, match=re.escape(text)):
        if is_inline:
            await run_inline(Spawn())
        else:
            await app.client.spawn_with_callback(*args, **options)


CALLS: dict[type[Exception], list[tuple[Callable[[Any], Any], str]]] = {
    ValueError: [
        (lambda app: app.call(Add(1), wait_locks=-1), "wait_locks=-1 must be 0 seconds or more"),
        (
            lambda app: app.call(Add(1), debugger="x"),
            "call: debugger='x' must be one of ('none', 'before', 'exception')",
        ),
        (lambda app: app.doctor(wait=-1), "doctor: wait=-1 must be 0 seconds or more, or None"),
        (lambda app: app.live(state="done"), "live: state='done' must be one of"),
        (lambda app: app.client.cancel_many(), "cancel_many: pass a task class or labels, or it"),
    ],
    TypeError: [
        (lambda app: app.result("t-1", timeout="x"), "task t-1: timeout='x' must be a number of"),
        (lambda app: app.client.cancel_many(task=3), "task=3 must be a task class or its name"),
        (lambda app: app.call(Add), "call: Add is a class: pass an instance"),
        (lambda app: app.submit(Add), "submit: Add is a class"),
    ],
    InvalidArgumentsError: [
        (lambda app: app.submit(Add(1), start_by="soon"), "start_by"),
        (lambda app: app.submit(Add(1), start_by=60, delay=61), "start_by"),
        (lambda app: app.submit(ANY_ADD("x")), "sums:Add: a: Input should be a valid integer"),
    ],
    UnknownTaskError: [
        (lambda app: app.client.cancel_many(task="Ad"), "'Ad'. Did you mean sums:Add?")
    ],
    RegistrationError: [
        (lambda app: app.client.cancel_many(task=Unregistered), "Unregistered is not registered")
    ],
}


@pytest.mark.parametrize("kind", CALLS)
async def test_an_invalid_argument_of_a_method_is_refused(
    app: Nonet, kind: type[Exception]
) -> None:
    """The error names the value, and the valid ones."""
    for call, text in CALLS[kind]:
        with pytest.raises(kind, match=re.escape(text)):
            await call(app)


@pytest.mark.parametrize("name", ["Add", "sums:Add"])
async def test_zero_tasks_of_a_class_are_cancelled(app: Nonet, name: str) -> None:
    """A known class without tasks is no mistake, by its short or full name."""
    assert await app.client.cancel_many(task=name) == 0


GIVEN: list[tuple[Callable[[Any], object], Any, type[Exception], str]] = [
    (lambda x: System(tasks=x), Add, TypeError, "such as tasks=[SendInvoice]"),
    (lambda x: System(tasks=x), "m.tasks", TypeError, "such as tasks=[SendInvoice]"),
    (lambda x: System(tasks=x), [Add, 3], TypeError, "3 is neither a task class"),
    (lambda x: System(tasks=x), [int], TypeError, "<class 'int'> is neither a task class"),
    (lambda x: MutexLock(x, 1), 3, RegistrationError, "type 3: give a LockedObjectType, such as"),
    (register_locked_object_type, 3, RegistrationError, "type 3 must be a lower-case identifier"),
    (lambda x: register_dependency(x, str), 3, TypeError, "pass a class, and a function"),
    (lambda x: register_dependency(Add, x), 4, TypeError, "pass a class, and a function"),
    (Nonet, "redis://:s3cret@h", TypeError, "Nonet.from_settings(redis_url=…)"),
]


@pytest.mark.parametrize(("call", "given", "kind", "text"), GIVEN)
def test_a_value_of_the_wrong_kind_is_refused(
    call: Callable[[Any], object], given: Any, kind: type[Exception], text: str
) -> None:
    """The error says what to give instead, and repeats no password."""
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


FROM_ANOTHER_LOOP: dict[str, Callable[[Nonet], Any]] = {
    "schedule": lambda app: Add(1).schedule(),
    "submit": lambda app: app.submit(Add(1)),
    "submit_many": lambda app: app.submit_many([Add(1)]),
    "another namespace": lambda app: app.client_of("other").submit(Add(1)),
    "status": lambda app: app.status("x"),
    "result": lambda app: app.result("x", timeout=60),
    "cancel": lambda app: app.cancel("x"),
}


async def test_only_the_loop_that_opened_an_application_uses_it(app: Nonet) -> None:
    """Another one is refused even if it comes first, and does not take the application away."""
    for name, ask in FROM_ANOTHER_LOOP.items():

        async def elsewhere(ask: Callable[[Nonet], Any] = ask) -> None:
            await ask(app)

        with pytest.raises(NotBoundError, match=r"another event loop.*nonet\.SyncNonet"):
            await asyncio.to_thread(asyncio.run, elsewhere())
            pytest.fail(name)
    handle = await Add(1).schedule()
    assert (await handle.status()).state == "queued"
    sent = await asyncio.to_thread(Add(2).schedule_sync)
    assert (await app.status(sent)).state == "queued"


@pytest.mark.parametrize("ask", ["status", "result", "cancel"])
async def test_a_handle_of_a_closed_application_refuses_calls(redis_url: str, ask: str) -> None:
    """It opens no connection that would never be closed, and says why."""
    async with closed(redis_url) as app:
        handle = await app.submit(Add(1), id="one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotBoundError, match="one: the application that submitted it is closed"):
            await getattr(handle, ask)()
