"""Changes of many things that go on after the request that began them."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime

from nonet.base.errors import ConflictError, NonetError, NotFoundError
from nonet.operate.resubmission import Outcome
from nonet.rules.permissions import Action

logger = logging.getLogger(__name__)

_MOST_RUNNING = 4
_MOST_KEPT = 20
_MOST_PROBLEMS = 5
_GRACE_SECONDS = 5.0


@dataclass
class Bulk:
    """One change of many things, in this process.

    Attributes:
        id: names it, also in URLs.
        action: the permission that it needs.
        text: what it does, for people.
        who: who began it.
        total: how many things there were at its beginning.
        started: when it began.
        done: how many were changed.
        failed: how many were not.
        problems: the first few reasons why things were not changed; they may quote arguments.
        problem: why it ended before the last one; empty: it did not.
        ended: when it ended; None: it runs.
    """

    action: Action
    text: str
    who: str
    total: int
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    done: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)
    problem: str = ""
    ended: datetime | None = None

    def add(self, outcomes: list[Outcome]) -> None:
        """Count outcomes."""
        for item in outcomes:
            if item.error is None:
                self.done += 1
                continue
            self.failed += 1
            if len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(str(item.error))


class Bulks:
    """The bulk changes of this process.

    A process that dies leaves the rest of a change undone; the same change can be begun again.
    """

    def __init__(self) -> None:
        self._all: dict[str, Bulk] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[str] = set()

    def start(self, bulk: Bulk, outcomes: AsyncGenerator[list[Outcome], None]) -> Bulk:
        """Begin a change, on behalf of the actor of the caller.

        Args:
            outcomes: makes the change, and yields what became of some things.

        Raises:
            ConflictError: too many changes run.
        """
        if len(self._running) >= _MOST_RUNNING:
            raise ConflictError(f"{_MOST_RUNNING} bulk changes run here: stop one, or wait for it")
        for old in [item.id for item in self._all.values() if item.ended][: -_MOST_KEPT or None]:
            del self._all[old]
        self._all[bulk.id] = bulk
        running = asyncio.create_task(self._run(bulk, outcomes), name=f"bulk {bulk.id}")
        self._running[bulk.id] = running
        running.add_done_callback(lambda _: self._running.pop(bulk.id, None))
        return bulk

    def recent(self) -> list[Bulk]:
        """Return the changes that run or ran in the last hours, the newest first."""
        return list(self._all.values())[::-1]

    def get(self, id: str) -> Bulk:
        """Return a change.

        Raises:
            NotFoundError: this process does not know it.
        """
        if id not in self._all:
            raise NotFoundError(
                f"no bulk change {id:.40}: another process of task-web runs it, or it is long over"
            )
        return self._all[id]

    def stop(self, id: str) -> Bulk:
        """Let a change end after the things that it is changing now."""
        bulk = self.get(id)
        if bulk.ended is None:
            self._stopping.add(id)
        return bulk

    async def close(self) -> None:
        """Stop all changes, and wait for them for a few seconds."""
        self._stopping.update(self._running)
        if running := list(self._running.values()):
            _, late = await asyncio.wait(running, timeout=_GRACE_SECONDS)
            for task in late:
                task.cancel()

    async def _run(self, bulk: Bulk, outcomes: AsyncGenerator[list[Outcome], None]) -> None:
        try:
            async with aclosing(outcomes):
                async for some in outcomes:
                    bulk.add(some)
                    if bulk.id in self._stopping:
                        bulk.problem = "it was stopped"
                        break
        except asyncio.CancelledError:
            bulk.problem = "task-web was stopped"
            raise
        except Exception as error:
            bulk.problem = str(error)
            if not isinstance(error, NonetError):
                logger.exception("bulk change failed: %s", bulk.text)
        finally:
            bulk.ended = datetime.now(UTC)
            self._stopping.discard(bulk.id)
            logger.info(
                "bulk change ended: %s; changed=%d failed=%d total=%d who=%s",
                *(bulk.text, bulk.done, bulk.failed, bulk.total, bulk.who),
            )
