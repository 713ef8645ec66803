"""How long workers that are woken all the time go without a beat: a figure for `make soak`."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

import pytest
from acceptance.blocking_tasks import Blink
from acceptance.contention import workers
from acceptance.site import Site, submit_all

TASKS = "acceptance.blocking_tasks"


@pytest.mark.soak
@pytest.mark.parametrize(("processes", "slots", "ttl"), [(4, 16, 2), (64, 1, 30)])
async def test_no_gap_between_beats_is_longer_than_the_registration(
    site: Site, processes: int, slots: int, ttl: int
) -> None:
    """64 slots under constant wake-ups: the watchdog of each process beats in time."""
    site.settings["NONET_WORKER_TTL"] = str(ttl)
    workers(site, processes, slots=slots)
    seen: dict[str, list[int]] = defaultdict(list)

    def look() -> None:
        for name in site.redis.zrange(site.key("workers"), 0, -1):
            beat = int(site.redis.hget(site.key(f"w:{name}"), "beat") or 0)
            if beat and seen[name][-1:] != [beat]:
                seen[name].append(beat)

    deadline = time.monotonic() + 120
    async with site.app() as app:
        while time.monotonic() < deadline:
            ids = await submit_all(app, [Blink() for _ in range(processes * slots)])
            ended = asyncio.gather(*(app.result(id) for id in ids))
            while not ended.done():
                look()
                await asyncio.wait({ended}, timeout=0.02)
            ended.result()
    seconds, micros = site.redis.time()
    now = seconds * 1_000_000 + micros
    gap = max(
        later - beat
        for beats in seen.values()
        for beat, later in zip(beats, [*beats[1:], now], strict=True)
    )
    print(f"\n{processes} x {slots} slots: longest gap {gap / 1e6:.2f} of {ttl} s")
    assert len(seen) == processes, "a worker was forgotten and came back under another name"
    assert gap / 1e6 < ttl
