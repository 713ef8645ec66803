"""Changes of many things that go on after the request that began them."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import msgspec

from nonet.base.errors import ConflictError, NonetError, NotFoundError
from nonet.operate.resubmission import Outcome
from nonet.rules.permissions import Action
from nonet.stores.namespace.bulks import BulkRecords

logger = logging.getLogger(__name__)

_MOST_RUNNING = 4
_MOST_KEPT = 20
_MOST_PROBLEMS = 5
_GRACE_SECONDS = 5.0
_BEAT_SECONDS = 1.0
# A process that has written nothing for so long is dead. The clocks of machines differ by less.
_SILENT = timedelta(seconds=30)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Bulk:
    """One change of many things, which one process of task-web makes.

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
        written: when its process last wrote how far it is.
    """

    action: Action
    text: str
    who: str
    total: int
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    started: datetime = field(default_factory=_now)
    done: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)
    problem: str = ""
    ended: datetime | None = None
    written: datetime = field(default_factory=_now)

    def add(self, outcomes: list[Outcome]) -> None:
        """Count outcomes."""
        for item in outcomes:
            if item.error is None:
                self.done += 1
                continue
            self.failed += 1
            if len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(str(item.error))

    def as_of(self, now: datetime) -> Bulk:
        """Return it as ended if its process is dead: nothing continues it."""
        if self.ended or now - self.written < _SILENT:
            return self
        problem = "its task-web died: begin it again for the rest"
        return replace(self, ended=self.written, problem=problem)


class Bulks:
    """The bulk changes of a namespace, of all processes of task-web.

    A process that dies leaves the rest of a change undone; the same change can be begun again.

    Args:
        records: returns where the processes share what they do.
    """

    def __init__(self, records: Callable[[], BulkRecords]) -> None:
        self._records = records
        self._running: dict[str, asyncio.Task[None]] = {}
        self._stopped: dict[str, str] = {}

    async def start(self, bulk: Bulk, outcomes: AsyncGenerator[list[Outcome], None]) -> Bulk:
        """Begin a change in this process, on behalf of the actor of the caller.

        Args:
            outcomes: makes the change, and yields what became of some things.

        Raises:
            ConflictError: too many changes run here.
        """
        if len(self._running) >= _MOST_RUNNING:
            raise ConflictError(f"{_MOST_RUNNING} bulk changes run here: stop one, or wait for it")
        over = [item.id for item in await self.recent() if item.ended]
        await self._records().forget(over[_MOST_KEPT:])
        await self._write(bulk)
        running = asyncio.create_task(self._run(bulk, outcomes), name=f"bulk {bulk.id}")
        self._running[bulk.id] = running
        running.add_done_callback(lambda _: self._running.pop(bulk.id, None))
        return bulk

    async def recent(self) -> list[Bulk]:
        """Return the changes that run, or ran in the last day, the newest first."""
        found, now = await self._records().all(), _now()
        bulks = [msgspec.json.decode(document, type=Bulk).as_of(now) for document in found.values()]
        return sorted(bulks, key=lambda bulk: bulk.started, reverse=True)

    async def get(self, id: str) -> Bulk:
        """Return a change.

        Raises:
            NotFoundError: no process knows it.
        """
        for bulk in await self.recent():
            if bulk.id == id:
                return bulk
        raise NotFoundError(f"no bulk change {id:.40}: it was over a day ago, or never was")

    async def stop(self, id: str, who: str) -> Bulk:
        """Let a change end after the things that it is changing now, within a second or two."""
        bulk = await self.get(id)
        if bulk.ended is None:
            await self._records().stop(id, who)
        return bulk

    async def close(self) -> None:
        """Stop the changes of this process, and wait for them for a few seconds."""
        self._stopped |= dict.fromkeys(self._running, "the end of its task-web")
        if running := list(self._running.values()):
            _, late = await asyncio.wait(running, timeout=_GRACE_SECONDS)
            for task in late:
                task.cancel()
            if late:  # they write that they have ended
                await asyncio.wait(late, timeout=_BEAT_SECONDS)

    async def _run(self, bulk: Bulk, outcomes: AsyncGenerator[list[Outcome], None]) -> None:
        over = asyncio.Event()
        beating = asyncio.create_task(self._beat(bulk, over), name=f"beat of bulk {bulk.id}")
        try:
            async with aclosing(outcomes):
                async for some in outcomes:
                    bulk.add(some)
                    if who := self._stopped.get(bulk.id):
                        bulk.problem = f"stopped by {who}"
                        break
        except asyncio.CancelledError:
            bulk.problem = "stopped by the end of its task-web"
            raise
        except Exception as error:
            bulk.problem = str(error)
            if not isinstance(error, NonetError):
                logger.exception("bulk change failed: %s", bulk.text)
        finally:
            bulk.ended = _now()
            self._stopped.pop(bulk.id, None)
            logger.info(
                "bulk change ended: %s; changed=%d failed=%d total=%d who=%s",
                *(bulk.text, bulk.done, bulk.failed, bulk.total, bulk.who),
            )
            over.set()
            await beating

    async def _beat(self, bulk: Bulk, over: asyncio.Event) -> None:
        """Write how far a change is, and read whether to stop it; a last time when it is over."""
        while not over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _BEAT_SECONDS)
            with suppress(NonetError):  # the next beat may succeed; the log has the end
                await self._write(bulk)

    async def _write(self, bulk: Bulk) -> None:
        bulk.written = _now()
        if who := await self._records().write(bulk.id, msgspec.json.encode(bulk)):
            self._stopped[bulk.id] = who
