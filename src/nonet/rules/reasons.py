"""Why tasks end."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a task died, or ended before it was done."""

    RETRIES = "retries"  # the retry policy gave up
    STOPPED = "stopped"  # the author raised StopRetrying
    EXPECTED = "expected"  # as RETRIES or STOPPED, and its class declares the error as expected
    ARGUMENTS = "arguments"  # the constructor refuses the stored arguments
    QUARANTINED = "quarantined"  # the envelope cannot be decoded
    WORKER_LOST = "worker-lost"  # its worker died while running it alone, once too often
    CRASH = "crash"  # processes that ran it alone died again and again
    LIMIT_IMPOSSIBLE = "limit-impossible"  # one execution counts more than a limit allows
    CANCELLED = "cancelled"  # a user or an operator cancelled it
    CAPACITY = "capacity"  # it was not started in time, see start_by
