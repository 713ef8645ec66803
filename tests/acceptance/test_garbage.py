"""Garbage kills no worker and holds up no task; newer tasks are handed on: promises 16 and 17."""

from __future__ import annotations

from functools import partial

import msgspec
import records
from acceptance.extra_tasks import Newer
from acceptance.probe_tasks import Gated, Quick
from acceptance.site import PROBES, Site, failure, run
from waits import WAIT_SECONDS, until

from nonet.base.messages.formats import FORMAT

TASKS = f"{PROBES},acceptance.extra_tasks"


async def test_a_task_that_cannot_be_started_holds_up_no_other(site: Site) -> None:
    """Unreadable locks end one task; those fetched behind it run once."""
    async with site.app() as app:
        handles = await app.submit_many([Quick(n) for n in range(5)])
        records.hset(site.redis, site.key(f"t:{handles[1]}"), "locks", "M|z")
        worker = site.worker("--concurrency", "10")
        assert (await failure(app, handles[1])).reason == "quarantined"
        assert [await handles[n].result(timeout=WAIT_SECONDS) for n in (0, 2, 3, 4)] == [0, 2, 3, 4]
        await site.all_ended()
    assert worker.alive
    assert [event.attempt for event in site.journal("start")] == [1] * 4


async def test_a_newer_envelope_is_handed_on(site: Site) -> None:
    """This release cannot read it: it waits for a newer worker, and holds up no other task."""
    worker = site.worker()
    newer = [FORMAT + 1, "newer", "probe_tasks:Quick", msgspec.msgpack.Ext(99, b"x"), None]
    async with site.app() as app:
        site.queue_raw("newer", msgspec.msgpack.encode(newer))
        await until(lambda: site.parked("newer"), "the task is handed on")
        status = await app.status("newer")
        assert (status.state, status.attempt) == ("waiting", 0)
        assert f"task format {FORMAT + 1}, read here up to {FORMAT}" in status.blocker
        assert await run(app, Quick(7)) == 7
        await app.cancel(["newer"])
        await site.all_ended()
    assert not site.redis.exists(site.key("quarantine"))
    assert worker.alive


async def test_neither_logs_nor_status_show_arguments(site: Site) -> None:
    """Not even at the level of debugging."""
    worker = site.worker("--debug")
    async with site.app() as app:
        secret = site.gate()
        handle = await site.begin(app, Gated(secret))
        status = await handle.status()
        site.open(secret)
        await handle.result(timeout=WAIT_SECONDS)
    assert secret not in repr(status)
    assert secret not in worker.log


async def test_a_registration_wakes_what_waits_for_it(site: Site) -> None:
    """Until then no worker receives the task again."""
    site.worker(NONET_TASKS=PROBES), site.worker(NONET_TASKS=PROBES)
    async with site.app() as app:
        handles = [await app.submit(Newer(number)) for number in range(20)]
        for handle in handles:
            await until(partial(site.parked, handle), "it was handed on")
            far = site.redis.zscore(site.key("tasks:delayed"), handle) + 3600e6
            site.redis.zadd(site.key("tasks:delayed"), {handle: far})
        assert {records.hget(site.redis, site.key(f"t:{id}"), "handed") for id in handles} == {"1"}
        new = site.worker()
        assert {await handle.result(timeout=WAIT_SECONDS) for handle in handles} == {new.pid}
        assert (await app.doctor()).is_healthy
        await site.all_ended()
    assert not site.redis.keys(site.key("unfit:*"))
