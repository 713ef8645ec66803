"""A hold whose locks may have ended before its block could begin, on a real server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from nonet import BaseTask, Depends, MutexLock, Nonet
from nonet.base.errors import LeaseLostError
from nonet.daemon.watchdog import Watchdog
from nonet.tasks.locks import BaseLock

TTL = 0.2
MUTEX = MutexLock("job", "a")
ran: list[str] = []


def outlast() -> None:
    """Block this thread until the locks have ended."""
    time.sleep(2 * TTL)


@pytest.fixture(autouse=True)
def _idle_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the thread from running, so that the code in the loop must notice the loss."""
    monkeypatch.setattr(Watchdog, "start", Watchdog._beat)


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[Nonet]:
    ran.clear()
    async with Nonet.from_settings(
        redis_url=redis_url, namespace="test", tasks=(__name__,), lock_ttl=TTL
    ) as opened:
        yield opened


def slow_dependency() -> Iterator[None]:
    ran.append("opened")
    outlast()
    yield
    ran.append("committed")


@dataclass
class Owner(BaseTask):
    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MUTEX]

    async def execute(self) -> None:
        ran.append("executed")


@dataclass
class SlowlyOpened(Owner):
    async def execute(self, opened: Annotated[None, Depends(slow_dependency)]) -> None:
        ran.append("executed")


async def test_a_block_does_not_begin_after_a_late_grant(
    app: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is blocked while the reply waits, so another process may have the lock."""
    hold = app.broker.hold

    async def late_hold(*args: Any, **options: Any) -> tuple[str, str]:
        answer = await hold(*args, **options)
        outlast()
        return answer

    monkeypatch.setattr(app.broker, "hold", late_hold)
    monkeypatch.setattr(Watchdog, "start", lambda _: None)
    with pytest.raises(LeaseLostError, match="lock:mutex:job:a"):
        async with app.hold(MUTEX):
            ran.append("block")
    assert ran == []


@pytest.mark.parametrize("task", [None, Owner()], ids=["hold", "call"])
async def test_nothing_begins_after_a_late_first_beat(
    app: Nonet, monkeypatch: pytest.MonkeyPatch, task: BaseTask | None
) -> None:
    """The answer to the first renewal comes when the locks have ended."""

    def late_start(watchdog: Watchdog) -> None:
        watchdog._beat()
        outlast()

    monkeypatch.setattr(Watchdog, "start", late_start)
    with pytest.raises(LeaseLostError, match="lock:mutex:job:a"):
        if task is not None:
            await app.call(task)
        async with app.hold(MUTEX):
            ran.append("block")
    assert ran == []


async def test_a_called_task_does_not_run_after_its_locks_have_ended(app: Nonet) -> None:
    """They end while its dependencies are opened, which then roll back."""
    with pytest.raises(LeaseLostError, match="lock:mutex:job:a"):
        await app.call(SlowlyOpened())
    assert "executed" not in ran and "committed" not in ran
