"""An attempt whose class computes other locks than its submitter did, on a real server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from msgspec import structs
from waits import until

from nonet import BaseTask, LeaseLostError, MutexLock, Nonet
from nonet.daemon.watchdog import Watchdog
from nonet.rules.outcomes import HandedBack, Lost, Succeeded
from nonet.stores.queue.leases import Leases
from nonet.tasks.injection import Injector
from nonet.tasks.locks import BaseLock, encode_locks
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.execute import Tools, carry_out
from nonet.worker.attempt.watched_leases import WatchedLeases, readmit

OLD, NEW = MutexLock("job", "old"), MutexLock("job", "new")
ran: list[str] = []


@dataclass
class Deployed(BaseTask):
    @property
    def execution_locks(self) -> list[BaseLock]:
        return [NEW]

    async def execute(self) -> None:
        ran.append("executed")


class OfTenant(BaseTask):
    vo = "lhcb"

    async def execute(self) -> None: ...


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[Nonet]:
    ran.clear()
    async with Nonet.from_settings(
        redis_url=redis_url, namespace="test", tasks=(__name__,)
    ) as opened:
        yield opened


@pytest.fixture
async def tools(app: Nonet) -> AsyncIterator[Tools]:
    with ThreadPoolExecutor(1) as threads:
        async with Injector() as injector:
            yield Tools(
                *(app.client, injector, threads),
                admit=partial(readmit, app.broker),
                leave=lambda *_: None,
            )


async def fetched(app: Nonet, task: BaseTask | None = None, *locks: BaseLock) -> Attempt:
    """An attempt of a task that was submitted with these locks; `Deployed` with the old one."""
    lines = encode_locks(locks if task else [OLD])
    sent = structs.replace(app.client.envelopes.prepare(task or Deployed()), locks=lines)
    await app.broker.submit([sent])
    (delivery,), _ = await app.broker.fetch("medium-a", "medium", 1)
    return Attempt(delivery, time.monotonic())


async def test_an_attempt_exchanges_the_old_lock_for_the_new_one(app: Nonet, tools: Tools) -> None:
    outcome = await carry_out(await fetched(app), tools)
    assert (outcome, ran) == (Succeeded(None), ["executed"])
    keys = [f"{{test}}:{lock.redis_key}" for lock in (OLD, NEW)]
    assert [await app.broker.client.exists(key) for key in keys] == [0, 1]


async def test_an_attempt_has_the_limits_of_its_tenant(app: Nonet, tools: Tools) -> None:
    attempt = await fetched(app, OfTenant())
    assert await carry_out(attempt, tools) == Succeeded(None)
    assert attempt.locks.startswith("V|lhcb|")


async def test_the_watchdog_renews_only_the_lease_with_the_new_lock(
    redis_url: str, app: Nonet
) -> None:
    """A child process that runs the attempt learns the new deadline."""
    times: Any = {"worker_ttl": 9, "lock_ttl": 30, "timeout_seconds": 1}
    watchdog = Watchdog(Leases(redis_url, "test", "medium-a", **times), 15)
    leasing, attempt = WatchedLeases(app.broker, watchdog, 45, 30), await fetched(app)
    leasing.hold(attempt)
    shared = list[float]()
    attempt.share_deadline(shared.append)
    assert await leasing.readmit(attempt, encode_locks([NEW])) is None
    assert list(watchdog._held) == [attempt.lease]
    assert shared[1:] == [attempt.deadline] and shared[0] < shared[1]
    watchdog.stop()


async def test_the_code_of_a_task_notices_the_deadline_itself(redis_url: str, app: Nonet) -> None:
    """The threads of the watchdog may not have run yet: here they never do."""
    times: Any = {"worker_ttl": 9, "lock_ttl": 30, "timeout_seconds": 1}
    watchdog, attempt = Watchdog(Leases(redis_url, "test", "", **times), 15), await fetched(app)
    attempt.since -= 27.8  # of 30 s, less the margin of 2 s
    WatchedLeases(app.broker, watchdog, 45, 30).hold(attempt)

    def is_lost() -> bool:
        with suppress(LeaseLostError):
            attempt.context.ensure_lease()
            return False
        return True

    await until(is_lost, "the deadline has passed")
    assert (attempt.lost, watchdog.losses) == ("the lease could not be renewed in time", 1)
    watchdog.stop()


async def test_an_attempt_whose_new_lock_is_refused_is_handed_back(
    app: Nonet, tools: Tools
) -> None:
    attempt = await fetched(app)
    async with app.hold(NEW):
        outcome = await carry_out(attempt, tools)
    assert (outcome, ran) == (HandedBack(NEW.redis_key), [])


async def test_an_attempt_whose_new_lock_came_too_late_is_lost(app: Nonet, tools: Tools) -> None:
    async def admit_late(attempt: Attempt, lines: str) -> str | None:
        refused = await readmit(app.broker, attempt, lines)
        attempt.lose("overdue")
        return refused

    outcome = await carry_out(await fetched(app), structs.replace(tools, admit=admit_late))
    assert (outcome, ran) == (Lost("overdue"), [])
