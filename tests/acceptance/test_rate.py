"""Rate limits: no token is burnt, and no window of time sees more than its share."""

from __future__ import annotations

import time
from dataclasses import dataclass

from acceptance.contention import PATIENCE, PRODUCTION, in_order, parked, scales, workers
from acceptance.lock_tasks import Holding
from acceptance.site import Site, submit_all
from waits import until


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
