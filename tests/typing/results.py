"""What comes back of a task has the type that its ``execute`` returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from tasks import (
    Ask,
    Changed,
    Count,
    FileDB,
    Keep,
    Own,
    PerVo,
    RemoveFile,
    Sweep,
    add,
    lines,
    reset,
)

import nonet
from nonet import (
    PREVIOUS,
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
    RunningDaemons,
    Size,
    Step,
    TaskStatus,
    TaskWithOptions,
    Unique,
    Workflow,
    WorkflowRun,
    WorkflowStatus,
    cancel_many,
    chain,
    chord,
    context,
    failed,
    spawn_with_callback,
)
from nonet.contrib.fastapi import NonetApp
from nonet.testing import InlineRun, Submitted, System, run_inline
from nonet.types import Overview, SubmitOptions, TaskOf


async def scheduled() -> None:
    assert_type(await RemoveFile("/a").schedule(), Handle[int])
    assert_type(await Count("a").schedule(), Handle[str])
    assert_type(await Ask(question="why").schedule(), Handle[list[str]])
    assert_type(await Own(number=3).schedule(), Handle[float])
    assert_type(await Keep({"a": b"1"}).schedule(), Handle[dict[str, bytes]])
    assert_type(await Changed("/a").schedule(), Handle[int])
    assert_type(await PerVo(vo="lhcb").schedule(), Handle[str])


async def in_a_workflow() -> None:
    workflow = Workflow("nightly")
    removed = workflow.step(RemoveFile("/a"))
    assert_type(removed, Step[int])
    named = workflow.step(Count.given("a"), after=[removed, failed(removed)], delay=3)
    assert_type(named, Step[str])
    assert_type(workflow.step(RemoveFile.given(lfn=named)), Step[int])
    run = await workflow.submit(id="mine")
    assert_type(run, WorkflowRun)
    assert_type(await run.result(removed, timeout=3), int)
    assert_type(await run.result(named), str)
    assert_type(await run.status(), WorkflowStatus)
    assert_type(chain(RemoveFile("/a"), Count.given(PREVIOUS), chord([Sweep()], Sweep())), Workflow)
    assert_type(context().add_step(Count("a")), Step[str])


async def of_functions(app: Nonet) -> None:
    assert_type(await add(1, b=2).schedule(delay=5), Handle[int])
    assert_type(await lines("/a", limit=2).schedule(), Handle[list[str]])
    assert_type(await app.submit(add(1)), Handle[int])
    assert_type(await app.call(lines("/a")), list[str])
    assert_type(await add(1).execute(), int)
    assert_type(lines("/a").execute(db=FileDB()), list[str])
    assert_type(add(1).with_options(id="a"), TaskWithOptions[int])


def of_sync_programs(app: nonet.SyncNonet) -> None:
    handle = RemoveFile("/a").schedule_sync(delay=5, transaction=None)
    assert_type(handle, nonet.SyncHandle[int])
    assert_type(handle.result(timeout=30), int)
    assert_type(handle.status(), TaskStatus)
    assert_type(handle.cancel(), str)
    assert_type(app.submit(Count("a")), nonet.SyncHandle[str])
    assert_type(app.submit_many([Sweep(), Sweep()]), list[nonet.SyncHandle[None]])
    assert_type(app.result(handle), int)
    assert_type(app.result("some-id", timeout=5), Any)
    for progress in handle.progress():
        assert_type(progress.text, str)
    for status in app.live(state="running"):
        assert_type(status, TaskStatus)
    with nonet.SyncNonet.from_settings(namespace="test") as opened:
        assert_type(opened.explain(handle), Explanation)


async def beside_an_application(app: Nonet) -> None:
    assert_type(app.sync, nonet.SyncNonet)


async def with_options() -> None:
    handle = await RemoveFile("/a").schedule(
        at_time=datetime(2030, 1, 1, tzinfo=UTC),
        delay=timedelta(minutes=1),
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


async def of_any_class(task: BaseTask, tasks: list[BaseTask]) -> None:
    assert_type(await task.schedule(), Handle[Any])
    assert_type(await (await task.schedule()).result(), Any)
    async with Nonet.from_settings() as app:
        assert_type(await app.submit(task), Handle[Any])
        assert_type(await app.submit_many(tasks), list[Handle[Any]])
        assert_type(await app.call(task), Any)


async def of_an_application(app: Nonet) -> None:
    assert_type(await app.submit(RemoveFile("/a"), id="mine"), Handle[int])
    assert_type(await app.submit_many([Sweep(), Sweep()]), list[Handle[None]])
    assert_type(await app.submit_many(Count(t) for t in "ab"), list[Handle[str]])
    later = Count("a").with_options(delay=timedelta(hours=1), id="a", labels={"vo": "lhcb"})
    assert_type(later, TaskWithOptions[str])
    assert_type(Sweep().with_options(at_time=datetime.now(UTC)), TaskWithOptions[None])
    assert_type(await app.submit(later), Handle[str])
    assert_type(await later.schedule(), Handle[str])
    assert_type(await app.call(RemoveFile("/a"), wait_locks=2), int)
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
    async with app.running(sizes=["small", Size.LARGE], scheduler=False) as daemons:
        assert_type(daemons, RunningDaemons)


async def annotated(app: Nonet, task: TaskOf[int], options: SubmitOptions) -> Overview:
    """What signatures name can be named by callers."""
    assert_type(await app.submit(task, **options), Handle[int])
    return await app.overview()


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
