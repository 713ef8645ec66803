"""How long an attempt may take: cancelled at the soft limit, given up at the hard one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from nonet.errors import TaskTimeoutError
from nonet.overrides import CLASS, Effective
from nonet.worker.attempt import Attempt

logger = logging.getLogger(__name__)

# What obeys the cancellation at the hard limit shall roll back before its locks are released.
_OBEY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The limits of one attempt.

    Attributes:
        soft, hard: seconds, or None.
        soft_origin, hard_origin: who says so, for messages.
    """

    soft: float | None
    hard: float | None
    soft_origin: str
    hard_origin: str

    @classmethod
    def of(cls, effective: Effective, task: str) -> TimeLimits:
        """Those that hold for a class, whose name is `task`."""

        def origin(name: str) -> str:
            said = effective.origins[name]
            return f"{name} of {task.rpartition(':')[2]}" if said == CLASS else said

        return cls(
            effective.soft_timeout,
            effective.hard_timeout,
            origin("soft_timeout"),
            origin("hard_timeout"),
        )


@contextmanager
def softly_limited(attempt: Attempt, limits: TimeLimits) -> Iterator[Callable[[], None]]:
    """Let the attempt time out if the block takes longer than the soft limit.

    Gives what ends the measurement before the block ends: a commit is not cut by it.
    """
    if limits.soft is None:
        yield lambda: None
        return
    error = TaskTimeoutError(f"soft timeout of {limits.soft:g} s exceeded ({limits.soft_origin})")
    timer = asyncio.get_running_loop().call_later(limits.soft, partial(attempt.time_out, error))
    try:
        yield timer.cancel
    finally:
        timer.cancel()


async def hardly_limited(
    attempt: Attempt,
    limits: TimeLimits,
    work: Callable[[], Awaitable[Any]],
    given_up: Callable[[asyncio.Task[Any]], None],
) -> Any:
    """What `work()` returns; at the hard limit it is left alone, whatever it does.

    Args:
        given_up: told of what goes on nevertheless.

    Raises:
        TaskTimeoutError: it was given up.
        BaseException: whatever `work()` raises.
    """
    if limits.hard is None:
        return await work()
    inner = asyncio.create_task(_as_value(work), name=f"{attempt.delivery.id} limited")
    attempt.enter(inner)
    done, _ = await asyncio.wait({inner}, timeout=limits.hard)
    if not done:
        text = f"hard timeout of {limits.hard:g} s exceeded ({limits.hard_origin})"
        attempt.time_out(TaskTimeoutError(text), for_good=True)
        done, _ = await asyncio.wait({inner}, timeout=_OBEY_SECONDS)
    if not done:
        given_up(inner)
        logger.error(
            "task %s (%s) goes on although it was cancelled and has used up its hard timeout",
            attempt.delivery.id,
            attempt.context.name,
        )
        raise attempt.timed_out or asyncio.CancelledError
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
