"""Workers that are woken all the time stay registered: no gap between two beats is too long."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

import pytest
from acceptance.contention import workers
from acceptance.napping_tasks import Blink
from acceptance.site import Site, submit_all
from waits import wait_until

_SAMPLE_SECONDS = 0.02


class Beats:
    """What is seen of the beats of all workers."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._seen: dict[str, list[int]] = defaultdict(list)

    def look(self) -> None:
        """Note each beat that is new, by the clock of Redis."""
        redis, key = self._site.redis, self._site.key
        names = sorted(redis.zrange(key("workers"), 0, -1))
        with redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hget(key(f"w:{name}"), "beat")
            found = pipe.execute()
        for name, beat in zip(names, found, strict=True):
            if beat and self._seen[name][-1:] != [int(beat)]:
                self._seen[name].append(int(beat))

    def longest_gap(self) -> float:
        """Seconds between two beats of one worker, or since its last."""
        seconds, micros = self._site.redis.time()
        now = seconds * 1_000_000 + micros
        gaps = [
            later - beat
            for beats in self._seen.values()
            for beat, later in zip(beats, [*beats[1:], now], strict=True)
        ]
        return max(gaps) / 1e6

    def workers(self) -> int:
        """How many were ever seen."""
        return len(self._seen)


async def wake_all(site: Site, beats: Beats, slots: int, seconds: float) -> int:
    """Give every slot a task, again and again, as soon as all are idle, and look; how many."""
    deadline, submitted = time.monotonic() + seconds, 0
    async with site.app() as app:
        while time.monotonic() < deadline:
            batch = await submit_all(app, [Blink() for _ in range(slots)])
            submitted += slots
            ended = asyncio.gather(*(app.result(id) for id in batch))
            while not ended.done():
                beats.look()
                await asyncio.wait({ended}, timeout=_SAMPLE_SECONDS)
            ended.result()
    return submitted


@pytest.mark.parametrize(
    ("processes", "slots", "ttl", "seconds"),
    [
        pytest.param(2, 32, 10, 5, id="scaled"),
        pytest.param(4, 16, 2, 120, id="full-slots", marks=pytest.mark.soak),
        pytest.param(64, 1, 30, 120, id="full-processes", marks=pytest.mark.soak),
    ],
)
async def test_no_gap_between_beats_is_longer_than_the_registration(
    site: Site, processes: int, slots: int, ttl: float, seconds: float
) -> None:
    """64 slots under constant wake-ups: the watchdog of each process beats in time."""
    site.settings |= {"NONET_TASKS": "acceptance.napping_tasks", "NONET_WORKER_TTL": str(ttl)}
    workers(site, processes, slots=slots)
    beats = Beats(site)
    began = time.monotonic()
    submitted = await wake_all(site, beats, processes * slots, seconds)
    rate = submitted / (time.monotonic() - began)
    gap = beats.longest_gap()
    print(f"\n{processes} x {slots} slots: {rate:.0f} wake-ups/s, longest gap {gap:.2f} of {ttl} s")
    assert beats.workers() == processes
    assert gap < ttl
    wait_until(lambda: not site.live(), "all tasks have ended")
    beats.look()
    assert beats.workers() == processes  # nobody was forgotten and came back under another name
