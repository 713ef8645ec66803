"""What comes back of a task has the type that its ``execute`` returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_type

from tasks import Ask, Changed, Count, Every, Keep, Own, PerVo, RemoveFile, Sweep, reset

from nonet import (
    BaseTask,
    CallbackSpawner,
    ChildResult,
    Client,
    Epoch,
    Explanation,
    Handle,
    LockedObjectType,
    MutexLock,
    Nonet,
    TaskStatus,
    Unique,
    cancel_many,
    context,
    spawn_with_callback,
)
from nonet.contrib.fastapi import NonetApp
from nonet.testing import InlineRun, Submitted, System, run_inline


async def scheduled() -> None:
    assert_type(await RemoveFile("/a").schedule(), Handle[int])
    assert_type(await Count("a").schedule(), Handle[str])
    assert_type(await Ask(question="why").schedule(), Handle[list[str]])
    assert_type(await Sweep().schedule(), Handle[None])
    assert_type(await Own(number=3).schedule(), Handle[float])
    assert_type(await Keep({"a": b"1"}).schedule(), Handle[dict[str, bytes]])
    assert_type(await Changed("/a").schedule(), Handle[int])
    assert_type(await Every().schedule(), Handle[int])
    assert_type(await PerVo(vo="lhcb").schedule(), Handle[str])


async def with_options() -> None:
    handle = await RemoveFile("/a").schedule(
        at_time=datetime(2030, 1, 1),
        id="mine",
        labels={"vo": "lhcb"},
        transaction=None,
        start_by=timedelta(hours=2),
        unique=Unique.for_seconds(60),
    )
    assert_type(handle, Handle[int])
    assert_type(await handle.result(timeout=30), int)
    assert_type(await handle.status(), TaskStatus)
    assert_type(handle.created, bool)
    text: str = handle
    assert_type(text.upper(), str)


async def of_any_class(task: BaseTask, tasks: list[BaseTask]) -> None:
    assert_type(await task.schedule(), Handle[Any])
    assert_type(await (await task.schedule()).result(), Any)
    async with Nonet.from_settings() as app:
        assert_type(await app.submit(task), Handle[Any])
        assert_type(await app.submit_many(tasks), list[Handle[Any]])
        assert_type(await app.call(task), Any)


async def of_an_application(app: Nonet) -> None:
    assert_type(await app.submit(RemoveFile("/a"), id="mine"), Handle[int])
    assert_type(await app.submit(Count("a")), Handle[str])
    assert_type(await app.submit_many([Sweep(), Sweep()]), list[Handle[None]])
    assert_type(await app.submit_many(Count(t) for t in "ab"), list[Handle[str]])
    assert_type(await app.call(RemoveFile("/a"), wait_locks=2), int)
    assert_type(await app.call(Count("a")), str)
    handle = await app.submit(RemoveFile("/a"))
    assert_type(await app.result(handle), int)
    assert_type(await app.result("some-id", timeout=5), Any)
    assert_type(await app.status(handle), TaskStatus)
    assert_type(await app.explain(handle), Explanation)
    assert_type(await app.cancel([handle]), dict[str, str])
    async with app.hold(MutexLock(LockedObjectType.JOB, 7), wait=5) as fence:
        assert_type(fence, int)
    async for status in app.live(state="running"):
        assert_type(status, TaskStatus)


async def of_a_client(client: Client) -> None:
    assert_type(await client.submit(RemoveFile("/a")), Handle[int])
    assert_type(await client.submit_many([Count("a")], labels={"a": 1}), list[Handle[str]])
    assert_type(await client.result(await client.submit(Count("a"))), str)


async def of_a_route(nonet: NonetApp) -> None:
    assert_type(await nonet.submit(RemoveFile("/a")), Handle[int])


class Application(Nonet):
    """An application of one's own."""


async def of_a_subclass() -> None:
    async with Application.from_settings(namespace="test") as app:
        assert_type(app, Application)


async def groups(spawn: CallbackSpawner, parts: Sequence[Count]) -> None:
    assert_type(await spawn_with_callback(parts, Sweep(), on_failure=RemoveFile("/a")), str)
    assert_type(await spawn([Count("a"), RemoveFile("/a")], Sweep(), policy="all_done"), str)
    assert_type(await context().group_results(), Sequence[ChildResult])
    assert_type(await cancel_many(task=Count, labels={"a": 1}), int)


async def in_tests(system: System) -> None:
    assert_type(await run_inline(RemoveFile("/a")), InlineRun[int])
    assert_type((await run_inline(Count("a"), retry=True)).result, str)
    assert_type((await run_inline(Count("a"), check=False)).result, str)
    assert_type((await run_inline(RemoveFile("/a"), check=False)).error, BaseException | None)
    assert_type(await system.submit(RemoveFile("/a"), labels={"a": 1}), Handle[int])
    assert_type(await system.result(await system.submit(Count("a"))), str)
    found = system.assert_submitted(RemoveFile, times=1, lfn="/a")
    assert_type(found, list[Submitted[RemoveFile]])
    assert_type(found[0].task.lfn, str)
    assert_type(system.submitted[0].task, BaseTask)


def bare(handle: Handle, run: InlineRun, submitted: Submitted) -> None:
    """Without a parameter they are annotations as before."""
    assert_type(handle, Handle[Any])
    assert_type(run.result, Any)
    assert_type(submitted.task, BaseTask)


def wider(handle: Handle[int]) -> Handle[object]:
    """A handle of what is less is one of what is more."""
    return handle


hook: Callable[[Epoch, Any], Awaitable[None]] = reset
