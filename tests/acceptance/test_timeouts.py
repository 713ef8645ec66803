"""Tasks that take longer than they may, in real workers."""

from __future__ import annotations

import pytest
from acceptance.override_tasks import Hanging, Limited, Next, Obeying, Saving, Stubborn
from acceptance.site import Site
from waits import WAIT_SECONDS, until

from nonet import TaskFailed

TASKS = "acceptance.override_tasks"


@pytest.fixture
def slow(site: Site) -> Site:
    """A site whose worker has two slots."""
    site.settings["NONET_TASKS"] = TASKS
    site.worker("--concurrency", "2")
    return site


@pytest.mark.parametrize(
    ("kind", "limit"), [(Obeying, "soft"), (Stubborn, "hard"), (Hanging, "hard")]
)
async def test_a_limit_is_a_failed_attempt(slow: Site, kind: type[Limited], limit: str) -> None:
    """The policy is asked, then the task is dead; its slot is free."""
    gate = slow.gate()
    async with slow.app(tasks=(TASKS,)) as app:
        handle = await app.submit(kind(gate))  # type: ignore[call-arg]
        with pytest.raises(TaskFailed, match=f"{limit} timeout of .* exceeded") as raised:
            await handle.result(timeout=WAIT_SECONDS)
        assert raised.value.error_type == "TaskTimeoutError"
        assert [item.attempt for item in slow.journal("start")] == [1, 2]
        assert await (await app.submit(Next())).result(timeout=WAIT_SECONDS) == "done"
        assert (await app.client.results.workers())[0].alive
    assert slow.journal("committed", task=kind.__name__) == []
    slow.open(gate)
    await slow.until_event("rolled back", 2)


async def test_progress_can_be_saved_at_the_soft_limit(slow: Site) -> None:
    """Who is cancelled may save a checkpoint, and the next attempt finds it."""
    async with slow.app(tasks=(TASKS,)) as app:
        handle = await app.submit(Saving(slow.gate()))
        assert await handle.result(timeout=WAIT_SECONDS) == "half of it"


@pytest.mark.parametrize("kind", [Stubborn, Hanging])
async def test_what_was_given_up_is_void(slow: Site, kind: type[Limited]) -> None:
    """What goes on knows when it asks, is never committed, and changes nothing of the outcome."""
    gate = slow.gate()
    async with slow.app(tasks=(TASKS,)) as app:
        handle = await app.submit(kind(gate))  # type: ignore[call-arg]
        with pytest.raises(TaskFailed):
            await handle.result(timeout=WAIT_SECONDS)
        slow.open(gate)
        voided = await slow.until_event("voided", 2)
        assert {item.details["error"] for item in voided} == {"LeaseLostError"}
        assert await (await app.submit(Next())).result(timeout=WAIT_SECONDS) == "done"
        assert (await handle.status()).state == "dead"
    await slow.until_event("rolled back", 2)
    assert slow.journal("committed", task=kind.__name__) == []


async def test_a_worker_ends_although_something_goes_on(site: Site) -> None:
    """What was given up does not keep the process from draining."""
    site.settings["NONET_TASKS"] = TASKS
    worker, gate = site.worker(), site.gate()
    async with site.app(tasks=(TASKS,)) as app:
        for kind in (Stubborn, Hanging):
            with pytest.raises(TaskFailed):
                await (await app.submit(kind(gate))).result(timeout=WAIT_SECONDS)
    worker.terminate()
    assert worker.wait() == 0


async def test_many_that_hang_take_slots_in_the_end(site: Site) -> None:
    """Beyond as many as it has slots a worker says that it must be restarted, and bounds them."""
    site.settings["NONET_TASKS"] = TASKS
    worker, gate = site.worker("--concurrency", "1"), site.gate()
    async with site.app(tasks=(TASKS,)) as app:
        handle = await app.submit(Hanging(gate))
        with pytest.raises(TaskFailed):
            await handle.result(timeout=WAIT_SECONDS)
        await until(lambda: "restart this worker" in worker.log, "it says so")
        waiting = await app.submit(Next())
        assert (await waiting.status()).state == "queued"
        site.open(gate)
        assert await waiting.result(timeout=WAIT_SECONDS) == "done"
