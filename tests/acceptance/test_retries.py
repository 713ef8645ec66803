"""Failed attempts, and exceptions that are hard on a worker: promises 3 and 9."""

from __future__ import annotations

from collections import Counter

import pytest
from acceptance.probe_tasks import CancelsItself, Fails, FailsInspected, Gives, LacksLock, Quick
from acceptance.raising_tasks import ALL, PLACES, InExecute, InResult
from acceptance.site import Site
from waits import WAIT_SECONDS, until

from nonet import ResultUnavailable, TaskFailed


async def test_max_retries_means_retries(site: Site) -> None:
    """``max_retries=2`` is three executions with one id and growing attempt numbers."""
    site.worker()
    async with site.app() as app:
        handle = await app.submit(Fails())
        with pytest.raises(TaskFailed, match="as always") as raised:
            await handle.result(timeout=WAIT_SECONDS)
        status = await handle.status()
    assert raised.value.error_type == "ValueError"
    assert raised.value.reason == "retries"
    assert (status.state, status.attempt) == ("dead", 3)
    assert [(event.id, event.attempt) for event in site.journal("start")] == [
        (handle, 1),
        (handle, 2),
        (handle, 3),
    ]


async def test_policy_sees_the_real_exception(site: Site) -> None:
    """A policy gets the attempt and the very exception: its type, attributes and traceback."""
    site.worker()
    async with site.app() as app:
        handle = await app.submit(FailsInspected())
        with pytest.raises(TaskFailed, match="refused with 3"):
            await handle.result(timeout=WAIT_SECONDS)
    assert site.policy_calls() == [[1, True, 1, True], [2, True, 2, True], [3, True, 3, True]]


async def test_stop_retrying_is_final(site: Site) -> None:
    """StopRetrying ends the task in its first attempt, whatever the policy would say."""
    site.worker()
    async with site.app() as app:
        handle = await app.submit(Gives())
        with pytest.raises(TaskFailed, match="hopeless") as raised:
            await handle.result(timeout=WAIT_SECONDS)
    assert raised.value.reason == "stopped"
    assert len(site.journal("start")) == 1


async def test_lack_of_a_lock_is_no_attempt(site: Site) -> None:
    """UnableToAcquireLockError hands the task back: it runs again as attempt 1."""
    gate = site.gate()
    site.worker()
    async with site.app() as app:
        handle = await app.submit(LacksLock(gate))
        for times in (1, 2):
            await site.started(handle, times)
            await until(lambda: site.parked(handle), "the task was handed back")
            status = await handle.status()
            assert (status.state, status.attempt) == ("waiting", 0)
            assert "somebody else has it" in status.blocker
            if times == 2:
                site.open(gate)
            site.hurry(handle)
        assert await handle.result(timeout=WAIT_SECONDS) == 1
    assert [event.attempt for event in site.journal("start")] == [1, 1, 1]


async def test_own_cancellation_is_a_failed_attempt(site: Site) -> None:
    """A task that cancels itself has failed; it is not handed back and tried for ever."""
    worker = site.worker()
    async with site.app() as app:
        handle = await app.submit(CancelsItself())
        with pytest.raises(TaskFailed) as raised:
            await handle.result(timeout=WAIT_SECONDS)
        assert await (await app.submit(Quick(5))).result(timeout=WAIT_SECONDS) == 5
    assert raised.value.error_type == "CancelledError"
    assert len(site.journal("start", id=handle)) == 1
    assert worker.alive


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
async def test_a_worker_survives_every_exception_everywhere(
    site: Site, place: type[InExecute]
) -> None:
    """Whatever is raised wherever the worker calls code of a task, the task has failed, once."""
    site.settings["NONET_TASKS"] += ",acceptance.raising_tasks"
    worker = site.worker("--concurrency", "3")
    reasons = Counter[str]()
    async with site.app(tasks=("acceptance.probe_tasks", "acceptance.raising_tasks")) as app:
        handles = {name: await app.submit(place(name), labels={"name": name}) for name in ALL}
        for name, handle in handles.items():
            # What its result is like has no say in whether a task is done.
            kind = ResultUnavailable if place is InResult else TaskFailed
            with pytest.raises(kind) as raised:
                await handle.result(timeout=WAIT_SECONDS)
            reasons[getattr(raised.value, "reason", "unavailable")] += 1
            assert len(str(raised.value)) < 50_000, name
        assert await (await app.submit(Quick(5))).result(timeout=WAIT_SECONDS) == 5
        await site.all_ended()
    assert reasons == {"unavailable" if place is InResult else "retries": len(ALL)}
    assert worker.alive
    assert {event.pid for event in site.journal()} == {worker.pid}
    assert max(Counter(event.id for event in site.journal("start")).values()) == 1
    assert "its settlement failed" not in worker.log
    assert len(worker.log) < 500_000
