"""Wait for what a test expects. A wait for what never comes ends after `WAIT_SECONDS`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

# The only limit for "never". A test that passes does not come near it on the slowest machine.
WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.02

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found], claim: str, *, seconds: float = WAIT_SECONDS
) -> Found:
    """Look again and again until `condition` is true; its value. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"after {seconds:g} s it is still not true that {claim}")
        time.sleep(_POLL_SECONDS)
    return value


async def until(
    condition: Callable[[], Found], claim: str, *, seconds: float = WAIT_SECONDS
) -> Found:
    """`wait_until` for a test whose event loop must go on."""
    return await asyncio.to_thread(wait_until, condition, claim, seconds=seconds)
