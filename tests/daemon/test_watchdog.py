"""When the watchdog gives a lease up: its deadline, with a real server behind it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from servers import RedisServer
from waits import WAIT_SECONDS, until, wait_until

from nonet.daemon.watchdog import Watchdog
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.leases import BeatReport, Lease, Leases
from nonet.stores.queue.submissions import Submission

LONG = Lease("t", "1", "1", ttl=300.0)
FAR = Lease("other", "1", "1", ttl=600.0)
DEADLINE = 298.0  # of LONG: less the margin


def leases_of(redis_url: str, worker: str = "", info: str = "", ttl: float = 30) -> Leases:
    leases = Leases(redis_url, "test", worker, worker_ttl=ttl, lock_ttl=ttl, timeout_seconds=60)
    leases.ask(lambda: BeatReport(info))
    return leases


@pytest.fixture
def watchdog(redis_url: str) -> Iterator[Watchdog]:
    made = Watchdog(leases_of(redis_url), interval=60)
    yield made
    made.stop()


def test_a_loss_says_what_kept_the_threads_from_running(redis_url: str) -> None:
    """Its reason ends with that, if it is known."""
    lost: list[str] = []
    made = Watchdog(leases_of(redis_url), interval=60, why_late=lambda: "x:Slow held the lock")
    made.hold(LONG, time.monotonic() - DEADLINE, lost.append)
    made.stop()
    assert lost == ["the lease could not be renewed in time: x:Slow held the lock"]


def test_a_lease_that_came_too_late_is_lost_at_once(watchdog: Watchdog) -> None:
    """The loss does not need the thread, and is reported and counted once."""
    lost: list[str] = []
    watchdog.hold(LONG, time.monotonic() - DEADLINE, lost.append)
    assert lost == ["the lease could not be renewed in time"]
    watchdog.check(LONG)
    assert (len(lost), watchdog.losses) == (1, 1)
    watchdog.hold(LONG, time.monotonic() - DEADLINE, lost.append)
    assert (len(lost), watchdog.losses) == (2, 2)


def test_a_check_after_the_deadline_loses_the_lease(watchdog: Watchdog) -> None:
    """A check before it does not, even if the thread has not run."""
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


def test_a_deadline_is_noticed_before_the_next_beat(watchdog: Watchdog) -> None:
    """A lease that is taken while the threads sleep does not last a whole interval."""
    watchdog.start()
    watchdog.hold(FAR, time.monotonic(), lambda reason: None)
    wait_until(lambda: watchdog._deadlines.until < float("inf"), "the threads sleep")
    lost = threading.Event()
    watchdog.hold(LONG, time.monotonic() - DEADLINE + 0.2, lambda reason: lost.set())
    assert lost.wait(WAIT_SECONDS), "the watchdog still sleeps"


async def test_each_renewal_is_reported(redis_url: str, broker: Broker) -> None:
    """The guardian of a child process has no other deadline."""
    await broker.submit([Submission("a", "p:T", "normal:small", b"e")])
    ((given,), *_) = await broker.fetch("small-a", "small", 1)
    lease = Lease(given.id, given.gen, given.fence, 45.0, given.stream_key, given.entry)
    watchdog = Watchdog(leases_of(redis_url, "small-a"), interval=0.05)
    heard = list[float]()
    await asyncio.to_thread(watchdog.start)
    try:
        watchdog.hold(lease, time.monotonic(), lambda reason: None, heard.append)
        await until(lambda: len(heard) >= 3, "two beats have renewed it")
        assert heard == sorted(heard) and heard[0] < heard[-1]
    finally:
        await asyncio.to_thread(watchdog.stop)


def test_a_deadline_is_noticed_while_redis_is_silent(
    redis_server: RedisServer, redis_url: str
) -> None:
    """A beat that hangs until its timeout does not delay the cancellation of a task."""
    watchdog, lost = Watchdog(leases_of(redis_url), interval=0.1), threading.Event()
    watchdog.start()
    with redis_server.client() as client:
        client.client_pause(60_000, all=False)  # scripts that write
        try:
            paused = time.monotonic()
            wait_until(lambda: watchdog._last_beat > paused, "a beat hangs")
            watchdog.hold(LONG, time.monotonic() - DEADLINE + 0.2, lambda reason: lost.set())
            assert lost.wait(WAIT_SECONDS), "the watchdog waited for Redis"
        finally:
            client.client_unpause()
            watchdog.stop()


def test_a_registration_that_cannot_be_renewed_is_reported_once(
    redis_server: RedisServer, redis_url: str
) -> None:
    """It needs no lease; after a renewal the next failure is reported again."""
    told: list[str] = []
    leases = leases_of(redis_url, "small-a", "{}", ttl=1)
    watchdog = Watchdog(leases, 0.1, registered_for=1, on_unregistered=told.append)
    assert not watchdog.is_registered
    watchdog.start()
    wait_until(lambda: watchdog.is_registered, "it is registered")
    reason = "this worker could not renew its registration"
    with redis_server.client() as client:
        try:
            for times in (1, 2):
                client.set("{test}:w:small-a", "of another type")
                wait_until(lambda: len(told) == times, "it was told")  # noqa: B023
                assert not watchdog.is_registered
                before = watchdog._last_beat
                wait_until(lambda: watchdog._last_beat > before + 0.5, "it beats on")  # noqa: B023
                assert told == [reason] * times
                client.delete("{test}:w:small-a")
                wait_until(lambda: watchdog.is_registered, "a beat succeeded")
        finally:
            watchdog.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watchdog_without_its_threads_is_stuck(
    watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other thread renews its leases."""
    assert watchdog.stuck() == ""

    def end() -> None:
        raise SystemExit

    watchdog.start()
    assert watchdog.stuck() == ""
    monkeypatch.setattr(watchdog, "_try_beat", end)
    watchdog.beat_soon()
    wait_until(lambda: watchdog.stuck(), "it is told")
    assert watchdog.stuck() == "the thread nonet-watchdog has ended"
