"""The life of a task in Redis: submit, fetch, admit, settle, promote, reclaim.

One typed method for each script; the scripts hold the rules and the races.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

from nonet.base.clock import ClockWatch, Reading, steady
from nonet.base.errors import NotConfirmedError
from nonet.base.keys import prefix
from nonet.base.streams import KINDS, Priority, Size
from nonet.messages.message import HARD_LIMIT_BYTES, ResultDocument, encode
from nonet.rules.crashes import CRASH_LIMIT
from nonet.stores.connection.clock import logical_now, wall_now
from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.connection.redis import (
    BLOCK_SECONDS,
    AsyncRedis,
    Scripts,
    blocking_pop,
    connect,
    connect_blocking,
    connect_sync,
    ping,
    run_sync,
    server_errors,
)
from nonet.stores.connection.topology import follow, read_place
from nonet.stores.queue.deliveries import Delivery, read_delivery
from nonet.stores.queue.settling import Settlements
from nonet.stores.queue.submissions import Accepted, Submission, Submissions
from nonet.stores.queue.wakes import Wakes
from nonet.tasks.locks import has_structural

logger = logging.getLogger(__name__)

_LOOKS = 200
_CANCELLED_AT_A_TIME = 100
# What `nonet.messages.signing` adds to an envelope, at most.
_SIGNATURE_BYTES = 256
_KEYS_PER_PAGE = 150  # of the walk over all records; beside millions of them they take 2 ms
_TAKEN_OVER_AT_ONCE = 100  # with two locks each they take 5 ms
_UNCONFIRMED = "too few replicas of Redis confirm its locks"
_REST = timedelta(seconds=1)
_WORKERS_PROMOTE_AFTER = timedelta(seconds=5)


class Presence(IntEnum):
    """What Redis knows of a task."""

    UNKNOWN = 0  #: never submitted in this epoch, or ended long ago
    ENDED = 1  #: its end is remembered
    LIVE = 2  #: it has a record


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is to cancel: a delivery, and who wants that and why."""

    id: str
    gen: str
    why: str


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


@dataclass(slots=True)
class _Asking:
    """How one worker fetches.

    Attributes:
        scripts: over a lane of its own, on which nothing is repeated.
        last: a time (monotonic) not after the last hand-over, and its time in Redis (µs).
    """

    scripts: Scripts
    last: tuple[float, int] = (0.0, 0)


class Broker:
    """The broker of one namespace.

    Args:
        url: Redis URL.
        namespace: all keys start with ``{namespace}:``.
        lock_ttl, lease, result_ttl, dedup_ttl: seconds, see `nonet.config.settings.Settings`.
        waits: when parked tasks are looked at without a wake-up.
        message_limit: longest envelope that is handed to a worker, in bytes.
        crash_limit: so many crashes end a task.
        confirm_replicas: so many replicas must have a submit, a settle or a structural lock.

    Attributes:
        epoch: which data set of Redis this process has seen last.
        lock_ttl_ms: of locks that name no TTL of their own.
        clock: whether somebody sets the clock of Redis; what daemons do by time looks at it.
        config_version: of the configuration that was published at the last `presence`, or empty.
        wakes: what tells the holds of this process that it is their turn.
        moved: what tests have added to the clock by which schedules go.
        crash_limit: as given.
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
        crash_limit: int = CRASH_LIMIT,
        confirm_replicas: int = 0,
    ) -> None:
        self.url = url
        self.prefix: str = prefix(namespace)
        self.epoch: EpochSeen = EpochSeen()
        self.clock: ClockWatch = ClockWatch()
        self.config_version: str = ""
        self.client: AsyncRedis = connect(url, self.prefix)
        self.scripts: Scripts = Scripts(self.client, self.prefix, replicas=confirm_replicas)
        self._blocking = connect_blocking(url, self.prefix)
        self.wakes: Wakes = Wakes(url, self.prefix)
        self.moved: timedelta = timedelta(0)
        self._asking: dict[str, _Asking] = {}
        self._following: asyncio.Task[None] | None = None
        self.lock_ttl_ms: int = round(lock_ttl * 1000)
        self._lease_ms = round(lease * 1000)
        self._result_ms = round(result_ttl * 1000)
        self._dedup_ms = round(dedup_ttl * 1000)
        self._submissions = Submissions(self.scripts, self.ttls)
        self._settlements = Settlements(self.scripts, (*self.ttls, self.lock_ttl_ms))
        self._waits = waits.microseconds()
        self._message_limit = message_limit
        self.crash_limit: int = crash_limit

    async def ping(self) -> None:
        """Return if Redis answers and lets us run scripts that write.

        Raises:
            ServerUnreachableError: it does not answer, or only reads for now.
            ConfigurationError: it does not let us in, or forbids scripts.
        """
        await ping(self.client)
        # Changes nothing: there is no such worker.
        await self.leave("", Size.SMALL)

    def follow(self) -> None:
        """Leave a server as soon as others know that it was replaced, until `aclose`."""
        finder = read_place(self.url, self.prefix).finder
        if finder is not None and finder.is_told_first:
            self._following = asyncio.create_task(follow(finder, self._move), name="follow")

    async def _move(self) -> None:
        logger.warning("Redis has another master: connecting to that")
        for client in (self.client, self._blocking, self.wakes.blocking):
            await client.reconnect()

    async def now(self) -> datetime:
        """The server's wall clock: of schedules, and of due times that clients give."""
        return await wall_now(self.client) + self.moved

    async def logical_now(self) -> datetime:
        """What leases and delays count by: it goes on evenly when the server's clock is set."""
        return await logical_now(self.client, self.prefix)

    async def aclose(self) -> None:
        """Close all connections."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        await self._submissions.aclose()
        await self._settlements.aclose()
        await self.wakes.aclose()
        await self._blocking.aclose()
        await self.client.aclose()

    async def submit(self, submissions: Sequence[Submission]) -> list[bool]:
        """`accept`; False for each that is a task which is known already."""
        return [item.created for item in await self.accept(submissions)]

    async def accept(self, submissions: Sequence[Submission]) -> list[Accepted]:
        """Create tasks whose ids are not known yet. Safe to repeat.

        All of one chunk are created or none: of at most 500 tasks, or 1 MiB.

        Raises:
            LimitImpossible: a task counts for more than a rate limit allows now.
            AdmissionRejected: there are as many tasks as a ceiling allows. Of both: the chunk was
                not submitted, nor those after it; those before it were.
        """
        return await self._submissions.accept(submissions)

    async def check_room(self, submissions: Sequence[Submission]) -> None:
        """Return if they could be submitted now.

        Raises:
            AdmissionRejected: as `accept`; of the first chunk that it would refuse.
        """
        await self._submissions.check_room(submissions)

    async def fetch(
        self, worker: str, size: str, free: int, room: int = 0, graves: int = 0
    ) -> tuple[list[Delivery], bool]:
        """At most `free` tasks, in strict priority, with all their locks taken.

        Besides, at most `room` suspects (see `nonet.worker.suspects`) and `graves` dying tasks
        (see `nonet.worker.attempt.burials`).

        The flag says that there may be more: many entries had to wait for their locks, or were
        no tasks. With fewer than `free` and no flag the worker now stands on the stack of idle
        workers.

        Not repeated when the reply is lost: then call `disown` before the next fetch. Tasks with
        mutex or reader/writer locks that too few replicas confirm are put back.
        """
        asking = self._asking_for(worker)
        sent = time.monotonic()
        deliveries, more, now = await self._fetch(asking, worker, size, free, room, graves)
        asking.last = sent, now
        return deliveries, more

    async def fetch_when_woken(
        self, worker: str, size: str, free: int, room: int = 0, graves: int = 0
    ) -> tuple[list[Delivery], bool, float]:
        """`fetch` as soon as something wakes `worker`, in any case after `BLOCK_SECONDS`.

        Both commands wait in Redis, one behind the other: between wake-up and hand-over there is
        no way to the worker and back. `rouse` ends the wait.

        Returns:
            As `fetch`, and a time (monotonic) that is not after the hand-over.
        """
        asking = self._asking_for(worker)
        lane, sent = asking.scripts.lane, time.monotonic()
        woken = lane.call("BLPOP", f"{self.prefix}wake:{worker}", BLOCK_SECONDS)
        woken.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            deliveries, more, now = await self._fetch(asking, worker, size, free, room, graves)
        except asyncio.CancelledError:
            lane.reset()  # so that it is not given anything more
            raise
        before, was = asking.last
        # Redis tells how long it was after the last hand-over.
        handed = min(max(sent, before + (now - was) / 1e6), time.monotonic())
        asking.last = handed, now
        async with server_errors(self._blocking):
            woken.result()  # at once, if its list is none
        return deliveries, more, handed

    async def rouse(self, worker: str) -> None:
        """End its `fetch_when_woken` now."""
        async with server_errors(self.client):
            await self.client.lane.call("LPUSH", f"{self.prefix}wake:{worker}", "1")

    def _asking_for(self, worker: str) -> _Asking:
        if worker not in self._asking:
            lane = self._blocking.lane_for(worker)
            scripts = Scripts(self._blocking, self.prefix, lane, self.scripts.replicas)
            self._asking[worker] = _Asking(scripts)
        return self._asking[worker]

    async def _fetch(
        self, asking: _Asking, worker: str, size: str, free: int, room: int, graves: int
    ) -> tuple[list[Delivery], bool, int]:
        """With the logical time of the hand-over, in µs."""
        (more, *answer), is_safe = await asking.scripts.run_confirmed(
            "fetch",
            worker,
            size,
            free,
            free + room + graves + _LOOKS,
            self.lock_ttl_ms,
            *self._waits,
            self.epoch.seen,
            self._message_limit + _SIGNATURE_BYTES,
            *self.ttls,
            self.clock.latest(steady()) or "",
            room,
            graves,
        )
        self.epoch.see(answer)
        deliveries = []
        damaged = []
        for row in answer[3:]:
            try:
                delivery = read_delivery(row)
            except ValueError as error:  # a damaged record must not hold up the others
                damaged.append((row, f"its record is damaged: {type(error).__name__}"))
                continue
            if delivery.state == "running" and delivery.detail:
                damaged.append((row, delivery.detail))
            else:
                deliveries.append(delivery)
        for (id, gen, fence, _, _, _, stream_key, entry, *_), reason in damaged:
            await self._end_damaged(id, gen, fence, stream_key, entry, reason)
        if not is_safe:
            deliveries = await self._give_unconfirmed_back(deliveries)
        return deliveries, more == 1 or bool(damaged), int(answer[2])

    async def _give_unconfirmed_back(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Those whose locks need no replica; the others are looked at again in a moment."""
        locked = [item for item in deliveries if has_structural(item.locks)]
        if locked:
            logger.warning("gave back %d tasks: %s", len(locked), _UNCONFIRMED)
        options: dict[str, Any] = {"text": _UNCONFIRMED, "delay": _REST, "started": False}
        await asyncio.gather(*(self.settle(item, "back", **options) for item in locked))
        return [item for item in deliveries if item not in locked]

    async def disown(self, worker: str, size: str, held: Iterable[Delivery]) -> int:
        """Queue again what a lost reply of `fetch` handed to `worker`, all but `held`.

        What was cancelled meanwhile ends, and is counted, too.
        """
        known = [f"{self.prefix}{item.stream_key} {item.entry}" for item in held]
        ttls = (self.lock_ttl_ms, *self.ttls)
        return int(await self.scripts.run("disown", worker, size, *ttls, *known))

    async def admit(self, delivery: Delivery, locks: str) -> tuple[bool, str]:
        """Replace the locks of a delivery.

        Returns:
            True and the marks of `Delivery.held`, or False and the lock that refused. A delivery
            that is no longer ours counts as refused: its settle will be stale.
        """
        answer, is_safe = await self.scripts.run_confirmed(
            "admit",
            delivery.id,
            delivery.gen,
            delivery.fence,
            locks,
            self.lock_ttl_ms,
            self.epoch.seen,
        )
        text = answer[1].decode() if len(answer) > 1 else "the lease was lost"
        if has_structural(locks) and not is_safe:
            return False, _UNCONFIRMED
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
        goes_on: bool = False,
        submissions: Sequence[Submission] = (),
    ) -> str:
        """End a delivery, once: ``OK``, ``STALE`` or ``LOST``. Safe to repeat.

        Args:
            outcome: ``done``, ``dead``, ``retry``, ``crash``, ``back``, ``suspect``, ``on`` or
                ``dying``.
            document: result (``done``, ``dead``) or error (``retry``, ``dying``).
            text: one line about the error or the wait; its first 60 bytes are kept.
            delay: before the next delivery.
            started: False gives rate tokens back.
            goes_on: its code still runs: the structural locks that it holds become those of the
                hold `hold_of_code`, to be renewed as such and released by `unhold`.
            submissions: tasks that are submitted in the same step if this one is ``done``.
        """
        return await self.settle_soon(
            delivery,
            outcome,
            document,
            text=text,
            delay=delay,
            started=started,
            goes_on=goes_on,
            submissions=submissions,
        )

    def settle_soon(
        self,
        delivery: Delivery,
        outcome: str,
        document: bytes = b"",
        *,
        text: str = "",
        delay: timedelta = timedelta(0),
        started: bool = True,
        goes_on: bool = False,
        submissions: Sequence[Submission] = (),
    ) -> asyncio.Future[str]:
        """`settle`, with all that ends in this step of the event loop.

        Returns:
            The answer, or what was raised, later.
        """
        args: list[Any] = [
            delivery.id,
            delivery.gen,
            delivery.fence,
            delivery.stream_key,
            delivery.entry,
            outcome,
            document,
            text,
            _microseconds(delay) if delay else 0,
            2 if goes_on else int(started),
            len(submissions),
        ]
        size = len(document)
        for item in submissions:
            args += item.arguments()
            size += len(item.envelope) + len(item.locks)
        return self._settlements.ask(args, size, 1 + len(submissions))

    @property
    def ttls(self) -> tuple[int, int]:
        """How long results and ids of ended tasks are kept, ms, as the scripts take them."""
        return self._result_ms, self._dedup_ms

    async def cancel(
        self,
        ids: Sequence[str],
        why: str,
        *,
        in_sql: Mapping[str, str] | None = None,
        order: str = "",
    ) -> list[str]:
        """End tasks without executing them (further). Safe to repeat.

        Args:
            why: one line for who waits for their results.
            order: the same for the workers of those that run, of which 60 bytes are kept; empty:
                these are left alone.
            in_sql: names of those that are open in SQL, by their ids: they are ended also if Redis
                does not know them, so that nobody hands them over any more.

        Returns:
            The state of each task now: ``cancelled``, also if it was before; ``cancelling``: its
            worker is told, see `orders`; that in which it stays (``running``, ``dying``, or how
            it ended); empty for an unknown id.
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
                "cancel", *self.ttls, int(in_sql is not None), order, *args
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
        answer = await self.scripts.run("checkpoint", *ids, data)
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
            *self.ttls,
        )
        return Promoted(moved, None if next_us < 0 else next_us / 1e6, allowed == 1)

    async def accuse(self, worker: str, ids: Sequence[str]) -> None:
        """Say that `worker` begins to run these suspects: before it does."""
        await self.scripts.run("accuse", worker, *ids)

    async def reclaim(
        self, worker: str, size: str, cursors: Sequence[bytes]
    ) -> tuple[int, list[bytes]]:
        """Queue again what dead workers held; returns the count and the cursors to carry on.

        Nothing is taken while `clock` does not know how late it can be.
        """
        sent = steady()
        latest = self.clock.latest(sent) or ""
        taken, now, *carried = await self.scripts.run(
            "reclaim",
            *(worker, size, self._lease_ms, 100, self.crash_limit),
            *(latest, *self.ttls, *cursors),
        )
        self.clock.look(Reading(sent, steady(), int(now)))
        return taken, carried

    async def take_over(self, worker: str, size: str, who: str) -> int:
        """Queue again what a worker held, and release its locks, without waiting for its leases.

        Args:
            worker: is dead, and so are all its child processes: else a task runs twice at a time.
            who: knows that, ``user@host pid``, for the event stream.

        Returns:
            The number of tasks that were queued again, or have ended.
        """
        taken, more = 0, 1
        while more:
            limits = (_TAKEN_OVER_AT_ONCE, self.crash_limit, self.lock_ttl_ms, *self.ttls)
            more, *ids = await self.scripts.run("take_over", worker, size, *limits, who)
            taken += len(ids)
        return taken

    async def forget_workers(self, term: str) -> int | None:
        """Forget some workers that are gone and have nothing in hand; None: `term` leads no more.

        Workers do so by themselves with each `reclaim`.
        """
        latest = self.clock.latest(steady()) or ""
        forgotten = int(await self.scripts.run("forget_workers", term, self._lease_ms, latest))
        return None if forgotten < 0 else forgotten

    async def expired(self, term: str, number: int) -> list[Delivery] | None:
        """Dying tasks that nobody has started in time, and no worker has; None: `term` is over.

        They are not handed over: `end_expired` ends those that no worker has taken by then.
        """
        leads, *rows = await self.scripts.run("expired", term, number)
        if not leads:
            return None
        return [
            Delivery(
                *(id.decode(), gen.decode(), "0", "dying", int(used), 0, "", "", envelope, "", ""),
                reason="capacity",
                died=died.decode(),
                detail=detail.decode(errors="replace"),
            )
            for id, gen, died, used, envelope, detail in rows
        ]

    async def end_expired(self, tasks: Sequence[tuple[Delivery, bytes]]) -> list[str]:
        """End tasks of `expired` with their results; the ids of those that were ended.

        One with an empty result is left to the workers of its size.
        """
        args = [part for task, result in tasks for part in (task.id, task.gen, result)]
        ended = await self.scripts.run("end_expired", *self.ttls, *args)
        return [id.decode() for id in ended]

    async def mend(self, rest: timedelta, pace: timedelta = timedelta(0)) -> tuple[int, bool]:
        """Queue again what is in no place: one page of a walk that all workers carry on together.

        Args:
            rest: between the end of a walk and the next.
            pace: between two pages, at the least; who comes before has nothing to do.

        Returns:
            How many records were put back, and whether the caller is to carry the walk on.
        """
        mended, more = await self.scripts.run(
            "mend",
            *(_KEYS_PER_PAGE, self.crash_limit, _microseconds(rest), self._lease_ms * 1000),
            *(*self.ttls, _microseconds(pace)),
        )
        return mended, more == 1

    async def presence(self, ids: Sequence[str]) -> tuple[int, list[Presence]]:
        """What Redis knows of each task.

        Returns:
            With the epoch in which that is so: the answer to both questions at one instant.
        """
        epoch, _, known = await self._presence("", ids)
        return epoch, [Presence(each) for each in known]

    async def orders(self, worker: str) -> list[Order]:
        """What a worker is to cancel: told again and again while it has it.

        Looks at the epoch and the published configuration, too, as `presence` does.
        """
        _, told, _ = await self._presence(worker, [])
        parts = [part.decode(errors="replace") for part in told]
        return [Order(*row) for row in zip(parts[::3], parts[1::3], parts[2::3], strict=True)]

    async def _presence(
        self, worker: str, ids: Sequence[str]
    ) -> tuple[int, list[bytes], list[int]]:
        """The epoch, the orders of a worker, and what is known of each id."""
        answer = await self.scripts.run("presence", self.epoch.seen, self.lock_ttl_ms, worker, *ids)
        self.epoch.see(answer)
        self.config_version = answer[2].decode()
        return int(answer[0]), answer[3], answer[4:]

    async def wait_for_wake(self, worker: str) -> None:
        """Sleep until something wakes `worker` (or ``promoter``), at most `BLOCK_SECONDS`."""
        await blocking_pop(self._blocking, f"{self.prefix}wake:{worker}")

    async def decline(self, worker: str, size: str) -> None:
        """Wake `worker` no more until it fetches again: it takes nothing for a while."""
        await self.scripts.run("decline", worker, size)

    async def leave(self, worker: str, size: str) -> None:
        """Take a stopping worker off every list."""
        await self.scripts.run("leave", worker, size)

    def leave_from_thread(self, worker: str, size: str, seconds: float) -> None:
        """The same from a thread, over a connection of its own that may be silent for `seconds`.

        Raises:
            Exception: of the Redis client.
        """
        with connect_sync(self.url, self.prefix, timeout_seconds=seconds) as client:
            run_sync(client, self.prefix, "leave", worker, size)

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
            ``("OK", fence)``, ``("REFUSED", lock)``, ``("CALM", "lock|µs")``: nobody has it, and
            nobody gets it for so long after a loss of data, ``("IMPOSSIBLE", why)`` or
            ``("DEADLOCK", lock)``: one of `holders` has it, or keeps away who has it.

        Raises:
            NotConfirmedError: too few replicas have the locks; they were given back.
        """
        answer, is_safe = await self.scripts.run_confirmed(
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
        if answer[0] == b"OK" and has_structural(locks) and not is_safe:
            await self.unhold(id)
            raise NotConfirmedError("the locks", self.scripts.replicas)
        return answer[0].decode(), answer[1].decode()

    async def unhold(self, id: str) -> None:
        """Release what `hold` took, or stop waiting for it."""
        await self.scripts.run("unhold", id, self.lock_ttl_ms)

    async def quarantine(self, delivery: Delivery, reason: str) -> None:
        """Keep the envelope of a delivery that is no task; the delivery is still to be settled."""
        args = (delivery.id, reason, delivery.stream_key, delivery.entry)
        await self.scripts.run("quarantine", *args)

    async def end_damaged(self, delivery: Delivery, reason: str) -> None:
        """End a delivery that cannot be executed, as what cannot be decoded ends."""
        ids = (delivery.id, delivery.gen, delivery.fence, delivery.stream_key, delivery.entry)
        await self._end_damaged(*ids, reason)

    async def _end_damaged(
        self,
        id: bytes | str,
        gen: bytes | str,
        fence: bytes | str,
        stream_key: bytes | str,
        entry: bytes | str,
        reason: str,
    ) -> None:
        logger.warning("task %r ends in quarantine: %s", id[:128], reason)
        await self.scripts.run("quarantine", id, reason, stream_key, entry)
        document = encode(ResultDocument("", 0, 0.0, error=reason, reason="quarantined"))
        args = (id, gen, fence, stream_key, entry, "dead", document, "", 0, 0, 0)
        await self._settlements.ask(args, len(document))


def hold_of_code(delivery: Delivery) -> str:
    """Id of the hold that keeps the locks of code that goes on after its attempt has ended."""
    return f"{delivery.id}~{delivery.fence}"


def new_cursors() -> list[bytes]:
    """Cursors for the first `Broker.reclaim`."""
    return [b"0-0"] * (len(KINDS) * len(Priority))


def _microseconds(delta: timedelta) -> int:
    return delta // timedelta(microseconds=1)
