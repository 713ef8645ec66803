"""Deliver tasks to a worker, and end what was delivered: fetch, settle, quarantine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

from msgspec import Struct

from nonet.base.clock import Reading, steady
from nonet.base.messages.message import ResultDocument, encode
from nonet.stores.connection.redis import BLOCK_SECONDS, Scripts, blocking_pop, server_errors
from nonet.stores.queue.deliveries import Delivery, read_delivery
from nonet.stores.queue.link import QueueLink, in_microseconds
from nonet.stores.queue.settling import Answered
from nonet.stores.queue.submissions import Submission
from nonet.tasks.locks import has_structural

logger = logging.getLogger(__name__)

_LOOKS = 200
# The longest signature that `nonet.base.messages.signing` adds to an envelope.
_SIGNATURE_BYTES = 256
_UNCONFIRMED = "too few replicas of Redis confirm its locks"
_REST = timedelta(seconds=1)


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


class Fetching(QueueLink):
    """The part of a `Broker` that delivers tasks."""

    @cached_property
    def _asking(self) -> dict[str, _Asking]:
        return {}

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

    async def wait_for_wake(self, worker: str) -> None:
        """Sleep until something wakes `worker` (or ``promoter``), at most `BLOCK_SECONDS`."""
        await blocking_pop(self._blocking, f"{self.prefix}wake:{worker}")

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
            self.settings.message_limit + _SIGNATURE_BYTES,
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
        about = (self.keeping, worker, size, self.lock_ttl_ms, in_microseconds(aside))
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
            return self._settlements.ask((*of, outcome, document), len(document))
        args: list[Any] = [
            *(*of, "commit" if outcome == "done" else outcome, document, text),
            in_microseconds(delay) if delay else 0,
            2 if still_runs else int(started),
            len(submissions),
        ]
        size = len(document)
        for item in submissions:
            args += item.arguments()
            size += len(item.envelope) + len(item.locks)
        return self._settlements.ask(args, size, 1 + len(submissions))

    def settle_done(self, delivery: Delivery, document: bytes, answered: Answered) -> None:
        """Settle a success as `settle`, and call `answered` instead of resolving a future."""
        of = delivery.id, delivery.gen, delivery.fence, delivery.stream_key, delivery.entry
        self._settlements.send((*of, "done", document), len(document), answered)

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
