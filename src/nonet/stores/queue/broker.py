"""Run the queue of one namespace in Redis: submit, fetch, settle, promote, reclaim.

One typed method for each script; the scripts hold the rules and the races.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

from msgspec import Struct

from nonet.base.clock import Reading, steady
from nonet.base.errors import NotConfirmedError
from nonet.base.keys import prefix
from nonet.base.streams import KINDS, Priority, Size
from nonet.messages.message import HARD_LIMIT_BYTES, ResultDocument, encode
from nonet.rules.crash_limit import CRASH_LIMIT
from nonet.stores.connection.clock import logical_now, microseconds, wall_now
from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.connection.redis import (
    BLOCK_SECONDS,
    AsyncRedis,
    Scripts,
    blocking_pop,
    connect_sync,
    ping,
    run_sync,
    server_errors,
)
from nonet.stores.connection.topology import follow
from nonet.stores.queue.deliveries import Delivery, read_delivery
from nonet.stores.queue.settling import Settlements
from nonet.stores.queue.submissions import Accepted, Submission
from nonet.stores.queue.transport import ASYNCIO, Transport
from nonet.stores.queue.wakes import Wakes
from nonet.tasks.locks import has_structural

logger = logging.getLogger(__name__)

_LOOKS = 200
CANCELLED_AT_A_TIME = 150
# The longest signature that `nonet.messages.signing` adds to an envelope.
_SIGNATURE_BYTES = 256
_KEYS_PER_PAGE = 150  # one page of the walk over all records: 2 ms
_TAKEN_OVER_AT_ONCE = 100  # 5 ms, if each task has two locks
_UNCONFIRMED = "too few replicas of Redis confirm its locks"
_REST = timedelta(seconds=1)
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


class Waits(Struct, frozen=True):
    """How often a parked task is checked without a wake-up, in seconds.

    Attributes:
        first, longest: the pause after the first refusal; it grows with each up to the longest.
        aging: a task that has waited this long is fetched like a realtime one.
    """

    first: float = 30
    longest: float = 600
    aging: float = 60

    def microseconds(self) -> tuple[int, int, int]:
        """Return the three times as the scripts take them."""
        return round(self.first * 1e6), round(self.longest * 1e6), round(self.aging * 1e6)


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


class Awoken(Struct, frozen=True):
    """Result of a fetch by a worker that has slept.

    Attributes:
        deliveries, more: the result of `Broker.fetch`.
        since: a time (monotonic) before the delivery.
        is_woken: whether something has woken the worker: tasks, or an order.
        is_relieved: whether another idle worker of its size is on duty: that worker looks for tasks
            and does the chores, while this one only waited.
    """

    deliveries: list[Delivery]
    more: bool
    since: float
    is_woken: bool
    is_relieved: bool


class _Asking(Struct):
    """The connection of one worker that fetches, and its last fetch.

    Attributes:
        scripts: scripts on a connection that only this worker uses and that never retries.
        last: lower bound of the last delivery's time (monotonic), and its logical time (µs).
    """

    scripts: Scripts
    last: tuple[float, int] = (0.0, 0)


class Broker:
    """The broker of one namespace.

    Args:
        url: Redis URL.
        namespace: all keys start with ``{namespace}:``.
        lock_ttl, lease, result_ttl, dedup_ttl: seconds, see `nonet.config.settings.Settings`.
        waits: when parked tasks are checked without a wake-up.
        message_limit: longest envelope that is handed to a worker, in bytes.
        crash_limit: number of crashes that end a task.
        confirm_replicas: number of replicas that must confirm a submit, a settle or a
            structural lock.
        history: number of ended tasks to list, see `nonet.stores.namespace.history`; 0: none.
        transport: whether calls suspend a coroutine or block a thread.

    Attributes:
        epoch: what this process has seen of Redis: its epoch and its time.
        lock_ttl_ms: TTL of locks that define none.
        config_version: version of the configuration published at the last `presence`, or empty.
        wakes: wakes the holds of this process when a lock is offered to them.
        moved: offset that tests have added to the clock of schedules.
        crash_limit: number of crashes that end a task.
        keeping: what scripts keep of ended tasks: how long results, how long ids (ms), and the
            length of the history, as ``lib/finish.lua`` reads it.
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
        history: int = 0,
        transport: Transport = ASYNCIO,
    ) -> None:
        self.url = url
        self.transport = transport
        self.prefix: str = prefix(namespace)
        self.config_version: str = ""
        self.client: AsyncRedis = transport.connect(url, self.prefix)
        # A new epoch may come from another server: no connection may stay with the old one.
        self.epoch: EpochSeen = EpochSeen(self.client.endpoint.leave)
        self.scripts: Scripts = Scripts(self.client, self.prefix, replicas=confirm_replicas)
        self._blocking = transport.connect_blocking(url, self.prefix)
        self.wakes: Wakes = transport.wakes(url, self.prefix)
        self.moved: timedelta = timedelta(0)
        self._asking: dict[str, _Asking] = {}
        self._following: asyncio.Task[None] | None = None
        self.lock_ttl_ms: int = round(lock_ttl * 1000)
        self._lease_ms = round(lease * 1000)
        self.keeping: str = f"{round(result_ttl * 1000)}|{round(dedup_ttl * 1000)}|{history}"
        self._submissions = transport.submissions(self.scripts, self.keeping)
        self._settlements = Settlements(self.scripts, self.epoch, self.keeping, self.lock_ttl_ms)
        self._waits = waits.microseconds()
        self._message_limit = message_limit
        self.crash_limit: int = crash_limit

    async def ping(self) -> None:
        """Check that Redis answers and permits scripts that write.

        Raises:
            ServerUnreachableError: Redis does not answer, or is read-only for now.
            ConfigurationError: Redis rejects the credentials, or forbids scripts.
        """
        await ping(self.client)
        # Changes nothing: there is no such worker.
        await self.leave("", Size.SMALL)

    def follow(self) -> None:
        """Reconnect as soon as the Redis master is replaced, until `aclose`."""
        finder = self.client.endpoint.finder
        if finder is not None and finder.is_announced:
            self._following = asyncio.create_task(follow(finder, self._move), name="follow")

    async def _move(self) -> None:
        logger.warning("Redis master replaced: reconnecting to the new one")
        self.client.endpoint.leave()

    async def now(self) -> datetime:
        """Return the server's wall clock, which schedules and due times of clients use."""
        return await wall_now(self.client) + self.moved

    async def logical_now(self) -> datetime:
        """Return the clock of leases and delays; it compensates for steps of the server's clock."""
        return await logical_now(self.client, self.prefix)

    async def _read_clock(self) -> None:
        sent = steady()
        now = await self.logical_now()
        self.epoch.clock.look(Reading(sent, steady(), microseconds(now)))

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

    async def fetch(
        self, worker: str, size: str, free: int, room: int = 0, burials: int = 0
    ) -> tuple[list[Delivery], bool]:
        """Fetch at most `free` tasks in strict priority order, with all their locks taken.

        Also fetch at most `room` suspects (see `nonet.worker.suspects`) and `burials` dying tasks
        (see `nonet.worker.attempt.burials`).

        A fetch whose reply was lost is not retried: call `disown` before the next one. If too few
        replicas confirm the structural locks of a task, it is requeued.

        Returns:
            The deliveries, and whether to fetch again at once because the script stopped early. If
            not, and fewer than `free` tasks came, the worker is on the stack of idle workers.
        """
        asking = self._asking_for(worker)
        sent, asked = time.monotonic(), steady()
        deliveries, more, now = await self._fetch(asking, worker, size, free, room, burials)
        asking.last = sent, now
        self.epoch.clock.look(Reading(asked, steady(), now))
        return deliveries, more > 0

    async def fetch_when_woken(
        self, worker: str, size: str, free: int, room: int = 0, burials: int = 0
    ) -> Awoken:
        """Fetch as soon as something wakes `worker`, at the latest after `BLOCK_SECONDS`.

        Both commands are sent at once, so a wake-up causes no extra round trip. `rouse` ends the
        wait. If nothing has woken the worker, it fetches only if no other idle worker of its size
        is on duty.
        """
        asking = self._asking_for(worker)
        lane, sent = asking.scripts.lane, time.monotonic()
        woken = lane.call("BLPOP", f"{self.prefix}wake:{worker}", BLOCK_SECONDS)
        woken.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            deliveries, more, now = await self._fetch(asking, worker, size, free, room, burials, 1)
        except asyncio.CancelledError:
            lane.reset()  # disconnects, so that Redis delivers nothing more to this worker
            raise
        before, was = asking.last
        # After a long wait `sent` is a poor bound. A better one is the last delivery plus the time
        # that has passed since then by the clock of Redis.
        handed = min(max(sent, before + (now - was) / 1e6), time.monotonic())
        asking.last = handed, now
        if problem := woken.exception():  # the key has a wrong type
            async with server_errors(self._blocking):
                raise problem
        return Awoken(deliveries, more > 0, handed, woken.result() is not None, more < 0)

    async def rouse(self, worker: str) -> None:
        """End the `fetch_when_woken` of a worker now."""
        async with server_errors(self.client):
            await self.client.lane.call("LPUSH", f"{self.prefix}wake:{worker}", "1")

    def _asking_for(self, worker: str) -> _Asking:
        if worker not in self._asking:
            lane = self._blocking.lane_for(worker)
            scripts = Scripts(self._blocking, self.prefix, lane, self.scripts.replicas)
            self._asking[worker] = _Asking(scripts)
        return self._asking[worker]

    async def _fetch(
        self,
        asking: _Asking,
        worker: str,
        size: str,
        free: int,
        room: int,
        burials: int,
        slept: int = 0,
    ) -> tuple[list[Delivery], int, int]:
        """Fetch; also return whether there may be more tasks, and the logical time in µs."""
        (more, *answer), is_safe = await asking.scripts.run_confirmed(
            "fetch",
            self.keeping,
            worker,
            size,
            free,
            free + room + burials + _LOOKS,
            self.lock_ttl_ms,
            *self._waits,
            self.epoch.seen,
            self._message_limit + _SIGNATURE_BYTES,
            room,
            burials,
            slept,
        )
        self.epoch.see(answer)
        deliveries = []
        damaged = []
        for row in answer[3:]:
            try:
                delivery = read_delivery(row)
            except ValueError as error:  # a damaged record must not stop the others
                damaged.append((row, f"its record is damaged: {type(error).__name__}"))
                continue
            if delivery.state == "running" and delivery.detail:
                damaged.append((row, delivery.detail))
            else:
                deliveries.append(delivery)
        for (id, gen, fence, stream_key, entry, *_), reason in damaged:
            await self._end_damaged(id, gen, fence, stream_key, entry, reason)
        if not is_safe:
            deliveries = await self._give_unconfirmed_back(deliveries)
        return deliveries, 1 if damaged else more, int(answer[2])

    async def _give_unconfirmed_back(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Requeue the deliveries with structural locks; return the others."""
        locked = [item for item in deliveries if has_structural(item.locks)]
        if locked:
            logger.warning("requeued %d tasks: %s", len(locked), _UNCONFIRMED)
        options: dict[str, Any] = {"text": _UNCONFIRMED, "delay": _REST, "started": False}
        await asyncio.gather(*(self.settle(item, "back", **options) for item in locked))
        return [item for item in deliveries if item not in locked]

    async def disown(
        self, worker: str, size: str, held: Iterable[Delivery], aside: timedelta = timedelta(0)
    ) -> list[str]:
        """Requeue the tasks that a lost reply of `fetch` delivered to `worker`; return their ids.

        Deliveries in `held` stay. Tasks that were cancelled meanwhile end; they are listed, too.

        Args:
            aside: how long the first task waits; the second waits twice as long, and so on.
        """
        known = [f"{self.prefix}{item.stream_key} {item.entry}" for item in held]
        about = (self.keeping, worker, size, self.lock_ttl_ms, _microseconds(aside))
        return [id.decode() for id in await self.scripts.run("disown", *about, *known)]

    async def admit(self, delivery: Delivery, locks: str) -> tuple[bool, str]:
        """Replace the locks of a delivery.

        Returns:
            True and the marks of `Delivery.held`, or False and the lock that refused. Also
            False if the worker no longer owns the delivery: its settle will return ``STALE``.
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

    def settle(
        self,
        delivery: Delivery,
        outcome: str,
        document: bytes = b"",
        *,
        text: str = "",
        delay: timedelta = timedelta(0),
        started: bool = True,
        still_runs: bool = False,
        submissions: Sequence[Submission] = (),
    ) -> asyncio.Future[str]:
        """End a delivery, once: ``OK``, ``STALE`` or ``LOST``. Safe to repeat.

        All deliveries that end in one step of the event loop are settled together.

        Args:
            outcome: ``done``, ``dead``, ``retry``, ``crash``, ``back``, ``suspect``, ``on`` or
                ``dying``.
            document: result (``done``, ``dead``) or error (``retry``, ``dying``).
            text: one line about the error or the wait; its first 60 bytes are kept.
            delay: before the next delivery.
            started: False gives rate tokens back.
            still_runs: its code still runs. Its structural locks move to the hold `hold_of_code`;
                renew that, and release it by `unhold`.
            submissions: tasks that are submitted in the same step if this one is ``done``.
        """
        of = delivery.id, delivery.gen, delivery.fence, delivery.stream_key, delivery.entry
        if outcome == "done" and started and not (still_runs or submissions):
            return self._settlements.ask((*of, document), len(document))
        args: list[Any] = [
            *(*of, outcome, document, text),
            _microseconds(delay) if delay else 0,
            2 if still_runs else int(started),
            len(submissions),
        ]
        size = len(document)
        for item in submissions:
            args += item.arguments()
            size += len(item.envelope) + len(item.locks)
        return self._settlements.ask(args, size, 1 + len(submissions))

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
            text: at most 60 bytes.
        """
        ids = (delivery.id, delivery.gen, delivery.fence)
        share = "" if fraction is None else f"{fraction:.4f}"
        return bool(await self.scripts.run("report_progress", *ids, share, text) == b"OK")

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
            _microseconds(_WORKERS_PROMOTE_AFTER),
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
            *(self.keeping, worker, size, self._lease_ms, 100, self.crash_limit),
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
            limits = (_TAKEN_OVER_AT_ONCE, self.crash_limit, self.lock_ttl_ms)
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
            *(self.keeping, _KEYS_PER_PAGE, self.crash_limit),
            *(_microseconds(rest), self._lease_ms * 1000, _microseconds(pace)),
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

    async def wait_for_wake(self, worker: str) -> None:
        """Sleep until something wakes `worker` (or ``promoter``), at most `BLOCK_SECONDS`."""
        await blocking_pop(self._blocking, f"{self.prefix}wake:{worker}")

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

    async def hold(
        self, id: str, locks: str, who: str = "", *, wait: bool = False, holders: Sequence[str] = ()
    ) -> tuple[str, str]:
        """Acquire locks for code that is not a task.

        Args:
            id: chosen by the caller; repeat the call with the same id.
            who: name of the holder, for people.
            wait: join the queues if a lock refuses. Then call again when `wakes` reports the id,
                and every few seconds; call `unhold` to stop waiting.
            holders: tasks and holds inside which the caller runs.

        Returns:
            ``("OK", fence)``; ``("REFUSED", lock)``; ``("IMPOSSIBLE", why)``;
            ``("WITHHELD", "lock|µs")``: after a loss of data, withheld for this time;
            ``("DEADLOCK", lock)``: one of `holders` has the lock or blocks the task that has it.

        Raises:
            NotConfirmedError: too few replicas confirm the locks; they were released.
        """
        if not self.epoch.latest:
            await self._read_clock()
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
        """Release the locks of `hold`, or stop waiting for them."""
        await self.scripts.run("unhold", id, self.lock_ttl_ms)

    async def quarantine(self, delivery: Delivery, reason: str) -> None:
        """Quarantine the envelope of a delivery that is not a valid task. Settle it afterwards."""
        args = (delivery.id, reason, delivery.stream_key, delivery.entry)
        await self.scripts.run("quarantine", *args)

    async def end_damaged(self, delivery: Delivery, reason: str) -> None:
        """Quarantine a delivery that cannot be executed, and end its task."""
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
        logger.warning("task quarantined id=%r: %s", id[:128], reason)
        await self.scripts.run("quarantine", id, reason, stream_key, entry)
        document = encode(ResultDocument("", 0, 0.0, error=reason, reason="quarantined"))
        args = (id, gen, fence, stream_key, entry, "dead", document, "", 0, 0, 0)
        await self._settlements.ask(args, len(document))


def hold_of_code(delivery: Delivery) -> str:
    """Return the id of the hold that keeps the locks of code still running after its attempt."""
    return f"{delivery.id}~{delivery.fence}"


def new_cursors() -> list[bytes]:
    """Return the cursors for the first `Broker.reclaim`."""
    return [b"0-0"] * (len(KINDS) * len(Priority))


def _microseconds(delta: timedelta) -> int:
    return delta // timedelta(microseconds=1)
