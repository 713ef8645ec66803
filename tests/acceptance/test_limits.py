"""Limits of the configuration, changed while real daemons run: promise 19."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from acceptance.limit_tasks import Bulk, Limited
from acceptance.site import Site, failure, run, submit_all
from daemons import Daemon
from waits import until

TASKS = "acceptance.limit_tasks"
BUSY = "common: {limits: {Job: {busy: {Run: {ConcurrencyLimiter: {limit: %d}}}}}}"
BULK = "common: {limits: {Job: {bulk: {RateLimiter: {limit: %d, window_seconds: 60}}}}}"


async def configured(site: Site, text: str) -> Daemon:
    """Start a worker and a scheduler, and wait until the limits of the file hold."""
    site.worker()
    scheduler = site.scheduler("--config", site.write("limits.yaml", text))
    await until(lambda: limits(site), "the limits are published")
    return scheduler


def limits(site: Site) -> dict[str, str]:
    """The limits that hold."""
    return dict(site.redis.hgetall(site.key("limits")))


async def changed(site: Site, text: str, limit: str) -> None:
    """Write the file anew, and wait until the only limit of it holds."""
    site.write("limits.yaml", text)
    await until(lambda: [*limits(site).values()] == [limit], f"the limit is {limit}")


async def test_a_raised_limit_in_the_file_starts_waiting_tasks(site: Site) -> None:
    """Without a restart, and as many as it allows; each change is an event."""
    scheduler = await configured(site, BUSY % 1)
    gate = site.gate()
    async with site.app() as app:
        ids = await submit_all(app, [Limited(gate) for _ in range(3)])
        await site.until_event("start")
        await until(lambda: sum(map(site.parked, ids)) == 2, "two tasks wait")
        for limit, waiting in ((2, 1), (3, 0)):
            await changed(site, BUSY % limit, str(limit))
            await site.until_event("start", limit)
            assert sum(map(site.parked, ids)) == waiting
        site.open(gate)
        await site.all_ended()
        events = await app.stores.events.last(10, kind="limits-published")
    assert scheduler.alive and "ERROR" not in scheduler.log
    changes = [event.text.rpartition(": ")[2] for event in events]
    assert changes == ["not set -> 1", "1 -> 2", "2 -> 3"]


async def test_a_task_that_no_limit_allows_is_dead(site: Site) -> None:
    """A task that counts for more than the lowered limit is a dead letter with that reason."""
    await configured(site, BULK % 5)
    async with site.app() as app:
        later = datetime.now(UTC) + timedelta(hours=1)
        handle = await app.submit(Bulk(), id="bulk", at_time=later)
        await changed(site, BULK % 4, "4|60000")
        site.hurry(handle)
        failed = await failure(app, handle)
        assert "allows 4, one execution counts 5" in str(failed)
        assert failed.error_type == "LimitImpossible"
        assert (await handle.status()).attempt == 0, "nothing has run"
        (letter,) = await (await app.dead_letters()).list()
        assert (letter.task_id, letter.reason) == ("bulk", "limit-impossible")
        await changed(site, BULK % 5, "5|60000")
        await run(app, Bulk())
    assert len(site.journal("start")) == 1
