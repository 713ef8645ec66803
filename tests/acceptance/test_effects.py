"""Effects before release: promise 8."""

from __future__ import annotations

import pytest
from acceptance.probe_tasks import Transactional
from acceptance.site import Site
from waits import WAIT_SECONDS, until

from nonet import TaskFailed


def _story(site: Site) -> list[tuple[str, bool]]:
    return [(event.event, event.details["held"]) for event in site.journal()]


async def test_commit_happens_under_the_lock(site: Site) -> None:
    """Dependencies open after the locks are taken and commit before they are free."""
    site.worker()
    async with site.app() as app:
        handle = await app.submit(Transactional("good"))
        assert await handle.result(timeout=WAIT_SECONDS) == "ok"
    assert _story(site) == [("opened", True), ("executed", True), ("committed", True)]
    assert not site.redis.exists(site.key("lock:mutex:job:shared"))


async def test_failure_rolls_back_under_the_lock(site: Site) -> None:
    """A failed execution rolls back, sees its exception, and never commits."""
    site.worker()
    async with site.app() as app:
        handle = await app.submit(Transactional("fails"))
        with pytest.raises(TaskFailed):
            await handle.result(timeout=WAIT_SECONDS)
    assert _story(site) == [("opened", True), ("executed", True), ("rolled back", True)] * 2
    assert {event.details["error"] for event in site.journal("rolled back")} == {"ValueError"}


async def test_failing_commit_is_a_failed_attempt(site: Site) -> None:
    """A commit that fails fails the attempt: it is retried, and never reported as done."""
    site.worker()
    async with site.app() as app:
        handle = await app.submit(Transactional("commit fails"))
        with pytest.raises(TaskFailed, match="disk full") as raised:
            await handle.result(timeout=WAIT_SECONDS)
    assert raised.value.error_type == "OSError"
    assert _story(site) == [("opened", True), ("executed", True), ("commit failed", True)] * 2
    assert [event.attempt for event in site.journal("commit failed")] == [1, 2]


@pytest.mark.parametrize(
    ("mode", "error"), [("waits for", "CancelledError"), ("blocks until", "LeaseLostError")]
)
async def test_frozen_worker_does_not_commit(site: Site, mode: str, error: str) -> None:
    """A worker that lost its lock while frozen rolls back when it wakes, instead of committing.

    A task that waits is cancelled; one that blocks the loop is stopped by the check after it.
    """
    gate = site.gate()
    frozen = site.worker()
    async with site.app() as app:
        handle = await app.submit(Transactional(f"{mode} {gate}"))
        await site.until_event("executed", id=handle)
        frozen.freeze()
        site.worker()
        await site.until_event("executed", times=2, id=handle)
        frozen.thaw()
        await until(lambda: f"lease lost: task_id={handle}" in frozen.log, "the loss was noticed")
        site.open(gate)
        await site.until_event("rolled back", id=handle)
        assert await handle.result(timeout=WAIT_SECONDS) == "ok"
    (rolled,) = site.journal("rolled back")
    (committed,) = site.journal("committed")
    assert (rolled.pid, rolled.details["error"]) == (frozen.pid, error)
    assert committed.pid != frozen.pid
