"""The life of a task in Redis: submit, fetch, admit, settle, promote, reclaim.

One typed method for each script; the scripts hold the rules and the races.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

from nonet.clock import ClockWatch, Reading, steady
from nonet.errors import NEXT_STEP_IMPOSSIBLE, LimitImpossible
from nonet.keys import prefix
from nonet.message import HARD_LIMIT_BYTES, ResultDocument, encode
from nonet.stores.clock import logical_now, wall_now
from nonet.stores.epoch import EpochSeen
from nonet.stores.redis import (
    BatchedScripts,
    Scripts,
    blocking_pop,
    connect,
    connect_blocking,
    ping,
    server_errors,
)
from nonet.stores.wakes import Wakes

logger = logging.getLogger(__name__)

PRIORITIES = ("realtime", "normal", "background")
SIZES = ("small", "medium", "large")

# One submit script handles at most so much, so that Redis is never held up for long.
_CHUNK_TASKS = 500
_CHUNK_BYTES = 1024 * 1024
_LOOKS = 200
_CANCELLED_AT_A_TIME = 100
# What `nonet.signing` adds to an envelope, at most.
_SIGNATURE_BYTES = 256
_KEYS_PER_PAGE = 300  # of the walk over all records; beside 100,000 of them 1,000 take 10 ms
_WORKERS_PROMOTE_AFTER = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Submission:
    """What the submit script needs of a task.

    Attributes:
        stream: ``priority:size``.
        due_us: Unix microseconds, 0 for now.
        group: id of the group whose child this is, or empty.
        envelope: opaque bytes.
        locks: lines of `nonet.locks.encode_locks`.
    """

    id: str
    name: str
    stream: str
    envelope: bytes
    locks: str = ""
    due_us: int = 0
    group: str = ""

    def arguments(self) -> tuple[Any, ...]:
        """As the scripts take them that submit it now."""
        return (
            *(self.id, self.name, self.stream, self.due_us),
            *(self.group, self.envelope, self.locks),
        )

    def spec(self) -> tuple[Any, ...]:
        """The fields by which a script submits it later: a callback, an occurrence."""
        return (self.id, self.name, self.stream, self.envelope, self.locks)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One hand-over of a task to a worker.

    Attributes:
        state: ``running``, or ``dying`` for a task that only has to reach SQL.
        used: attempts used before this delivery.
        deaths: workers that died with it.
        locks: the lines that were read, see `nonet.locks.encode_locks`.
        held: a mark for each of its locks and limiters that says which limiters hold; or empty.
        saved: what an earlier attempt saved, encoded; empty if nothing.
        error, reason, died, detail: of a dying task: its error document, or reason and detail
            where there is none, and the generation in which it died.
    """

    id: str
    gen: str
    fence: str
    state: str
    used: int
    deaths: int
    stream_key: str
    entry: str
    envelope: bytes
    locks: str
    held: str
    error: bytes
    reason: str
    died: str
    detail: str
    saved: bytes

    @property
    def attempt(self) -> int:
        """Number of the attempt that this delivery is, from 1."""
        return self.used + 1


class Presence(IntEnum):
    """What Redis knows of a task."""

    UNKNOWN = 0  #: never submitted in this epoch, or ended long ago
    ENDED = 1  #: its end is remembered
    LIVE = 2  #: it has a record


@dataclass(frozen=True, slots=True)
class Waits:
    """When a parked task is looked at although nothing woke it; seconds.

    Attributes:
        first, longest: the pause after the first refusal in a row, and its growth's end.
        aging: who has waited for so long counts as realtime.
    """

    first: float = 30
    longest: float = 600
    aging: float = 60

    def microseconds(self) -> tuple[int, int, int]:
        """As the scripts take them."""
        return round(self.first * 1e6), round(self.longest * 1e6), round(self.aging * 1e6)


@dataclass(frozen=True, slots=True)
class Promoted:
    """Result of one promotion.

    Attributes:
        moved: tasks that went into a stream.
        next_in: seconds until the next one is due; 0: more are due now; None: there is none.
        allowed: False if the caller does not lead (any more) or need not help.
    """

    moved: int
    next_in: float | None
    allowed: bool


class Broker:
    """The broker of one namespace.

    Args:
        url: Redis URL.
        namespace: all keys start with ``{namespace}:``.
        lock_ttl, lease, result_ttl, dedup_ttl: seconds, see `nonet.settings.Settings`.
        waits: when parked tasks are looked at without a wake-up.
        message_limit: longest envelope that is handed to a worker, in bytes.

    Attributes:
        epoch: which data set of Redis this process has seen last.
        lock_ttl_ms: of locks that name no TTL of their own.
        clock: whether somebody sets the clock of Redis; what daemons do by time looks at it.
        config_version: of the configuration that was published at the last `presence`, or empty.
        wakes: what tells the holds of this process that it is their turn.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        *,
        lock_ttl: float,
        lease: float,
        result_ttl: float,
        dedup_ttl: float,
        waits: Waits = Waits(),
        message_limit: int = HARD_LIMIT_BYTES,
    ) -> None:
        self.url = url
        self.prefix = prefix(namespace)
        self.epoch = EpochSeen()
        self.clock = ClockWatch()
        self.config_version = ""
        self.client = connect(url)
        self.scripts = Scripts(self.client, self.prefix)
        self.batched = BatchedScripts(self.scripts)
        self._blocking = connect_blocking(url)
        self.wakes = Wakes(url, self.prefix)
        self._once = Scripts(self._blocking, self.prefix)
        self.lock_ttl_ms = round(lock_ttl * 1000)
        self._lease_ms = round(lease * 1000)
        self._result_ms = round(result_ttl * 1000)
        self._dedup_ms = round(dedup_ttl * 1000)
        self._waits = waits.microseconds()
        self._message_limit = message_limit

    async def ping(self) -> None:
        """Return if Redis answers and lets us run scripts that write.

        Raises:
            ServerUnreachableError: it does not answer, or only reads for now.
            ConfigurationError: it does not let us in, or forbids scripts.
        """
        await ping(self.client)
        # Changes nothing: there is no such worker.
        await self.leave("", SIZES[0])

    async def now(self) -> datetime:
        """The server's wall clock: of schedules, and of due times that clients give."""
        return await wall_now(self.client)

    async def logical_now(self) -> datetime:
        """What leases and delays count by: it goes on evenly when the server's clock is set."""
        return await logical_now(self.client, self.prefix)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.batched.aclose()
        await self.wakes.aclose()
        await self._blocking.aclose()
        await self.client.aclose()

    async def submit(self, submissions: Sequence[Submission]) -> list[bool]:
        """Create tasks; False for each id that is known already. Safe to repeat.

        Raises:
            LimitImpossible: a task counts for more than a rate limit allows now. Neither it nor
                those after it were submitted, nor those of the same `_CHUNK_TASKS`.
        """
        made: list[bool] = []
        for chunk in _chunks(submissions):
            args: list[Any] = []
            for item in chunk:
                args += item.arguments()
            answer = await self.batched.run("submit", *args)
            if answer[0] == b"IMPOSSIBLE":
                id, why = answer[1].decode(), answer[2].decode()
                raise LimitImpossible(f"task {id} was not submitted: {why}; {NEXT_STEP_IMPOSSIBLE}")
            made += [new == 1 for new in answer]
        return made

    async def fetch(self, worker: str, size: str, free: int) -> tuple[list[Delivery], bool]:
        """At most `free` tasks, in strict priority, with all their locks taken.

        The flag says that there may be more: many entries had to wait for their locks, or were
        no tasks. With fewer than `free` and no flag the worker now stands on the stack of idle
        workers.

        Not repeated when the reply is lost: then call `disown` before the next fetch.
        """
        more, *answer = await self._once.run(
            "fetch",
            worker,
            size,
            free,
            free + _LOOKS,
            self.lock_ttl_ms,
            *self._waits,
            self.epoch.seen,
            self._message_limit + _SIGNATURE_BYTES,
        )
        self.epoch.see(answer)
        deliveries = []
        damaged = []
        for row in answer[2:]:
            try:
                delivery = _delivery(row)
            except ValueError as error:  # a damaged record must not hold up the others
                damaged.append((row, f"its record is damaged: {type(error).__name__}"))
                continue
            if delivery.state == "running" and delivery.detail:
                damaged.append((row, delivery.detail))
            else:
                deliveries.append(delivery)
        await asyncio.gather(*(self._end_damaged(row, reason) for row, reason in damaged))
        return deliveries, more == 1 or bool(damaged)

    async def disown(self, worker: str, size: str, held: Iterable[Delivery]) -> int:
        """Queue again what a lost reply of `fetch` handed to `worker`, all but `held`."""
        known = [f"{self.prefix}{item.stream_key} {item.entry}" for item in held]
        return int(await self.scripts.run("disown", worker, size, self.lock_ttl_ms, *known))

    async def admit(self, delivery: Delivery, locks: str) -> tuple[bool, str]:
        """Replace the locks of a delivery.

        Returns:
            True and the marks of `Delivery.held`, or False and the lock that refused. A delivery
            that is no longer ours counts as refused: its settle will be stale.
        """
        answer = await self.batched.run(
            "admit",
            delivery.id,
            delivery.gen,
            delivery.fence,
            locks,
            self.lock_ttl_ms,
            self.epoch.seen,
        )
        text = answer[1].decode() if len(answer) > 1 else "the lease was lost"
        return answer[0] == b"OK", text

    async def settle(
        self,
        delivery: Delivery,
        outcome: str,
        document: bytes = b"",
        *,
        text: str = "",
        delay: timedelta = timedelta(0),
        started: bool = True,
        submissions: Sequence[Submission] = (),
    ) -> str:
        """End a delivery, once: ``OK``, ``STALE`` or ``LOST``. Safe to repeat.

        Args:
            outcome: ``done``, ``dead``, ``retry``, ``back`` or ``dying``.
            document: result (``done``, ``dead``) or error (``retry``, ``dying``).
            text: one line about the error or the wait; its first 60 bytes are kept.
            delay: before the next delivery.
            started: False gives rate tokens back.
            submissions: tasks that are submitted in the same step if this one is ``done``.
        """
        answer = await self.batched.run(
            "settle",
            delivery.id,
            delivery.gen,
            delivery.fence,
            delivery.stream_key,
            delivery.entry,
            outcome,
            document,
            text,
            _microseconds(delay),
            int(started),
            self._result_ms,
            self._dedup_ms,
            self.lock_ttl_ms,
            *(part for item in submissions for part in item.arguments()),
        )
        return str(answer.decode())

    @property
    def ttls(self) -> tuple[int, int]:
        """How long results and ids of ended tasks are kept, ms, as the scripts take them."""
        return self._result_ms, self._dedup_ms

    async def cancel(
        self, ids: Sequence[str], why: str, *, in_sql: Mapping[str, str] | None = None
    ) -> list[str]:
        """End tasks that do not run, without executing them. Safe to repeat.

        Args:
            why: one line for who waits for their results.
            in_sql: names of those that are open in SQL, by their ids: they are ended also if Redis
                does not know them, so that nobody hands them over any more.

        Returns:
            The state of each task now: ``cancelled``, also if it was before; that in which it
            stays (``running``, ``dying``, or how it ended); empty for an unknown id.
        """
        states: list[str] = []
        for start in range(0, len(ids), _CANCELLED_AT_A_TIME):
            page = ids[start : start + _CANCELLED_AT_A_TIME]
            args: list[Any] = []
            for id, (name, used) in zip(page, await self._names(page), strict=True):
                name = name or (in_sql or {}).get(id, "")
                document = ResultDocument(name, used, time.time(), error=why, reason="cancelled")
                args += (id, encode(document))
            answer = await self.scripts.run(
                "cancel", self._result_ms, self._dedup_ms, int(in_sql is not None), *args
            )
            states += [state.decode() for state in answer]
        return states

    async def _names(self, ids: Sequence[str]) -> list[tuple[str, int]]:
        """Full class name and attempts used of live tasks; nothing and 0 of others."""
        async with server_errors(self.client), self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hmget(f"{self.prefix}t:{id}", "name", "attempt")
            rows = await pipe.execute()
        return [((name or b"").decode(), int(used or 0)) for name, used in rows]

    async def checkpoint(self, delivery: Delivery, data: bytes) -> bool:
        """Keep what a running attempt saves; False if it is not (any more) the task's owner."""
        ids = (delivery.id, delivery.gen, delivery.fence)
        answer = await self.batched.run("checkpoint", *ids, data)
        return bool(answer == b"OK")

    async def history(self, id: str) -> list[bytes]:
        """Error documents of the failed attempts of a live task, oldest first."""
        async with server_errors(self.client):
            return list(await self.client.lrange(f"{self.prefix}h:{id}", 0, -1))

    async def promote(self, term: str = "", batch: int = 100) -> Promoted:
        """Do what is due, for a leader of `term` or a worker that helps.

        Delayed tasks go to their streams, and locks whose holder died to those who wait. Nothing
        is done while `clock` does not know how late it can be.
        """
        moved, next_us, allowed = await self.scripts.run(
            "promote",
            term,
            batch,
            _microseconds(_WORKERS_PROMOTE_AFTER),
            *self._waits,
            self.clock.latest(steady()) or "",
        )
        return Promoted(moved, None if next_us < 0 else next_us / 1e6, allowed == 1)

    async def reclaim(
        self, worker: str, size: str, death_limit: int, cursors: Sequence[bytes]
    ) -> tuple[int, list[bytes]]:
        """Queue again what dead workers held; returns the count and the cursors to carry on.

        Nothing is taken while `clock` does not know how late it can be.
        """
        sent = steady()
        latest = self.clock.latest(sent) or ""
        taken, *carried, now = await self.scripts.run(
            "reclaim", worker, size, self._lease_ms, 100, death_limit, *cursors, latest
        )
        self.clock.look(Reading(sent, steady(), int(now)))
        return taken, carried

    async def mend(self, death_limit: int, rest: timedelta) -> tuple[int, bool]:
        """Queue again what is in no place: one page of a walk that all workers carry on together.

        Args:
            rest: between the end of a walk and the next.

        Returns:
            How many records were put back, and whether the walk has more pages now.
        """
        mended, more = await self.scripts.run(
            "mend", _KEYS_PER_PAGE, death_limit, _microseconds(rest), self._lease_ms * 1000
        )
        return mended, more == 1

    async def presence(self, ids: Sequence[str]) -> tuple[int, list[Presence]]:
        """What Redis knows of each task.

        Returns:
            With the epoch in which that is so: the answer to both questions at one instant.
        """
        answer = await self.scripts.run("presence", self.epoch.seen, self.lock_ttl_ms, *ids)
        self.epoch.see(answer)
        self.config_version = answer[2].decode()
        return int(answer[0]), [Presence(known) for known in answer[3:]]

    async def wait_for_wake(self, worker: str) -> None:
        """Sleep until something wakes `worker` (or ``promoter``), at most `BLOCK_SECONDS`."""
        await blocking_pop(self._blocking, f"{self.prefix}wake:{worker}")

    async def leave(self, worker: str, size: str) -> None:
        """Take a stopping worker off every list."""
        await self.scripts.run("leave", worker, size)

    async def hold(
        self,
        id: str,
        locks: str,
        who: str = "",
        *,
        wait: bool = False,
        holders: Sequence[str] = (),
    ) -> tuple[str, str]:
        """Take locks for code that is no task.

        Args:
            id: made by the caller, who asks again with the same.
            who: who holds them, for people.
            wait: stand in the queues if a lock refuses: ask again when `wakes` tells of the id,
                and every few seconds; `unhold` if nobody wants them any more.
            holders: tasks and holds in which they are asked for.

        Returns:
            ``("OK", fence)``, ``("REFUSED", lock)``, ``("IMPOSSIBLE", why)`` or
            ``("DEADLOCK", lock)``: one of `holders` has it, or keeps away who has it.
        """
        answer = await self.scripts.run(
            "hold",
            id,
            locks,
            self.lock_ttl_ms,
            who,
            self.wakes.client if wait else "",
            self.epoch.seen,
            *holders,
        )
        self.epoch.see(answer[2:])
        return answer[0].decode(), answer[1].decode()

    async def unhold(self, id: str) -> None:
        """Release what `hold` took, or stop waiting for it."""
        await self.scripts.run("unhold", id, self.lock_ttl_ms)

    async def quarantine(self, delivery: Delivery, reason: str) -> None:
        """Keep the envelope of a delivery that is no task; the delivery is still to be settled."""
        args = (delivery.id, reason, delivery.stream_key, delivery.entry)
        await self.batched.run("quarantine", *args)

    async def _end_damaged(self, row: Sequence[bytes], reason: str) -> None:
        """End what was handed over but cannot be read, as what cannot be decoded ends."""
        id, gen, fence, _, _, _, stream_key, entry, *_ = row
        logger.warning("task %r ends in quarantine: %s", id[:128], reason)
        await self.batched.run("quarantine", id, reason, stream_key, entry)
        document = encode(ResultDocument("", 0, 0.0, error=reason, reason="quarantined"))
        ttls = (self._result_ms, self._dedup_ms, self.lock_ttl_ms)
        args = (id, gen, fence, stream_key, entry, "dead", document, "", 0, 0, *ttls)
        await self.batched.run("settle", *args)


def new_cursors() -> list[bytes]:
    """Cursors for the first `Broker.reclaim`."""
    return [b"0-0"] * (2 * len(PRIORITIES))


def _chunks(submissions: Sequence[Submission]) -> Iterator[list[Submission]]:
    chunk: list[Submission] = []
    size = 0
    for item in submissions:
        length = len(item.envelope) + len(item.locks)
        if chunk and (len(chunk) == _CHUNK_TASKS or size + length > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += length
    if chunk:
        yield chunk


def _delivery(row: Sequence[bytes]) -> Delivery:
    id, gen, fence, state, used, deaths, stream_key, entry, envelope, locks, *rest = row
    held, error, reason, died, detail, saved = rest
    return Delivery(
        id=id.decode(),
        gen=gen.decode(),
        fence=fence.decode(),
        state=state.decode(),
        used=int(used),
        deaths=int(deaths),
        stream_key=stream_key.decode(),
        entry=entry.decode(),
        envelope=envelope,
        locks=locks.decode(),
        held=held.decode(),
        error=error,
        reason=reason.decode(),
        died=died.decode(),
        detail=detail.decode(errors="replace"),
        saved=saved,
    )


def _microseconds(delta: timedelta) -> int:
    return delta // timedelta(microseconds=1)
