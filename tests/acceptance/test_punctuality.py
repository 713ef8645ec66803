"""Delayed promotion: punctual, never early, in bounded batches that let others through."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from acceptance.probe_tasks import Quick
from acceptance.site import Site
from waits import WAIT_SECONDS, until

# A Redis that is held up for longer would delay everybody.
SLOW_CALL_US = 10_000


@pytest.mark.soak
async def test_a_flood_of_due_tasks_lets_others_through(site: Site) -> None:
    """Many tasks due in one second are promoted by bounded calls, and a realtime task starts."""
    scale = 100_000
    site.worker("--concurrency", "10")
    scheduler = site.scheduler()
    await until(lambda: "leading: term=" in scheduler.log, "the scheduler leads")
    due = datetime.now(UTC) + timedelta(seconds=3 + scale / 2500)
    async with site.app() as app:
        # There is no worker of their size: what is promoted stays, and can be counted.
        flood = [Quick(n) for n in range(scale)]
        for start in range(0, scale, 5000):
            await app.submit_many(
                flood[start : start + 5000], at_time=due, labels={"size": "large"}
            )
        left = due.timestamp() - time.time()
        assert left > 0, "the machine was too slow to submit in time"
        assert site.redis.zcard(site.key("tasks:delayed")) == scale
        site.redis.config_set("slowlog-log-slower-than", SLOW_CALL_US)
        site.redis.slowlog_reset()
        latencies = []
        await asyncio.sleep(max(0.0, due.timestamp() - time.time()))  # the moment is the test
        began = time.monotonic()
        while site.redis.zcard(site.key("tasks:delayed")):
            sent = time.time()
            handle = await app.submit(Quick(0), labels={"priority": "realtime", "size": "small"})
            await handle.result(timeout=WAIT_SECONDS)
            (event,) = site.journal("start", id=str(handle))
            latencies.append(event.at - sent)
            await asyncio.sleep(0.02)
        took = time.monotonic() - began
    slow = [call for call in site.redis.slowlog_get(1000) if b"EVALSHA" in call["command"]]
    latencies.sort()
    middle, worst = latencies[len(latencies) // 2], latencies[-1]
    print(
        f"{scale} tasks due at once: promoted in {took:.2f} s, {len(slow)} calls took over 10 ms;"
        f" {len(latencies)} realtime tasks meanwhile: started after {1000 * middle:.1f} ms"
        f" (median), {1000 * worst:.1f} (worst)"
    )
    assert site.entries() == scale
    scheduler.kill()
    site.redis.flushdb()  # nobody is there to execute them
    assert middle < 0.1
    assert took < 4 * 5  # of an idle machine: 5
    # Of 1,000. A promotion takes 1 to 2 ms, unless others use the machine.
    assert len(slow) < 50
