"""Rate limits: no token is burnt, and no window of time sees more than its share."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from acceptance.contention import PATIENCE, PRODUCTION, in_order, parked, scales, workers
from acceptance.lock_tasks import Hogging, Holding, lock_of
from acceptance.site import Event, Site, submit_all
from daemons import frozen, until

from nonet import Nonet, RateLimiter

# Numbers of starts run ahead of the time by a few microseconds.
MOMENT = 0.001


@dataclass(frozen=True)
class Busy:
    seconds: float
    window: float
    limit: int = 10


@scales(Busy(seconds=2, window=3), Busy(seconds=30, window=10))
async def test_waiting_for_a_mutex_burns_no_token(contended: Site, scale: Busy) -> None:
    """While a mutex is busy those who wait for it use nothing of their rate; then all of it."""
    site = contended
    workers(site, 2, slots=8, **PRODUCTION)
    rate, key = f"L r {scale.limit} {scale.window}", site.key("limiter:rate:job:r")
    gate = site.gate()
    async with site.app() as app:
        holder = await app.submit(Holding(["M a"], gate=gate))
        await site.started(holder)
        ids = await submit_all(app, [Holding(["M a", rate]) for _ in range(scale.limit + 2)])
        await parked(site, "M a", len(ids))
        idle_until = time.monotonic() + scale.seconds
        used = set()

        def is_over() -> bool:
            used.add(site.redis.zcard(key))
            return time.monotonic() >= idle_until

        await until(is_over, "the mutex was busy for long enough", seconds=scale.seconds * 2)
        site.open(gate)
        await site.all_ended(seconds=scale.window * 3 + PATIENCE)
    starts = [site.journal("start", id=id)[0].at for id in ids]
    burst, last = starts[scale.limit - 1] - starts[0], starts[-1] - starts[0]
    print(
        f"\n{scale.limit} per {scale.window:g} s beside a mutex busy for {scale.seconds:g} s: "
        f"{max(used)} tokens used meanwhile; then {scale.limit} ran within {burst:.2f} s, the last "
        f"of {len(ids)} after {last:.2f} s"
    )
    assert used == {0}
    assert in_order(site, ids) == ids
    assert burst < scale.window / 2
    assert last >= scale.window - 0.5  # a start may come so much later than its grant


@dataclass(frozen=True)
class Load:
    limit: int
    window: float
    seconds: float
    seed: int = 11


@scales(Load(limit=10, window=1, seconds=6), Load(limit=10, window=10, seconds=120))
async def test_no_window_sees_more_than_the_limit(contended: Site, scale: Load) -> None:
    """Under random load, in bursts and pauses, no window of Redis time holds more than the limit.

    Each task counts for one to three items.
    """
    site = contended
    workers(site, 2, slots=8, **PRODUCTION)
    async with site.app() as app:
        await _random_load(app, scale)
        await site.all_ended(seconds=scale.seconds * 3 + PATIENCE)
    # Redis numbers a start by its time in microseconds, in the script that grants its tokens.
    used = sorted((event.fence / 1e6, _items(event)) for event in site.journal("start"))
    most = max(
        sum(items for at, items in used if first <= at < first + scale.window - MOMENT)
        for first, _ in used
    )
    total, lasted = sum(items for _, items in used), used[-1][0] - used[0][0]
    print(
        f"\n{scale.limit} per {scale.window:g} s under {lasted:.0f} s of random load: "
        f"{total} items in {len(used)} starts, {most} at most in any window, "
        f"{total / (lasted / scale.window + 1):.1f} per window on average"
    )
    assert most <= scale.limit
    assert most >= scale.limit - 2, "the limit was hardly met: the test has missed its point"


def _items(start: Event) -> int:
    (limiter,) = map(lock_of, start.details["locks"])
    assert isinstance(limiter, RateLimiter)
    return limiter.n_items


async def _random_load(app: Nonet, scale: Load) -> None:
    """Bursts and pauses, on average somewhat less than the limit."""
    chance = random.Random(scale.seed)
    deadline = time.monotonic() + scale.seconds
    while time.monotonic() < deadline:
        burst = [chance.randint(1, 3) for _ in range(chance.randint(1, 7))]
        await app.submit_many(
            Holding([f"L r {scale.limit} {scale.window} {items}"]) for items in burst
        )
        rest = sum(burst) / scale.limit * scale.window
        await asyncio.sleep(rest * chance.uniform(0.3, 2.0))  # a load, not a wait for something


async def test_a_token_that_was_not_used_in_time_comes_back(contended: Site) -> None:
    """A grant whose attempt cannot start for 0.5 s is handed back with its token, and runs later.

    The only token of an hour would otherwise be gone.
    """
    site = contended
    (worker,) = workers(site, 1, slots=2, **PRODUCTION)
    async with site.app() as app:
        with frozen(worker):
            await app.submit(Hogging(1.0))
            limited = await app.submit(Holding(["L hourly 1 3600"]))
        await app.result(limited, timeout=PATIENCE)
        (start,) = site.journal("start", id=limited)
        ((member, granted),) = site.redis.zrange(
            site.key("limiter:rate:job:hourly"), 0, -1, withscores=True
        )
        await site.all_ended()
    (hogged,) = site.journal("end", task="Hogging")
    late = start.at - granted / 1e6
    print(f"\nthe loop was busy for 1 s: granted anew, and started {late * 1000:.0f} ms after that")
    assert start.at >= hogged.at
    assert granted / 1e6 >= hogged.at - 0.1, "it kept the grant that it did not use in time"
    assert member.split("|")[0].endswith(f"/{start.fence}")
    assert late <= 0.5
