"""Nonet in the peers' harness, through its public API; `run.py` copies it to ``adapters/ours.py``.

The daemons are the console commands, as a user starts them. All settings have their defaults,
except for Redis, the state directory, the number of slots, and whether results are kept.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import conf
import probe

from nonet import BaseTask, Nonet, Size

AVAILABLE = True
KIND = "async"
PACKAGES = ["nonet", "redis", "hiredis", "uvloop", "msgspec", "pydantic"]
SETTINGS = (
    "task-worker --size small --concurrency 100, all settings at their defaults; NONET_RESULT_TTL "
    "0 / 300; delayed: separate task-scheduler process; uvloop"
)
BULK = True
BULK_AT = True
DELAY = True
SCHEDULER = True
RESULTS_OFF = True


@dataclass
class Noop(BaseTask):
    """Record that it ran."""

    i: int
    size = Size.SMALL

    async def execute(self) -> None:
        probe.hit(self.i)


@dataclass
class Sleep10(BaseTask):
    """Sleep for 10 ms."""

    i: int
    size = Size.SMALL

    async def execute(self) -> None:
        probe.begin(self.i)
        await asyncio.sleep(0.01)
        probe.finish(self.i)


TASKS = {"noop": Noop, "sleep10": Sleep10}


class Producer:
    """An open application that submits."""

    async def open(self) -> None:
        """Connect."""
        self._app = Nonet.from_settings(redis_url=conf.URL, tasks=(__name__,))
        await self._app.__aenter__()

    async def close(self) -> None:
        """Disconnect."""
        await self._app.__aexit__(None, None, None)

    async def enqueue(self, task: str, i: int) -> None:
        """Submit one task; Redis has it when this returns."""
        await TASKS[task](i).schedule()

    async def enqueue_bulk(self, task: str, indexes: Iterable[int]) -> None:
        """Submit many tasks."""
        await self._app.submit_many(map(TASKS[task], indexes))

    async def enqueue_at(self, task: str, i: int, due: float) -> None:
        """Submit one task due at an epoch second."""
        await TASKS[task](i).schedule(at_time=datetime.fromtimestamp(due, UTC))

    async def enqueue_at_bulk(self, task: str, items: list[tuple[int, float]]) -> None:
        """Submit tasks with different due times; `submit_many` takes only one per call."""
        by_instant: dict[float, list[int]] = {}
        for i, due in items:
            by_instant.setdefault(due, []).append(i)
        for due, indexes in by_instant.items():
            at_time = datetime.fromtimestamp(due, UTC)
            await self._app.submit_many(map(TASKS[task], indexes), at_time=at_time)


def run_worker() -> None:
    """Become a worker."""
    _become("task-worker", "--size", "small", "--concurrency", str(conf.CONCURRENCY))


def run_scheduler() -> None:
    """Become a scheduler."""
    _become("task-scheduler")


def _become(command: str, *options: str) -> None:
    here = Path(__file__).resolve().parent.parent
    settings = {
        "NONET_REDIS_URL": conf.URL,
        "NONET_RESULT_TTL": "300" if conf.RESULTS else "0",
        "NONET_STATE_DIR": str(here / "state"),
        "NONET_TASKS": __name__,
    }
    executable = Path(sys.executable).with_name(command)
    os.execve(executable, [str(executable), *options], {**os.environ, **settings})
