"""Enforce the time limits of an attempt: cancel at the soft one, give up at the hard one."""

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

# How long code that was cancelled at the hard limit may roll back before its locks are released.
OBEY_SECONDS = 1.0


def soft_limit(attempt: Attempt, seconds: float, origin: str) -> asyncio.TimerHandle:
    """Time the attempt out after so many seconds, unless the returned timer is cancelled.

    Args:
        origin: where the limit was set.
    """
    text = f"soft timeout of {seconds:g} s exceeded ({origin})"
    out_of_time = partial(attempt.time_out, TaskTimeoutError(text))
    return asyncio.get_running_loop().call_later(seconds, out_of_time)


async def with_hard_limit(
    attempt: Attempt,
    limits: TimeLimits,
    work: Callable[[], Awaitable[Any]],
    given_up: Callable[[asyncio.Task[Any]], None],
    obey_seconds: float | None = OBEY_SECONDS,
) -> Any:
    """Return what `work()` returns, but abandon it if it ignores its hard limit.

    Args:
        given_up: called with the asyncio task that was abandoned.
        obey_seconds: how long the code may still run after its cancellation; None: no limit.

    Raises:
        TaskTimeoutError: the code was abandoned.
        BaseException: whatever `work()` raises.
    """
    assert limits.hard is not None
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
            "task %s (%s) still runs although its hard timeout has passed",
            attempt.delivery.id,
            attempt.context.name,
        )
        raise attempt.timed_out or asyncio.CancelledError
    result, error = inner.result()
    if error is not None:
        raise error
    return result


async def _as_value(work: Callable[[], Awaitable[Any]]) -> tuple[Any, BaseException | None]:
    """Return an exception as a value: SystemExit raised in an asyncio task would end the loop."""
    try:
        return await work(), None
    except BaseException as error:  # `with_hard_limit` raises it again
        return None, error
