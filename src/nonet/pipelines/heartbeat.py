"""The thread that renews the leases of pipeline rows: `Heartbeat`.

It has an event loop and a connection of its own, so that a blocked event loop of the application
loses no leases. If the database is silent, it declares a lease lost before the lease ends there:
then another process may take the row.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from nonet.base.loop import in_own_thread
from nonet.pipelines.database import RowDatabase
from nonet.pipelines.lease import Held
from nonet.pipelines.renewal import extend
from nonet.telemetry.failure_log import FailureLog

logger = logging.getLogger(__name__)

_STOP_SECONDS = 2.0
_BATCH = 1000


@dataclass(slots=True, eq=False)
class Beating:
    """One lease that is renewed.

    Attributes:
        items: the row and its related rows.
        lasts: seconds of a lease.
        deadline: monotonic time until which the lease is trusted.
        on_lost: called once, in the thread, with the reason.
        is_ending: a transaction that ends the lease has begun. It checks the lease itself, and its
            commit removes the lease on purpose, so no loss is reported.
    """

    items: Sequence[Held]
    lasts: float
    deadline: float
    on_lost: Callable[[str], None] = field(repr=False)
    is_ending: bool = False

    @property
    def is_due(self) -> bool:
        """Whether a third of the lease has passed."""
        return self.deadline - time.monotonic() < trusted_for(self.lasts) - self.lasts / 3


class Heartbeat:
    """Renew the leases that this process holds in one database.

    Attributes:
        failures: number of failed renewals.
    """

    def __init__(self, database: RowDatabase) -> None:
        self._database = database
        self._held: set[Beating] = set()
        self._changed = threading.Lock()
        self._stopping = threading.Event()
        self._wake: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="nonet-row-leases", daemon=True)
        self._log = FailureLog("renewal of row leases", logger)

    @property
    def failures(self) -> int:
        """Number of failed renewals."""
        return self._log.failures

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its connection."""
        self._stopping.set()
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)

    def stuck(self) -> str:
        """Why leases are not renewed; empty if they are, or if only the database is silent."""
        has_ended = self._thread.ident is not None and not self._thread.is_alive()
        if has_ended and not self._stopping.is_set():
            return f"the thread {self._thread.name} has ended"
        return ""

    def hold(
        self, items: Sequence[Held], lasts: float, since: float, on_lost: Callable[[str], None]
    ) -> Beating:
        """Renew a lease until `drop`.

        Args:
            items: the leased rows.
            lasts: seconds of the lease.
            since: monotonic time before it was requested.
            on_lost: called once, in the thread, with the reason.
        """
        beating = Beating(items, lasts, since + trusted_for(lasts), on_lost)
        with self._changed:
            self._held.add(beating)
        self._wake()
        return beating

    def drop(self, beating: Beating) -> None:
        """Stop renewing a lease."""
        with self._changed:
            self._held.discard(beating)

    def _run(self) -> None:
        try:
            asyncio.run(self._beat_and_watch())
        except Exception:
            logger.exception("the thread that renews row leases has ended")

    async def _beat_and_watch(self) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        engine = self._database.open_engine(1)
        beating = asyncio.create_task(self._beat_forever(engine))
        try:
            while not self._stopping.is_set():
                woken.clear()
                self._drop_overdue()
                held = self._all()
                pause = min((each.deadline - time.monotonic() for each in held), default=60.0)
                try:
                    async with asyncio.timeout(max(0.0, pause)):
                        await woken.wait()
                except TimeoutError:
                    pass
        finally:
            self._wake = lambda: None
            beating.cancel()
            await asyncio.wait({beating})
            await engine.dispose()

    def _all(self) -> list[Beating]:
        with self._changed:
            return list(self._held)

    def _drop_overdue(self) -> None:
        now = time.monotonic()
        for beating in self._all():
            if now >= beating.deadline:
                self._lose(
                    beating, "no renewal in time: the database was silent, or the row was locked"
                )

    async def _beat_forever(self, engine: AsyncEngine) -> None:
        while True:
            try:
                await self._beat(engine)
                self._log.succeeded()
            except Exception as error:  # the thread must live to report the leases that end
                self._log.failed(error, _pause(self._all()))
            await asyncio.sleep(_pause(self._all()))

    async def _beat(self, engine: AsyncEngine) -> None:
        groups: defaultdict[float, list[Beating]] = defaultdict(list)
        for beating in self._all():
            if beating.is_due:
                groups[beating.lasts].append(beating)
        for lasts, group in groups.items():
            for start in range(0, len(group), _BATCH):
                await self._renew(engine, lasts, group[start : start + _BATCH])

    async def _renew(self, engine: AsyncEngine, lasts: float, group: Sequence[Beating]) -> None:
        """Renew leases in one transaction, with one statement for each table."""
        sent = time.monotonic()
        renewed = [(beating, beating.items) for beating in group]
        tables: defaultdict[sa.Table, list[Held]] = defaultdict(list)
        for item in (item for _, items in renewed for item in items):
            tables[item.table].append(item)
        lost: set[Held] = set()
        skipped: set[Held] = set()
        async with (
            self._database.answering(lasts / 3),
            AsyncSession(engine) as session,
            session.begin(),
        ):
            for table in sorted(tables, key=lambda table: table.name):
                of_table = await extend(session, tables[table], lasts)
                lost |= of_table.lost
                skipped |= of_table.skipped
        for beating, items in renewed:
            if not lost.isdisjoint(items):
                self._lose(beating, "another process has a row of it, or a row was deleted")
            # If related rows were added meanwhile, their lease has not been renewed.
            elif skipped.isdisjoint(items) and beating.items is items:
                beating.deadline = sent + trusted_for(lasts)

    def _lose(self, beating: Beating, reason: str) -> None:
        with self._changed:
            if beating not in self._held:
                return  # released meanwhile
            self._held.discard(beating)
        if beating.is_ending:
            return
        beating.on_lost(reason)
        item = beating.items[0]
        logger.warning(
            "row lease lost: table=%s key=%s reason=%s", item.table.name, item.keys[0], reason
        )


_sharing: dict[RowDatabase, tuple[Heartbeat, int]] = {}


@asynccontextmanager
async def renewing(database: RowDatabase) -> AsyncIterator[Heartbeat]:
    """Renew leases of a database while the block runs.

    All blocks of this process share one thread and its connection; the last one closes the
    connections of the database.

    Raises:
        ConfigurationError: the URL of the database is wrong or its driver is not installed.
    """
    _ = database.engine  # raise here an error that would end the thread
    heartbeat, users = _sharing.get(database) or (Heartbeat(database), 0)
    if not users:
        heartbeat.start()
    _sharing[database] = heartbeat, users + 1
    try:
        yield heartbeat
    finally:
        heartbeat, users = _sharing.pop(database)
        if users > 1:
            _sharing[database] = heartbeat, users - 1
        else:
            await in_own_thread(heartbeat.stop)
            await database.close()


def trusted_for(lasts: float) -> float:
    """How long to rely on a lease, in seconds: the margin is for cancelling what uses it."""
    return lasts - min(2.0, lasts / 10)


def _pause(held: Sequence[Beating]) -> float:
    """Seconds until the next check: a tenth of the shortest lease, at most a second."""
    return min([1.0, *(beating.lasts / 10 for beating in held)])
