"""Tasks of every kind that somebody damages; and a deliberate fault in the scripts of a daemon."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

from acceptance.probe_tasks import passed

import nonet.stores.connection.redis
from nonet import BaseTask, ExponentialBackoff, MutexLock, Size, context

LATER = ExponentialBackoff(base_delay_seconds=3, max_retries=5)


@dataclass
class Plain(BaseTask):
    """Returns its number; with a lock of its own, and a gate, if it is given them."""

    number: int
    gate: str = ""
    lock: str = ""
    text: str = ""
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[Any]:
        return [MutexLock("job", self.lock)] if self.lock else []

    async def execute(self) -> int:
        if self.gate:
            await passed(self.gate)
        return self.number


class Durable(Plain):
    """The same, kept in SQL until it has ended."""

    durable = True


@dataclass
class Retried(BaseTask):
    """Saves its number, fails, and returns what it saved."""

    number: int
    size = Size.SMALL
    retry_policy = LATER

    async def execute(self) -> int:
        if context().attempt == 1:
            await context().checkpoint(self.number)
            raise RuntimeError("the first attempt fails")
        saved = context().saved
        return self.number if saved is None else int(saved)


def break_scripts(name: str, old: str, new: str) -> None:
    """Replace text in the scripts that this process runs."""
    intact = nonet.stores.connection.redis.script.__wrapped__

    @cache
    def broken(wanted: str) -> tuple[str, str]:
        source = intact(wanted)[0]
        if wanted == name or not name:
            source = source.replace(old, new)
        return source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    nonet.stores.connection.redis.script = broken


if "PROBE_FAULT" in os.environ:
    break_scripts(*json.loads(os.environ["PROBE_FAULT"]))
