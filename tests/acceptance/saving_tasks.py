"""Tasks that save progress and submit others when they are settled, and a start-up hook."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from acceptance.probe_tasks import Quick, Small, note, passed

from nonet import Depends, Epoch, ExponentialBackoff, context, startup_hook

AGAIN = ExponentialBackoff(base_delay_seconds=0, max_retries=2)


@dataclass
class Counting(Small):
    """Counts to `until`, saving each number; fails, once, at `fails_at`, or waits at a gate."""

    until: int
    fails_at: int = 0
    gate: str = ""
    retry_policy = AGAIN

    async def execute(self) -> int:
        first = context().saved or 0
        note("start", saved=context().saved)
        for number in range(first + 1, self.until + 1):
            await context().checkpoint(number)
            if number == self.fails_at:
                await self.trouble()
        return first

    async def trouble(self) -> None:
        note("trouble")
        if self.gate:
            await passed(self.gate)
        raise RuntimeError("in between")


@dataclass
class CountingInThread(Small):
    """The same in a plain function."""

    fails_at: int
    retry_policy = AGAIN

    def execute(self) -> Any:
        saved = context().saved
        if saved is None:
            context().checkpoint_from_thread({"at": self.fails_at})
            raise RuntimeError("in between")
        return saved


async def failing_commit() -> Any:
    yield
    if not Path(os.environ["PROBE_JOURNAL"]).with_name("commit").exists():
        raise RuntimeError("the commit failed")


@dataclass
class Parent(Small):
    """Asks for children, in each attempt; commits fail until there is a file ``commit``."""

    children: int
    retry_policy = ExponentialBackoff(base_delay_seconds=0.1, max_retries=1000)

    async def execute(self, session: Annotated[None, Depends(failing_commit)]) -> list[str]:
        ids = [context().after_commit(Quick(i)) for i in range(self.children)]
        note("asked", ids=ids)
        return ids


class Greedy(Small):
    """Asks for more children than one step takes."""

    async def execute(self) -> None:
        for i in range(501):
            context().after_commit(Quick(i))


@startup_hook
async def reset(epoch: Epoch) -> None:
    """Says so, and fails as long as there is a file that says so."""
    _say(f"reset {epoch.began.timestamp():.6f}")
    if Path(os.environ["PROBE_JOURNAL"]).with_name("fail").exists():
        raise RuntimeError("the database is away")
    await Quick(7).schedule(id=f"from-hook-{epoch.began.timestamp():.6f}")


@startup_hook
def second() -> None:
    """A plain function, after the first one."""
    _say("second")


def _say(line: str) -> None:
    with Path(os.environ["PROBE_JOURNAL"]).with_name("hooks").open("a") as file:
        file.write(line + "\n")
