"""The sync face does what the asynchronous one does, in other words of Python."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from daemons import Daemon
from pydantic import TypeAdapter
from sync.sync_tasks import Add, Fail, Sum, Wait, nested, nested_in_child
from waits import WAIT_SECONDS, wait_until

import nonet.sync
from nonet import (
    Client,
    ConflictError,
    InvalidArgumentsError,
    NotBoundError,
    NotFoundError,
    RegistrationError,
    ResultUnavailable,
    TaskCancelled,
    TaskFailed,
)
from nonet.tasks.handles import TaskId

pytestmark = pytest.mark.server

Start = Callable[[], Daemon]
# What only the sync face has: `async with` opens an asynchronous one, and only Django checks tasks.
OWN = {"open", "close", "beside", "prepare_with", "check"}
# `list_tasks` passes its options on, and `progress` is called by handles.
LOOSE = {"list_tasks", "progress", "from_settings"}


def parameters(function: Any) -> dict[str, tuple[Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return {each.name: (each.kind, each.default) for each in found}


def test_the_names_are_the_same() -> None:
    """Each method is one of the asynchronous application or client, with the same parameters."""
    for name, method in vars(nonet.sync.Nonet).items():
        if name.startswith("_") or name in OWN:
            continue
        other = getattr(nonet.Nonet, name, None) or getattr(Client, name)
        if name not in LOOSE:
            assert parameters(method) == parameters(other), name
    pairs = (nonet.sync.Handle, nonet.Handle), (nonet.sync.WorkflowRun, nonet.WorkflowRun)
    for blocking, awaited in pairs:
        for name, method in vars(blocking).items():
            if not name.startswith("_"):
                assert parameters(method) == parameters(getattr(awaited, name)), name


def test_a_result(app: nonet.sync.Nonet, worker: Start) -> None:
    """Submitted by the task or by the application, and awaited with the handle or the id."""
    handle = Add(1, 2).schedule_sync()
    waiting = app.submit(Add(3, 4))
    worker()
    assert handle.result(timeout=WAIT_SECONDS) == 3
    assert app.result(waiting, timeout=WAIT_SECONDS) == 7
    assert app.result(str(waiting), timeout=WAIT_SECONDS) == 7
    assert (handle.status().state, app.explain(handle).state) == ("done", "done")


def test_a_failure(app: nonet.sync.Nonet, worker: Start) -> None:
    """The errors are those of an asynchronous program."""
    worker()
    with pytest.raises(TaskFailed, match="ValueError: no"):
        Fail().schedule_sync().result(timeout=WAIT_SECONDS)
    (ended,) = app.history(states=["dead"])
    assert ended.error_type == "ValueError"
    with pytest.raises(ResultUnavailable, match="unknown"):
        app.result("nobody", timeout=1)
    with pytest.raises(NotFoundError):
        app.status("nobody")


def test_options(app: nonet.sync.Nonet) -> None:
    """Delay, id and labels; invalid ones are refused."""
    handle = Add(1).schedule_sync(delay=timedelta(hours=1), id="mine", labels={"a": 1})
    again = app.submit(Add(1), id="mine")
    assert (handle, handle.created, again.created) == ("mine", True, False)
    status = handle.status()
    assert status.state == "delayed" and status.due is not None
    assert status.due - datetime.now(UTC) > timedelta(minutes=50)
    with pytest.raises(InvalidArgumentsError, match="pass at_time or delay, not both"):
        app.submit(Add(1), delay=1, at_time=datetime.now(UTC))
    with pytest.raises(TypeError, match="submit: Add is a class"):
        app.submit(Add)  # type: ignore[arg-type]


def test_many(app: nonet.sync.Nonet, worker: Start) -> None:
    """More than one batch, each with its own options."""
    worker()
    handles = app.submit_many(Add(n).with_options(id=f"n{n}") for n in range(1100))
    assert handles[:2] == ["n0", "n1"]
    assert [handle.result(timeout=WAIT_SECONDS) for handle in handles[::100]] == list(
        range(0, 1100, 100)
    )


def test_a_wait_that_is_too_long(app: nonet.sync.Nonet) -> None:
    """A timeout is one, to the tenth of a second."""
    handle = Add(1).schedule_sync()
    for timeout in (0, 0.2):
        began = datetime.now()
        with pytest.raises(TimeoutError, match="has not ended"):
            handle.result(timeout=timeout)
        assert timeout <= (datetime.now() - began).total_seconds() < timeout + 2


def test_cancelling(app: nonet.sync.Nonet, worker: Start) -> None:
    """Of what waits, of what runs, and of a whole class."""
    one, two, three = app.submit_many([Add(1), Add(2), Add(3)], delay=60)
    assert one.cancel("not needed") == "cancelled"
    assert app.cancel([one, two], reason="no") == {one: "cancelled", two: "cancelled"}
    assert app.cancel_many(task=Add) == 1
    with pytest.raises(TaskCancelled, match="not needed"):
        one.result()
    worker()
    running = Wait().schedule_sync()
    wait_until(lambda: running.status().state == "running", "it runs")
    assert running.cancel() == "cancelling"
    with pytest.raises(TaskCancelled):
        running.result(timeout=WAIT_SECONDS)
    done = Add(1).schedule_sync()
    done.result(timeout=WAIT_SECONDS)
    with pytest.raises(ConflictError, match="is done"):
        done.cancel()
    assert three.status().state == "cancelled"


def test_progress(app: nonet.sync.Nonet, worker: Start) -> None:
    """It comes as it is reported, and ends with the task."""
    worker()
    handle = Wait().schedule_sync()
    for progress in handle.progress():
        assert str(progress) == "50 % half"
        handle.cancel()
    assert handle.status().state == "cancelled"


def test_lists(app: nonet.sync.Nonet) -> None:
    """Live tasks, in no order or page by page."""
    handles = app.submit_many([Add(n) for n in range(5)])
    Wait().schedule_sync()
    assert {status.id for status in app.live(task="Add")} == set(handles)
    page = app.list_tasks(state="queued", limit=2)
    assert (len(page.rows), page.matched) == (2, 6)
    with pytest.raises(ValueError, match="must be one of"):
        app.live(state="asleep")


def test_groups(app: nonet.sync.Nonet, worker: Start) -> None:
    """The callback reads the results of its children."""
    worker()
    group = app.spawn_with_callback([Add(1), Add(2)], Sum())
    wait_until(lambda: app.list_tasks().matched == 0, "all children have ended")
    assert app.result(f"{group}.callback", timeout=WAIT_SECONDS) == 3


def test_a_closed_application(environment: dict[str, str]) -> None:
    """It says how to open one; nothing is submitted elsewhere."""
    from sync.conftest import settings_of

    app = nonet.sync.Nonet(settings_of(environment))
    with pytest.raises(NotBoundError, match="use it inside `with`"):
        app.submit(Add(1))
    assert app.open() is app
    handle = Add(1).schedule_sync()
    with pytest.raises(ConflictError, match="already open"):
        app.open()
    app.close()
    app.close()
    with pytest.raises(NotBoundError, match=r"with nonet\.sync\.Nonet\.from_settings"):
        Add(1).schedule_sync()
    with pytest.raises(NotBoundError):
        handle.status()
    with app:
        assert handle.status().state == "queued"


def test_an_unregistered_class(app: nonet.sync.Nonet) -> None:
    """As in an asynchronous program."""

    class Other(Add): ...

    with pytest.raises(RegistrationError, match="is not registered"):
        app.submit(Other(1))


def test_a_handle_is_an_id(app: nonet.sync.Nonet) -> None:
    """A ``str`` in JSON and in a pickle; without an application it says what to do."""
    handle = Add(1).schedule_sync(id="mine")
    assert isinstance(handle, TaskId) and handle == "mine"
    assert type(pickle.loads(pickle.dumps(handle))) is str
    adapter = TypeAdapter(nonet.sync.Handle[int])
    assert adapter.dump_json(handle) == b'"mine"'
    read = adapter.validate_json('"mine"')
    for call in (read.status, read.result, read.cancel, read.progress):
        with pytest.raises(NotBoundError, match=r"app\.status\('mine'\)"):
            call()


def test_tasks_submit_from_threads(app: nonet.sync.Nonet, worker: Start) -> None:
    """A ``def execute`` has a connection of its own when it needs one, in a child process, too."""
    worker()
    handles = [nested(1).schedule_sync(), nested_in_child(2).schedule_sync()]
    assert [handle.result(timeout=WAIT_SECONDS) for handle in handles] == [2, 3]


async def test_beside_an_asynchronous_application(
    environment: dict[str, str], worker: Start
) -> None:
    """Threads of an asynchronous program use the same names."""
    import asyncio

    from sync.conftest import settings_of

    worker()
    async with nonet.Nonet(settings_of(environment)) as app:

        def endpoint() -> tuple[int, Any]:
            handle = Add(1, 2).schedule_sync()
            return handle.result(timeout=WAIT_SECONDS), app.sync.status(handle).state

        assert await asyncio.to_thread(endpoint) == (3, "done")
        assert app.sync is app.sync
    with pytest.raises(NotBoundError):
        await asyncio.to_thread(endpoint)
