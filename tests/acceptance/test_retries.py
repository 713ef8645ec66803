"""Failed attempts, and exceptions that are hard on a worker: promises 3 and 9."""

from __future__ import annotations

from collections import Counter

import pytest
from acceptance.probe_tasks import Fails, FailsInspected, LacksLock, Quick
from acceptance.raising_tasks import KINDS, PLACES
from acceptance.site import PROBES, Site, failure, run
from waits import WAIT_SECONDS, until

from nonet import ResultUnavailable, TaskFailed

TASKS = f"{PROBES},acceptance.raising_tasks"


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


async def test_lack_of_a_lock_is_no_attempt(site: Site) -> None:
    """UnableToAcquireLockError hands the task back, as the log says: it runs again as attempt 1."""
    gate = site.gate()
    worker = site.worker()
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
    assert "handed back: UnableToAcquireLockError" in worker.log and "failed in" not in worker.log


async def test_a_worker_survives_every_exception_everywhere(site: Site) -> None:
    """Whatever is raised wherever the worker calls code of a task, the task has failed, once."""
    worker = site.worker("--concurrency", "10")
    async with site.app() as app:
        handles = {
            (place.__name__, name): await app.submit(place(name), labels={"name": name})
            for place in PLACES
            for name in KINDS
        }
        for (place, name), handle in handles.items():
            if place == "InResult":  # what its result is like has no say in whether it is done
                with pytest.raises(ResultUnavailable) as raised:
                    await handle.result(timeout=WAIT_SECONDS)
                error: Exception = raised.value
            else:
                error = failed = await failure(app, handle)
                assert failed.reason == "retries", (place, name)
            assert len(str(error)) < 50_000, (place, name)
        assert await run(app, Quick(5)) == 5
        await site.all_ended()
    assert worker.alive
    assert {event.pid for event in site.journal()} == {worker.pid}
    assert max(Counter(event.id for event in site.journal("start")).values()) == 1
    assert "its settlement failed" not in worker.log and "cannot be concluded" not in worker.log
    assert len(worker.log) < 500_000 * len(PLACES)
