"""Effects before release: promise 8."""

from __future__ import annotations

import pytest
from acceptance.probe_tasks import Transactional
from acceptance.site import SHORT, Site, failure, run
from waits import WAIT_SECONDS, until


@pytest.mark.parametrize(
    ("mode", "effect", "error"),
    [
        ("good", "committed", ""),
        ("fails", "rolled back", "ValueError"),
        ("commit fails", "commit failed", "OSError"),
    ],
)
async def test_effects_happen_under_the_lock(
    site: Site, mode: str, effect: str, error: str
) -> None:
    """Dependencies open after the locks are taken and close before they are free.

    A failed execution rolls back, and a failed commit is a failed attempt: both are retried.
    """
    site.worker()
    async with site.app() as app:
        if error:
            assert (await failure(app, Transactional(mode))).error_type == error
        else:
            assert await run(app, Transactional(mode)) == "ok"
    story = [(event.event, event.details["held"]) for event in site.journal()]
    attempts = 2 if error else 1
    assert story == [("opened", True), ("executed", True), (effect, True)] * attempts
    assert not site.redis.exists(site.key("lock:mutex:job:shared"))


@pytest.mark.parametrize(
    ("mode", "error"), [("waits for", "CancelledError"), ("blocks until", "LeaseLostError")]
)
async def test_frozen_worker_does_not_commit(site: Site, mode: str, error: str) -> None:
    """A worker that lost its lock while frozen rolls back when it wakes, instead of committing.

    A task that waits is cancelled; one that blocks the loop is stopped by the check after it.
    """
    gate = site.gate()
    site.settings |= SHORT
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
