"""Run the queue of one namespace in Redis: submit, cancel, promote, reclaim.

One typed method for each script; the scripts hold the rules and the races.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any

from msgspec import Struct

from nonet.base.clock import Reading, steady
from nonet.base.streams import KINDS, Priority, Size
from nonet.stores.connection.redis import connect_sync, ping, run_sync
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.fetching import Fetching
from nonet.stores.queue.holds import Holds
from nonet.stores.queue.link import in_microseconds
from nonet.stores.queue.submissions import Accepted, Submission

CANCELLED_AT_A_TIME = 150
_KEYS_PER_PAGE = 150  # one page of the walk over all records: 2 ms
_TAKEN_OVER_AT_ONCE = 100  # 5 ms, if each task has two locks
_WORKERS_PROMOTE_AFTER = timedelta(seconds=5)


class Presence(IntEnum):
    """What Redis knows of a task."""

    UNKNOWN = 0  #: never submitted in this epoch, or ended long ago
    ENDED = 1  #: it ended, and its id or result is still kept
    LIVE = 2  #: it has a record


class Order(Struct, frozen=True):
    """A delivery that its worker must cancel; `why` names the caller and the reason.

    Without an `id` the worker itself must drain.
    """

    id: str
    gen: str
    why: str


class Promoted(Struct, frozen=True):
    """Result of one promotion.

    Attributes:
        moved: tasks that were queued.
        next_in: seconds until the next task is due; 0: more are due now; None: no task is delayed.
        allowed: False if the caller is not the leader, and the leader needs no help.
    """

    moved: int
    next_in: float | None
    allowed: bool


class Broker(Fetching, Holds):
    """The broker of one namespace, see `nonet.stores.queue.link.QueueLink` for its arguments.

    Attributes:
        epoch: what this process has seen of Redis: its epoch and its time.
        lock_ttl_ms: TTL of locks that define none.
        config_version: version of the configuration published at the last `presence`, or empty.
        wakes: wakes the holds of this process when a lock is offered to them.
        moved: offset that tests have added to the clock of schedules.
        keeping: what scripts keep of ended tasks: how long results, how long ids (ms), and the
            length of the history, as ``lib/finish.lua`` reads it.
    """

    config_version: str = ""

    async def ping(self) -> None:
        """Check that Redis answers and permits scripts that write.

        Raises:
            ServerUnreachableError: Redis does not answer, or is read-only for now.
            ConfigurationError: Redis rejects the credentials, or forbids scripts.
        """
        await ping(self.client)
        # Changes nothing: there is no such worker.
        await self.leave("", Size.SMALL)

    async def submit(self, submissions: Sequence[Submission]) -> list[bool]:
        """Call `accept`; return False for each task that was known already."""
        return [item.created for item in await self.accept(submissions)]

    def accept(self, submissions: Sequence[Submission]) -> Coroutine[Any, Any, list[Accepted]]:
        """Create the tasks whose ids are not known yet. Safe to repeat.

        Tasks are created in chunks of at most 500 tasks or 1 MiB, each completely or not at all.
        An error leaves the chunks before the failed one submitted.

        Raises:
            LimitImpossible: a task asks a rate limiter for more than its limit.
            ConflictError: a workflow, or a step of one, has the id of a task.
            AdmissionRejected: a ceiling is reached.
        """
        return self._submissions.accept(submissions)

    async def check_room(self, submissions: Sequence[Submission]) -> None:
        """Check that these tasks could be submitted now.

        Raises:
            AdmissionRejected: `accept` would reject a chunk.
        """
        await self._submissions.check_room(submissions)

    async def cancel(
        self,
        ids: Sequence[str],
        why: str,
        *,
        in_sql: Mapping[str, str] | None = None,
        order: str = "",
    ) -> list[str]:
        """Cancel tasks, running or not. Safe to repeat.

        Args:
            why: one line for clients that wait for the results.
            order: one line for the workers of running tasks, cut to 60 bytes; empty: leave running
                tasks alone.
            in_sql: class names, by id, of tasks that are open in SQL. They end even if Redis does
                not know them, so that the relay does not submit them again.

        Returns:
            The new state of each task: ``cancelled``, also if it was before; ``cancelling``: its
            worker gets an order, see `orders`; or the state in which it stays (``running``,
            ``dying``, or how it ended). Empty for an unknown id.
        """
        states: list[str] = []
        for start in range(0, len(ids), CANCELLED_AT_A_TIME):
            page = ids[start : start + CANCELLED_AT_A_TIME]
            args = [text for id in page for text in (id, (in_sql or {}).get(id, ""))]
            answer = await self.scripts.run(
                "cancel", self.keeping, int(in_sql is not None), order, why, *args
            )
            states += [state.decode() for state in answer]
        return states

    async def checkpoint(self, delivery: Delivery, data: bytes) -> bool:
        """Store the checkpoint of a running attempt; return False if it no longer owns the task."""
        ids = (delivery.id, delivery.gen, delivery.fence)
        answer = await self.scripts.run("checkpoint", *ids, data)
        return bool(answer == b"OK")

    async def report_progress(self, delivery: Delivery, fraction: float | None, text: str) -> bool:
        """Store the progress of a running attempt; return False if it no longer owns the task.

        Args:
            fraction: from 0 to 1; None: unknown.
            text: see `nonet.tasks.progress.written`.
        """
        ids = (delivery.id, delivery.gen, delivery.fence)
        share = "" if fraction is None else f"{fraction:.4f}"
        return bool(await self.scripts.run("report_progress", *ids, share, text) == b"OK")

    async def keep_log(
        self, delivery: Delivery, attempt: int, lines: str, ttl_seconds: float
    ) -> bool:
        """Keep the last lines that an attempt has logged; return False if it lost the task."""
        ids, ttl_ms = (delivery.id, delivery.gen, delivery.fence), round(1000 * ttl_seconds)
        return bool(await self.scripts.run("keep_log", *ids, attempt, lines, ttl_ms) == b"OK")

    async def logs(self, id: str) -> dict[int, str]:
        """Read the kept lines of a task by the numbers of its attempts; they may be encrypted."""
        found: dict[bytes, bytes] = await self.client.hgetall(f"{self.prefix}l:{id}")
        return {int(number): found[number].decode() for number in sorted(found, key=int)}

    async def history(self, id: str) -> list[bytes]:
        """Read the error documents of the failed attempts of a live task, oldest first."""
        return list(await self.client.lrange(f"{self.prefix}h:{id}", 0, -1))

    async def promote(self, term: str = "", batch: int = 100) -> Promoted:
        """Queue due tasks, check parked ones, free the locks of dead holders, expire late tasks.

        Does nothing while the clock of Redis is ahead; the leader corrects it.

        Args:
            term: the term of the calling leader; empty: a worker that helps.
            batch: number of tasks to queue at most.
        """
        moved, next_us, allowed = await self.scripts.run(
            "promote",
            self.keeping,
            term,
            batch,
            in_microseconds(_WORKERS_PROMOTE_AFTER),
            *self._waits,
            self.epoch.latest,
        )
        return Promoted(moved, None if next_us < 0 else next_us / 1e6, allowed == 1)

    async def accuse(self, worker: str, ids: Sequence[str]) -> None:
        """Record that `worker` is about to run these suspects."""
        await self.scripts.run("accuse", worker, *ids)

    async def reclaim(
        self, worker: str, size: str, cursors: Sequence[bytes]
    ) -> tuple[int, list[bytes]]:
        """Requeue the tasks of dead workers; return how many, and the cursors for the next call.

        Requeues nothing while the clock of Redis is ahead; the leader corrects it.
        """
        sent = steady()
        latest = self.epoch.clock.latest(sent) or ""
        taken, now, *carried = await self.scripts.run(
            "reclaim",
            *(self.keeping, worker, size, self._lease_ms, 100, self.settings.crash_limit),
            *(latest, *cursors),
        )
        self.epoch.clock.look(Reading(sent, steady(), int(now)))
        return taken, carried

    async def take_over(self, worker: str, size: str, who: str) -> int:
        """Requeue the tasks of a dead worker and release its locks before its leases expire.

        Args:
            worker: the worker. If one of its processes is alive, its tasks may run twice at once.
            who: who reports the death, ``user@host pid``, for the event stream.

        Returns:
            The number of tasks that were requeued or have ended.
        """
        taken, more = 0, 1
        while more:
            limits = (_TAKEN_OVER_AT_ONCE, self.settings.crash_limit, self.lock_ttl_ms)
            about = (self.keeping, worker, size, *limits, who)
            more, *ids = await self.scripts.run("take_over", *about)
            taken += len(ids)
        return taken

    async def forget_workers(self, term: str) -> int | None:
        """Forget some dead workers without deliveries; return how many. None: `term` is over.

        Workers also do this with each `reclaim`.
        """
        latest = self.epoch.latest
        forgotten = int(await self.scripts.run("forget_workers", term, self._lease_ms, latest))
        return None if forgotten < 0 else forgotten

    async def expired(self, term: str, number: int) -> list[Delivery] | None:
        """List dying tasks that missed their deadline and that no worker has; None: `term` is over.

        This delivers nothing: a worker may take a task before `end_expired` ends it.
        """
        leads, *rows = await self.scripts.run("expired", term, number)
        if not leads:
            return None
        return [
            Delivery(
                *(id.decode(), gen.decode(), "0", "", "", envelope, "", "dying", int(used)),
                reason="capacity",
                died=died.decode(),
                detail=detail.decode(errors="replace"),
            )
            for id, gen, died, used, envelope, detail in rows
        ]

    async def end_expired(self, tasks: Sequence[tuple[Delivery, bytes]]) -> list[str]:
        """End tasks from `expired` with these results; return the ids of the ended ones.

        A task with an empty result does not end here; a worker of its size ends it.
        """
        args = [part for task, result in tasks for part in (task.id, task.gen, result)]
        ended = await self.scripts.run("end_expired", self.keeping, *args)
        return [id.decode() for id in ended]

    async def mend(self, rest: timedelta, pace: timedelta = timedelta(0)) -> tuple[int, bool]:
        """Requeue tasks that no queue refers to: one page of a walk that all workers share.

        Args:
            rest: pause between two walks.
            pace: shortest pause between two pages; an earlier call does nothing.

        Returns:
            The number of requeued tasks, and whether the caller should continue the walk.
        """
        mended, more = await self.scripts.run(
            "mend",
            *(self.keeping, _KEYS_PER_PAGE, self.settings.crash_limit),
            *(in_microseconds(rest), self._lease_ms * 1000, in_microseconds(pace)),
            self.epoch.latest,
        )
        return mended, more == 1

    async def presence(self, ids: Sequence[str]) -> tuple[int, list[Presence]]:
        """Read the epoch and, in the same step, what Redis knows of each task."""
        epoch, _, known = await self._presence("", ids)
        return epoch, [Presence(each) for each in known]

    async def orders(self, worker: str) -> list[Order]:
        """Read the orders of a worker. Each is repeated while the worker has the task, or lives.

        Like `presence`, this updates the epoch and the version of the configuration.
        """
        _, orders, _ = await self._presence(worker, [])
        parts = [part.decode(errors="replace") for part in orders]
        return [Order(*row) for row in zip(parts[::3], parts[1::3], parts[2::3], strict=True)]

    async def begin(self) -> None:
        """Begin the epoch of an empty Redis that this process has just started, if none has begun.

        The first use of a Redis withholds structural locks for 2 s, in case another process still
        holds some of earlier data. A server that this process has just started had no earlier data.
        A process that did see earlier data still reports the loss, see ``lib/epoch.lua``.
        """
        await self._presence("", [], rest_ms=0)

    async def _presence(
        self, worker: str, ids: Sequence[str], *, rest_ms: int | None = None
    ) -> tuple[int, list[bytes], list[int]]:
        """Read the epoch, the orders of a worker, and what is known of each id.

        Args:
            rest_ms: how long former holders of locks may rely on them; None: the TTL of locks.
        """
        rest_ms = self.lock_ttl_ms if rest_ms is None else rest_ms
        answer = await self.scripts.run("presence", self.epoch.seen, rest_ms, worker, *ids)
        self.epoch.see(answer)
        self.config_version = answer[2].decode()
        return int(answer[0]), answer[3], answer[4:]

    async def decline(self, worker: str, size: str) -> None:
        """Stop waking `worker` until it fetches again."""
        await self.scripts.run("decline", worker, size)

    async def leave(self, worker: str, size: str) -> None:
        """Unregister a stopping worker."""
        await self.scripts.run("leave", worker, size)

    def leave_from_thread(self, worker: str, size: str, seconds: float) -> None:
        """Unregister a stopping worker from a thread; raise any error of the Redis client."""
        with connect_sync(self.url, self.prefix, timeout_seconds=seconds) as client:
            run_sync(client, self.prefix, "leave", worker, size)


def new_cursors() -> list[bytes]:
    """Return the cursors for the first `Broker.reclaim`."""
    return [b"0-0"] * (len(KINDS) * len(Priority))
