"""What a task saves for its next attempt, and what it submits with its own end."""

from __future__ import annotations

from acceptance.saving_tasks import Counting, CountingInThread, Greedy, Parent
from acceptance.site import PROBES, SHORT, Site, failure
from waits import WAIT_SECONDS

TASKS = f"{PROBES},acceptance.saving_tasks"


async def test_the_next_attempt_finds_what_was_saved(site: Site) -> None:
    """A retry continues where the failed attempt saved last, in the loop and in a thread."""
    site.worker()
    async with site.app() as app:
        counting = await app.submit(Counting(10, fails_at=4))
        threaded = await app.submit(CountingInThread(3))
        assert await counting.result(timeout=WAIT_SECONDS) == 4
        assert await threaded.result(timeout=WAIT_SECONDS) == {"at": 3}
        assert [event.details["saved"] for event in site.journal("start", id=counting)] == [None, 4]
    await site.all_ended()


async def test_a_killed_worker_leaves_what_was_saved(site: Site) -> None:
    """The next worker finds it; nothing of it is left after the end."""
    site.settings |= SHORT
    first = site.worker()
    async with site.app() as app:
        task = await app.submit(Counting(10, fails_at=4, gate=site.gate()))
        await site.until_event("trouble", id=task)
        first.kill()
        site.worker()
        assert await task.result(timeout=WAIT_SECONDS) == 4
    assert list(site.redis.scan_iter(site.key("c:*"))) == []


async def test_children_start_only_after_the_commit(site: Site) -> None:
    """Attempts whose commit fails submit nothing, nor does one that asks for too much."""
    site.worker()
    async with site.app() as app:
        parent = await app.submit(Parent(20))
        attempts = await site.until_event("asked", 3, id=parent)
        assert "takes at most 500 tasks" in str(await failure(app, Greedy()))
        assert site.journal("start", task="Quick") == []
        site.write("commit", "")
        ids = await parent.result(timeout=WAIT_SECONDS)
        assert ids not in [attempt.details["ids"] for attempt in attempts[:2]]
        await site.all_ended()
    assert sorted(event.id for event in site.journal("start", task="Quick")) == sorted(ids)
