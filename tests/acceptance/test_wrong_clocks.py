"""A worker whose clock is wrong: promise 18, only the server's time counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from acceptance.probe_tasks import Alone, GatedMutex, Quick, RetriedLater
from acceptance.site import LEASE, SHORT, Site
from daemons import wrong_clock
from waits import WAIT_SECONDS, until


@pytest.mark.parametrize("shift", ["+1h", "-1h"])
async def test_a_wrong_clock_changes_nothing(site: Site, shift: str) -> None:
    """It takes neither locks nor deliveries that others hold, and is never early nor late."""
    gate = site.gate()
    site.settings |= SHORT
    site.worker("--concurrency", "1")
    async with site.app() as app:
        holder = await site.begin(app, GatedMutex(gate))
        wrong = site.worker("--concurrency", "5", **wrong_clock(shift))
        waiting = await app.submit(Alone())
        retried = await app.submit(RetriedLater())
        due = datetime.now(UTC) + timedelta(seconds=0.5)
        delayed = await app.submit(Quick(7), at_time=due)
        assert await delayed.result(timeout=WAIT_SECONDS) == 7
        assert due <= datetime.now(UTC)
        (ran,) = site.journal("start", id=delayed)
        assert ran.pid == wrong.pid, "the other worker is occupied"
        assert abs(ran.at - due.timestamp()) > 3000, "its clock was not wrong at all"
        assert await retried.result(timeout=WAIT_SECONDS) == 2
        passed = site.redis.time()[0] + 2 * LEASE
        await until(lambda: site.redis.time()[0] > passed, "two leases have passed")
        assert (await waiting.status()).state == "waiting"
        assert len(site.journal("start", id=holder)) == 1
        site.open(gate)
        await waiting.result(timeout=WAIT_SECONDS)
        assert (await holder.result(timeout=WAIT_SECONDS)) != wrong.pid
