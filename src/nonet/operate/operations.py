"""The operations of `nonet.Nonet`: hold locks, see what is wrong, submit dead letters again."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from nonet.client.client import Client, Program
from nonet.operate.interactive import hold
from nonet.operate.resubmission import resubmit
from nonet.tasks.handles import Handle
from nonet.tasks.locks import BaseLock, encode_locks

# What a method needs is imported where it is used: a program that only submits would otherwise take
# twice as long to start.
if TYPE_CHECKING:
    from datetime import datetime

    from nonet.operate.doctor import Diagnosis
    from nonet.rules.findings.situation import Overview
    from nonet.rules.periodic import EntryStatus
    from nonet.stores.namespace.leadership import Leader
    from nonet.stores.sql.dead_letters import DeadLetters


class Operations(Program):
    """What a program can do as an operator, beside submitting and reading tasks."""

    def hold(self, *locks: BaseLock, wait: float = 0.0) -> AbstractAsyncContextManager[int]:
        """Hold locks in code that is not a task; ``async with`` returns their fence.

        All locks and limiters are acquired together, or none.

        Args:
            locks: the locks and limiters; duplicates count once.
            wait: seconds to wait while others hold them.

        Raises:
            TypeError, ValueError: there is no lock, or an argument is not a lock; raised by the
                call itself.
            UnableToAcquireLockError: they were not free within `wait`.
            DeadlockError: the task or ``hold`` block around this one holds one of them.
            LimitImpossible: a limiter can never admit as much as requested.
            LeaseLostError: a lock was lost; the block was cancelled.

        Example:
            async with app.hold(MutexLock(LockedObjectType.JOB, 7), wait=5):
                ...
        """

        for lock in locks:
            if not isinstance(lock, BaseLock):
                raise TypeError(
                    f"hold: {lock!r:.200} is not a lock; pass locks one by one: hold(first, second)"
                )
        if not locks:
            raise ValueError("hold: pass at least one lock, or nothing would be protected")
        if not wait >= 0:  # refuses NaN too
            raise ValueError(f"hold: wait={wait!r} must be 0 seconds or more")
        home = self._open()
        return hold(home.stores.broker, home.settings, encode_locks(locks), wait_seconds=wait)

    async def doctor(self, *, wait: float | None = None) -> Diagnosis:
        """Check that the data in Redis are consistent and the server is configured well.

        Args:
            wait: seconds for which a problem must persist to be reported. None: long enough for
                other processes to clean up after a killed one (a lease and a sweep).

        Returns:
            A report with ``is_healthy``, ``problems``, ``hints``, the number of things checked by
            kind (``looked_at``), and its duration in ``seconds``.

        Raises:
            ValueError: `wait` is negative.
            ServerUnreachableError: Redis does not answer.

        Example:
            found = await app.doctor(wait=1)
            print(found.is_healthy, *found.problems)
        """
        if wait is not None and not wait >= 0:  # refuses NaN too
            raise ValueError(f"doctor: wait={wait!r} must be 0 seconds or more, or None")
        from nonet.operate.doctor import look_over  # 0.15 s

        home = self._open()
        return await look_over(home.stores, home.settings, wait)

    async def overview(self) -> Overview:
        """Return what is wrong in the namespace now, worst first, and the current activity.

        Raises:
            ServerUnreachableError: Redis does not answer.

        Example:
            for finding in (await app.overview()).findings:
                print(finding.problem, "->", finding.next_step)
        """
        from nonet.operate.overview import find  # 0.15 s

        home = self._open()
        return await find(home.stores, home.settings)

    async def leader(self) -> Leader | None:
        """Return the scheduler that leads now (``owner``, ``term``, ``expiry``), or None."""
        return await self._open().stores.leader()

    async def run_entry(self, entry: EntryStatus) -> Handle[Any]:
        """Submit the task of a periodic entry now, in addition to its schedule.

        Args:
            entry: an item of ``await app.stores.periodic.statuses()``.

        Raises:
            UnknownTaskError: its class is not registered here.
            InvalidArgumentsError: its class refuses the configured arguments.
        """
        from nonet.operate.schedules import run  # 0.1 s

        return await run(self._opened_client(), entry.entry)

    async def dead_letters(self) -> DeadLetters:
        """Return the SQL store of dead letters; it opens on first use and closes with the app."""
        return await self._open().stores.dead_letters()

    async def resubmit(
        self, row_id: int, *, again: bool = False, at_time: datetime | None = None
    ) -> Handle[Any]:
        """Submit a dead letter again, only once even if several callers try.

        Args:
            row_id: its row in SQL.
            again: submit it once more although it was resubmitted before. Allowed if the earlier
                task ended, but not ``done``; if it is unknown (Redis lost it, or its result
                expired); or if a different task has its id.
            at_time: when the new task starts; None: now.

        Raises:
            NotFoundError: this namespace has no such row.
            ConflictError: it was already resubmitted, a different task has its id, or it is not a
                task. The row stays unchanged.
            UnknownTaskError: its class is not registered here; the row stays unchanged.
            InvalidArgumentsError: its class refuses its arguments; the row stays unchanged.

        Example:
            for letter in await (await app.dead_letters()).list(limit=10):
                await app.resubmit(letter.id)
        """

        letters = await self.dead_letters()
        return await resubmit(row_id, self._opened_client(), letters, again=again, at_time=at_time)

    def _opened_client(self) -> Client:
        client = self._open()
        assert isinstance(client, Client)
        return client
