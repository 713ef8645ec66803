"""When the watchdog gives a lease up: its deadline, with a real server behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from daemons import wait_until
from servers import RedisServer

from nonet.stores.leases import Lease, Leases
from nonet.watchdog import Watchdog

LONG = Lease("t", "1", "1", ttl=300.0)
FAR = Lease("other", "1", "1", ttl=600.0)
DEADLINE = 298.0  # of LONG: less the margin


@pytest.fixture
def watchdog(redis_url: str) -> Iterator[Watchdog]:
    leases = Leases(redis_url, "test", "", "", worker_ttl=30, lock_ttl=30, timeout_seconds=5)
    made = Watchdog(leases, interval=60)
    yield made
    made.stop()


def test_a_lease_that_came_too_late_is_lost_at_once(watchdog: Watchdog) -> None:
    """Without its thread: the loop was blocked while the reply waited."""
    lost: list[str] = []
    watchdog.hold(LONG, time.monotonic() - DEADLINE, lost.append)
    assert lost == ["the lease could not be renewed in time"]
    watchdog.check(LONG)
    assert len(lost) == 1


def test_a_lease_is_lost_when_somebody_looks_after_its_deadline(watchdog: Watchdog) -> None:
    """Not before, and once, though the thread has not seen it."""
    lost: list[str] = []
    watchdog.hold(LONG, time.monotonic(), lost.append)
    watchdog.check(LONG)
    assert lost == []
    watchdog.hold(LONG, time.monotonic() - DEADLINE + 0.2, lost.append)

    def is_lost() -> bool:
        watchdog.check(LONG)
        return bool(lost)

    wait_until(is_lost, "the deadline has passed")
    watchdog.check(LONG)
    assert len(lost) == 1


def test_a_deadline_is_seen_before_the_next_beat(watchdog: Watchdog) -> None:
    """A lease held while the threads sleep is not given a whole interval."""
    watchdog.start()
    watchdog.hold(FAR, time.monotonic(), lambda reason: None)
    wait_until(lambda: watchdog._deadlines.until < float("inf"), "the threads sleep")
    lost = threading.Event()
    watchdog.hold(LONG, time.monotonic() - DEADLINE + 0.2, lambda reason: lost.set())
    assert lost.wait(20), "the watchdog slept on"


def test_a_deadline_is_seen_while_redis_is_silent(
    redis_server: RedisServer, redis_url: str
) -> None:
    """A beat that hangs until its timeout does not keep what runs from being cancelled."""
    leases = Leases(redis_url, "test", "", "", worker_ttl=30, lock_ttl=30, timeout_seconds=60)
    watchdog, lost = Watchdog(leases, interval=0.1), threading.Event()
    watchdog.start()
    with redis_server.client() as client:
        client.client_pause(60_000, all=False)  # scripts that write
        try:
            paused = time.monotonic()
            wait_until(lambda: watchdog._last_beat > paused, "a beat hangs")
            watchdog.hold(LONG, time.monotonic() - DEADLINE + 0.2, lambda reason: lost.set())
            assert lost.wait(20), "the watchdog waited for Redis"
        finally:
            client.client_unpause()
            watchdog.stop()
