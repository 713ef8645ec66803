"""The application for programs without an event loop does what the asynchronous one does."""

from __future__ import annotations

import asyncio
import base64
import inspect
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter
from redis import Redis
from sync.conftest import settings_of
from sync.sync_tasks import Add, Fail, Sum, Wait, nested, nested_in_child
from waits import WAIT_SECONDS, wait_until

import nonet
from nonet import (
    ConflictError,
    InvalidArgumentsError,
    NotBoundError,
    NotFoundError,
    ResultUnavailable,
    TaskFailed,
    UnknownTaskError,
    chain,
)
from nonet.client.client import Program
from nonet.client.schedules import Schedules, SyncSchedules
from nonet.tasks.handles import TaskId

pytestmark = pytest.mark.server

# What only the sync face has: `async with` opens an asynchronous one, and only Django checks tasks.
OWN = {"open", "close", "beside", "prepare_with", "check"}
# `list_tasks` passes its options on, and `progress` is called by handles.
LOOSE = {"list_tasks", "progress", "from_settings"}


def parameters(function: Any) -> dict[str, tuple[Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return {each.name: (each.kind, each.default) for each in found}


def test_methods_have_the_names_and_parameters_of_asynchronous_ones() -> None:
    """Each one that programs have is there, with the same parameters, and no other."""
    listed = {name for each in Program.__mro__ for name in vars(each) if not name.startswith("_")}
    assert listed - vars(nonet.SyncNonet).keys() == set()
    for name, method in vars(nonet.SyncNonet).items():
        if name.startswith("_") or name in OWN or isinstance(method, property):
            continue
        other = getattr(nonet.Nonet, name)
        if name not in LOOSE:
            assert parameters(method) == parameters(other), name
    pairs = (
        (nonet.SyncHandle, nonet.Handle),
        (nonet.SyncWorkflowRun, nonet.WorkflowRun),
        (SyncSchedules, Schedules),
    )
    for blocking, awaited in pairs:
        for name, method in vars(blocking).items():
            if not name.startswith("_"):
                assert parameters(method) == parameters(getattr(awaited, name)), name


async def test_a_loop_is_not_blocked(redis_url: str) -> None:
    """Where an application is open that can be awaited, the error says what to write."""
    async with nonet.Nonet.from_settings(redis_url=redis_url, namespace="test"):
        with pytest.raises(NotBoundError, match=r"write `await task\.schedule\(\)`"):
            Add(1, 2).schedule_sync()


def test_a_result_is_awaited(served: nonet.SyncNonet) -> None:
    """The task or the application submits; the handle or the id waits."""
    handle, other = Add(1, 2).schedule_sync(), served.submit(Add(3, 4))
    assert handle.result(timeout=WAIT_SECONDS) == 3
    assert served.result(other, timeout=WAIT_SECONDS) == 7
    assert served.result(str(other), timeout=WAIT_SECONDS) == 7
    assert handle.status().state == "done"
    with pytest.raises(ConflictError, match="is done"):
        handle.cancel()


def test_a_failure_raises(served: nonet.SyncNonet) -> None:
    """The errors are those of an asynchronous program."""
    failed = Fail().schedule_sync()
    with pytest.raises(TaskFailed, match="ValueError: no"):
        failed.result(timeout=WAIT_SECONDS)
    (ended,) = [one for one in served.history(states=["dead"]) if one.id == failed]
    assert ended.error_type == "ValueError"
    with pytest.raises(ResultUnavailable, match="unknown"):
        served.result("nobody", timeout=1)
    with pytest.raises(NotFoundError):
        served.status("nobody")


SMALL = {"size": "small"}


@pytest.fixture
def without_code(served_environment: dict[str, str]) -> Iterator[nonet.SyncNonet]:
    """A program that has loaded no task."""
    settings = settings_of(served_environment)
    with nonet.SyncNonet(settings, load_tasks=False) as opened:
        yield opened


def test_a_program_without_the_code_submits_by_name(
    without_code: nonet.SyncNonet, served: nonet.SyncNonet
) -> None:
    """A worker checks the arguments and takes the locks; the program says the size."""
    handle = without_code.submit_by_name("sync_tasks:Add", {"a": 1, "b": 2}, labels=SMALL)
    assert without_code.handle(str(handle)).result(WAIT_SECONDS) == 3
    first = without_code.submit_by_name("sync_tasks:Locked", {"a": 7, "b": 3600}, labels=SMALL)
    wait_until(lambda: first.status().state == "running", "it runs")
    second = without_code.submit_by_name("sync_tasks:Locked", {"a": 7}, labels=SMALL)
    wait_until(lambda: second.status().state == "waiting", "it waits for the lock of the first")
    assert second.status().blocker == "lock:mutex:job:7"
    first.cancel()
    assert second.result(WAIT_SECONDS) == 7
    wrong = without_code.submit_by_name("sync_tasks:Add", {"x": 1}, labels=SMALL)
    with pytest.raises(TaskFailed, match=r"dead \(arguments\).*Extra inputs are not"):
        wrong.result(WAIT_SECONDS)
    with pytest.raises(InvalidArgumentsError, match="its size is unknown: pass labels="):
        without_code.submit_by_name("sync_tasks:Add", {"a": 1})
    with pytest.raises(UnknownTaskError, match="unknown task 'Add'"):
        without_code.submit_by_name("Add", {"a": 1}, labels=SMALL)
    with pytest.raises(InvalidArgumentsError, match="x: Extra"):
        served.submit_by_name("Add", {"x": 1})
    with pytest.raises(InvalidArgumentsError, match="by name"):
        served.submit_by_name("Add", [1])  # type: ignore[arg-type]
    assert served.submit_by_name("Add", {"a": 4}).result(WAIT_SECONDS) == 4


def test_arguments_are_encrypted_if_the_program_has_a_key(environment: dict[str, str]) -> None:
    """It cannot know whether the class is encrypted."""
    key = f"2026:{base64.b64encode(bytes(32)).decode()}"
    settings = settings_of(environment | {"NONET_ENCRYPTION_KEYS": key})
    with nonet.SyncNonet(settings, load_tasks=False) as app:
        app.submit_by_name("mail:Send", {"to": "ann-the-secret"}, id="mine", labels=SMALL)
    with Redis.from_url(environment["NONET_REDIS_URL"]) as redis:
        record = redis.get("{test}:t:mine")
    assert record and b"mail:Send" in record and b"ann-the-secret" not in record


def test_a_result_has_a_default(served: nonet.SyncNonet, app: nonet.SyncNonet) -> None:
    """Instead of any error that says that there is no result, or none yet."""
    failed = served.submit(Fail())
    assert failed.result(WAIT_SECONDS, default=None) is None
    assert failed.status().state == "dead"  # it did not only take too long
    assert served.handle("nobody").result(default=7) == 7
    assert app.submit(Add(1)).result(timeout=0, default="later") == "later"
    assert not served.handle("nobody").created


def test_the_status_of_an_ended_task_says_where_and_when_it_ran(served: nonet.SyncNonet) -> None:
    """As long as the history has it."""
    handle = Add(1).schedule_sync()
    handle.result(WAIT_SECONDS)
    status = handle.status()
    assert status.submitted and status.started and status.finished
    assert status.submitted <= status.started
    assert (status.stream, "@" in status.worker) == ("normal:small", True)


def test_the_results_of_a_workflow_have_names(served: nonet.SyncNonet) -> None:
    """Those of its ended steps, in the order of their places."""
    run = served.submit_workflow(chain(Add(1, 2), Fail(), Add(3)))
    run.wait(WAIT_SECONDS)
    found = [(one.place, one.name, one.state, one.value, one.error) for one in run.results()]
    assert found[:2] == [
        ("0", "sync_tasks:Add", "done", 3, ""),
        ("1", "sync_tasks:Fail", "dead", None, "ValueError: no"),
    ]


FORWARDED: dict[str, tuple[Callable[[nonet.SyncNonet], Any], Any]] = {
    "submit": (lambda app: app.submit(Add(1), id="one", labels={"a": 1}).created, True),
    "submit again": (lambda app: app.submit(Add(1), id="one").created, False),
    "submit_many": (lambda app: app.submit_many([Add(n) for n in range(3)], delay=3600)[3:], []),
    "status": (lambda app: app.status("one").state, "queued"),
    "explain": (lambda app: app.explain("one").state, "queued"),
    "logs": (lambda app: app.logs("one"), {}),
    "live": (lambda app: len(list(app.live(task="Add"))), 4),
    "list_tasks": (lambda app: app.list_tasks(state="delayed", limit=2).matched, 3),
    "cancel": (lambda app: app.cancel(["one"], reason="no"), {"one": "cancelled"}),
    "cancel_many": (lambda app: app.cancel_many(task=Add), 3),
    "history": (lambda app: {row.state for row in app.history()}, {"cancelled"}),
    "spawn_with_callback": (lambda app: app.spawn_with_callback([Add(1)], Sum()) != "", True),
}


def test_methods_return_what_the_asynchronous_ones_return(app: nonet.SyncNonet) -> None:
    """One call of each, in turn; options and errors are those of the client."""
    for name, (call, expected) in FORWARDED.items():
        assert call(app) == expected, name
    with pytest.raises(InvalidArgumentsError, match="pass at_time or delay, not both"):
        app.submit(Add(1), delay=1, at_time=datetime.now(UTC))


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_wait_ends_with_its_timeout(app: nonet.SyncNonet, timeout: float) -> None:
    """A timeout is an error, and leaves the task alone."""
    handle = Add(1).schedule_sync()
    with pytest.raises(TimeoutError, match="has not ended"):
        handle.result(timeout=timeout)
    assert handle.status().state == "queued"


def test_progress_is_followed(served: nonet.SyncNonet) -> None:
    """It comes as the task reports it, and ends with the task."""
    handle = Wait().schedule_sync()
    for progress in handle.progress():
        assert str(progress) == "50 % half"
        handle.cancel()
    assert handle.status().state == "cancelled"


def test_a_closed_application_refuses_calls(environment: dict[str, str]) -> None:
    """The error says how to open one; nothing is submitted elsewhere."""
    app = nonet.SyncNonet(settings_of(environment))
    with pytest.raises(NotBoundError, match="use it inside `with`"):
        app.submit(Add(1))
    assert app.open() is app
    handle = Add(1).schedule_sync()
    with pytest.raises(ConflictError, match="already open"):
        app.open()
    app.close()
    app.close()
    with pytest.raises(NotBoundError, match=r"with nonet\.SyncNonet\.from_settings"):
        Add(1).schedule_sync()
    with pytest.raises(NotBoundError):
        handle.status()
    with app:
        assert handle.status().state == "queued"


def test_a_handle_is_an_id(app: nonet.SyncNonet) -> None:
    """It is a ``str`` in JSON and in a pickle; without an application it says what to do."""
    handle = Add(1).schedule_sync(id="mine")
    assert isinstance(handle, TaskId) and handle == "mine"
    assert type(pickle.loads(pickle.dumps(handle))) is str
    adapter = TypeAdapter(nonet.SyncHandle[int])
    assert adapter.dump_json(handle) == b'"mine"'
    read = adapter.validate_json('"mine"')
    for call in (read.status, read.result, read.cancel, read.progress):
        with pytest.raises(NotBoundError, match=r"app\.status\('mine'\)"):
            call()


@pytest.mark.usefixtures("served")
def test_tasks_submit_from_threads() -> None:
    """A ``def execute`` has a connection of its own when it needs one, in a child process, too."""
    handles = [nested(1).schedule_sync(), nested_in_child(2).schedule_sync()]
    assert [handle.result(timeout=WAIT_SECONDS) for handle in handles] == [2, 3]


async def test_threads_of_an_asynchronous_program_submit(
    served_environment: dict[str, str],
) -> None:
    """They use the same names."""
    async with nonet.Nonet(settings_of(served_environment)) as app:

        def endpoint() -> tuple[int, Any]:
            handle = Add(1, 2).schedule_sync()
            return handle.result(timeout=WAIT_SECONDS), app.sync.status(handle).state

        assert await asyncio.to_thread(endpoint) == (3, "done")
        assert app.sync is app.sync
    with pytest.raises(NotBoundError):
        await asyncio.to_thread(endpoint)
