"""How long an attempt may take: cancelled at the soft limit, given up at the hard one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from nonet.base.errors import TaskTimeoutError
from nonet.config.overrides import TimeLimits
from nonet.worker.attempt.attempt import Attempt

logger = logging.getLogger(__name__)

# What obeys the cancellation at the hard limit shall roll back before its locks are released.
OBEY_SECONDS = 1.0


class SoftLimit:
    """Lets the attempt time out if the block takes longer than its soft limit, if it has one."""

    def __init__(self, attempt: Attempt, limits: TimeLimits) -> None:
        self._timer: asyncio.TimerHandle | None = None
        if limits.soft is not None:
            text = f"soft timeout of {limits.soft:g} s exceeded ({limits.soft_origin})"
            out_of_time = partial(attempt.time_out, TaskTimeoutError(text))
            self._timer = asyncio.get_running_loop().call_later(limits.soft, out_of_time)

    def __enter__(self) -> SoftLimit:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """What follows in the block is not measured any more: a commit is not cut by it."""
        if self._timer is not None:
            self._timer.cancel()


async def hardly_limited(
    attempt: Attempt,
    limits: TimeLimits,
    work: Callable[[], Awaitable[Any]],
    given_up: Callable[[asyncio.Task[Any]], None],
    obey_seconds: float | None = OBEY_SECONDS,
) -> Any:
    """What `work()` returns; at the hard limit it is left alone, whatever it does.

    Args:
        given_up: called with the asyncio task that runs on nevertheless.
        obey_seconds: how long it may take to end when it is cancelled; None: somebody else sees to
            that.

    Raises:
        TaskTimeoutError: it was given up.
        BaseException: whatever `work()` raises.
    """
    assert limits.hard is not None  # else nothing is limited
    attempt.hard_at = time.monotonic() + limits.hard
    inner = asyncio.create_task(_as_value(work), name=f"{attempt.delivery.id} limited")
    attempt.enter(inner)
    done, _ = await asyncio.wait({inner}, timeout=limits.hard)
    if not done:
        attempt.time_out(TaskTimeoutError(limits.hard_text), for_good=True)
        done, _ = await asyncio.wait({inner}, timeout=obey_seconds)
    if not done:
        given_up(inner)
        logger.error(
            "task %s (%s) goes on although it was cancelled and has used up its hard timeout",
            attempt.delivery.id,
            attempt.context.name,
        )
        raise attempt.ending.timed_out or asyncio.CancelledError
    result, error = inner.result()
    if error is not None:
        raise error
    return result


async def _as_value(work: Callable[[], Awaitable[Any]]) -> tuple[Any, BaseException | None]:
    """Result or exception: an asyncio task lets SystemExit and the like end the loop."""
    try:
        return await work(), None
    except BaseException as error:  # raised again by who waits for it
        return None, error
