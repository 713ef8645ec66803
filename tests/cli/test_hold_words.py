"""What `Nonet.hold` and `call` say when they cannot take locks, or lose them."""

from __future__ import annotations

from typing import Any

import pytest
from cli.terminal import TaskRun

from nonet import MutexLock

JOB = MutexLock("job", 7)


@pytest.mark.parametrize(
    ("locks", "wait", "kind", "reason"),
    [
        (([JOB],), 0, TypeError, "one by one"),
        (("job",), 0, TypeError, "'job' is no lock"),
        ((), 0, ValueError, "no lock is given"),
        ((JOB,), -1, ValueError, "wait=-1 must be 0"),
        ((JOB,), float("nan"), ValueError, "wait=nan must be 0"),
    ],
)
async def test_what_cannot_be_held_is_refused_at_once(
    task_run: TaskRun, locks: tuple[Any, ...], wait: float, kind: type[Exception], reason: str
) -> None:
    """A mistake of the caller is said in words, before anything is asked of Redis."""
    async with task_run.app() as app:
        with pytest.raises(kind, match=reason):
            app.hold(*locks, wait=wait)
