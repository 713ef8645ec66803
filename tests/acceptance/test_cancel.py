"""Running tasks that are cancelled, with real daemons; `stores` shows the other states."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from acceptance import isolated_tasks
from acceptance.cancel_tasks import Endless, EndlessChild, RaisesWhenCancelled
from acceptance.probe_tasks import Quick, Stubborn, VoidedThread
from acceptance.site import Site, run
from waits import WAIT_SECONDS, until

from nonet import BaseTask, Handle, Nonet, TaskCancelled

TASKS = "acceptance.cancel_tasks,acceptance.probe_tasks,acceptance.isolated_tasks"
KINDS: tuple[tuple[Callable[[str], BaseTask], str, list[str]], ...] = (
    (Endless, "small", ["told", "rolled back"]),
    (VoidedThread, "small", ["voided"]),
    (EndlessChild, "medium", ["told", "rolled back"]),
    (RaisesWhenCancelled, "small", []),
    (Stubborn, "small", ["cancelled"]),
    (isolated_tasks.Stubborn, "medium", ["cancelled"]),
)


async def is_cancelled(site: Site, app: Nonet, handle: Handle) -> None:
    """Check that it ended cancelled after one execution, and that one event reports it."""
    with pytest.raises(TaskCancelled, match=r"was cancelled by \S+@\S+ \d+: enough"):
        await handle.result(timeout=WAIT_SECONDS)
    status = await handle.status()
    assert (status.state, status.attempt, status.reason) == ("cancelled", 1, "cancelled")
    assert len(site.journal("start", id=str(handle))) == 1
    events = await app.stores.events.last(10, kind="tasks-cancelled")
    assert [event.text for event in events].count(f"1 task ({handle}): enough") == 1


async def test_a_worker_that_drains_obeys_a_cancellation(site: Site) -> None:
    """It lets the other task finish."""
    gate = site.gate()
    async with site.app() as app:
        worker = site.worker()
        tasks: list[BaseTask] = [Endless(gate), Endless(gate)]
        cancelled, other = [await app.submit(task) for task in tasks]
        await site.until_event("start", 2)
        worker.terminate()
        await until(lambda: "draining" in worker.log, "it drains")
        await cancelled.cancel("enough")
        await is_cancelled(site, app, cancelled)
        assert (await other.status()).state == "running"
        site.open(gate)
        assert await other.result(timeout=WAIT_SECONDS) == "passed"
        assert worker.wait() == 0


async def test_a_cancelled_task_ends_once_and_frees_its_slot(site: Site) -> None:
    """However its code takes the cancellation, it is not retried and another task runs."""
    for size in ("small", "medium"):
        site.worker("--concurrency", "1", size=size, NONET_CANCEL_GRACE="0.3")
    async with site.app() as app:
        for kind, size, events in KINDS:
            gate = site.gate()
            handle = await site.begin(app, kind(gate))
            assert await handle.cancel("enough") == "cancelling"
            await is_cancelled(site, app, handle)
            for event in events:
                await site.until_event(event, id=handle)
            assert await run(app, Quick(3), labels={"size": size}) == 3
            site.open(gate)
        await site.all_ended()
