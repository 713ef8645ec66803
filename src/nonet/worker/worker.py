"""The worker daemon: it fetches tasks for its free slots, executes them and settles them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from nonet.base.actor import process_name
from nonet.base.errors import ConfigurationError, NonetError
from nonet.base.forks import detached_in_copies
from nonet.base.loop import in_own_thread, name_of
from nonet.base.streams import Size
from nonet.base.version import __version__
from nonet.client.client import Client
from nonet.daemon.contact import Contact, sql_reached
from nonet.daemon.health import Observed, Report
from nonet.daemon.service import ExitCode, Stop, every, reached, wind_up
from nonet.daemon.watchdog import Watchdog
from nonet.stores.connection.clock import correction
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.queue.leases import Leases
from nonet.stores.queue.workers import DRAINS
from nonet.tasks.injection import Injector
from nonet.tasks.task import Isolation
from nonet.telemetry.metrics import Sample
from nonet.telemetry.running_middleware import failure_samples
from nonet.worker.about import About
from nonet.worker.children.children import Children
from nonet.worker.children.forking import ForkServerError
from nonet.worker.chores import Chores
from nonet.worker.descriptors import Descriptors
from nonet.worker.incarnation import Incarnation, left_by
from nonet.worker.lag import Culprit, LoopLag
from nonet.worker.reader import Reader
from nonet.worker.runner import Runner
from nonet.worker.tally import Tally

logger = logging.getLogger(__name__)

_HELP_PROMOTE_SECONDS = 1.0
# How long cancelled tasks may take to end before the process ends without them.
_CANCEL_SECONDS = 2.0
_LEAVE_SECONDS = 1.0
# Longest wait for the last beat, and for the call that unregisters, when the event loop is blocked.
_SIGN_OFF_SECONDS = 4.0
_STOPPED = "the worker stopped"
_MEASURE_SECONDS = 5.0
# How long a worker reports that the interpreter lock was held.
_HELD_FOR_SECONDS = 3600.0
# How long it reports that code blocked its event loop.
_BLOCKED_FOR_SECONDS = 600.0


class Worker(Observed):
    """One worker process of one size.

    Args:
        client: the client of the open application.
        injector: provides the dependencies of tasks.
        size, concurrency, isolation: see `nonet.Nonet.worker`.
        owns_process: False: the process belongs to a program around the worker, so the worker
            never ends it, not even if a task blocks the event loop forever.

    Attributes:
        id: ``size-nonce``, unique to this process.
        name: ``pid@host``, shown to operators.
    """

    def __init__(
        self,
        client: Client,
        injector: Injector,
        size: Size,
        concurrency: int | None = None,
        isolation: Isolation | None = None,
        *,
        owns_process: bool = True,
    ) -> None:
        settings = client.settings
        slots = concurrency or settings.slots_of(size)
        self._client = client
        self._broker = broker = client.stores.broker
        left = left_by(settings, client.registry)
        self._me = me = Incarnation(f"{size}-{secrets.token_hex(6)}", size, slots, isolation, left)
        self.id: str = me.id
        self.name: str = process_name()
        self._loop_name = ""
        self._redis = Contact(time.monotonic())
        self._stop = Stop()
        # When Redis last lost data (monotonic), and the last loss that `_look` has handled.
        self._lost_at = self._looked_for = time.monotonic()
        self._on_ordered: Callable[[], None] = lambda: None
        self._described_last: dict[str, Any] = {}
        self._children = Children(settings, broker.url, client.middlewares)
        self._tally = Tally(
            client.registry.versions(), str(size), lambda: client.live_config.named_tenants
        )
        self._leases = self._make_leases()
        self._watchdog = self._make_watchdog()
        self._runner = Runner(
            client, injector, me, self._watchdog, self._children, self._tally, self._sign_off
        )
        self._owns_process = owns_process
        needs_sql = any(item.cls.dlq_eligible or item.cls.durable for item in client.registry)
        self._sql = sql_reached(settings, client.stores) if needs_sql else None
        self._lag = self._make_lag()
        self._about = self._make_about()
        self._leases.ask(self._about.say)
        self._leases.count(self._tally.figures, self._tally.note_offset)
        self._reader = Reader(
            *(broker, me, self._runner, self._redis, self._watchdog, self._about), look=self._look
        )
        self._chores = Chores(broker, me, settings.lease, lambda: self._reader.is_relieved)

    async def run(self, stop: Stop) -> ExitCode:
        """Work until a stop is requested, then drain.

        Wait for Redis while it is unavailable, at the start and later.

        Returns:
            OK if all running tasks have ended, FAILED if the grace period cut tasks off,
            SECOND_SIGNAL if a second signal did.

        Raises:
            ConfigurationError: Redis is too old, may evict keys, or denies a command.
        """
        self._stop = stop
        settings = self._client.settings
        inspection = Inspection(self._broker, settings.namespace)
        check = partial(inspection.check, allow_eviction=settings.allow_eviction)
        if not await reached(stop, check):
            return ExitCode.OK
        await self._start_children()
        try:
            register = partial(in_own_thread, self._watchdog.start)
            # A later change wakes this worker, because it is registered before it looks.
            if not (await reached(stop, register) and await reached(stop, self._look)):
                return ExitCode.OK
            self._lag.start()
            self._loop_name = name_of(asyncio.get_running_loop())
            logger.info(
                "worker %s (%s) ready: %d slots, event loop of %s",
                self.name,
                self.id,
                self._me.slots,
                self._loop_name,
            )
            here = asyncio.get_running_loop()
            with self._broker.epoch.telling(self._notice_loss), detached_in_copies(here):
                await self._work(stop)
                return await self._drain(stop)
        finally:
            self._lag.stop()
            await self._runner.suspects.close()
            await self._children.close()
            await in_own_thread(self._watchdog.stop)
            self._runner.close()

    async def _work(self, stop: Stop) -> None:
        async with asyncio.TaskGroup() as loops:
            running = {
                loops.create_task(self._reader.run(stop), name="reader"),  # first: tasks wait
                loops.create_task(every(stop, "sweep", self._chores.sweep), name="sweep"),
                loops.create_task(every(stop, "mend", self._chores.mend), name="mend"),
                loops.create_task(every(stop, "help to promote", self._help_promote)),
            }
            if self._owns_process:
                running.add(loops.create_task(every(stop, "descriptors", Descriptors().look)))
            if self._client.settings.metrics_port:
                running.add(loops.create_task(every(stop, "round trip", self._measure)))
            if self._client.settings.task_log_bytes:
                running.add(loops.create_task(every(stop, "logs", self._runner.keep_logs)))
            if self._sql is not None:
                running.add(loops.create_task(every(stop, "SQL", self._sql.look)))
            await wind_up(stop, running)

    def on_ordered_to_drain(self, tell: Callable[[], None]) -> None:
        """Call `tell` before this worker drains because an operator ordered it through Redis."""
        self._on_ordered = tell

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last attempt ended; 0 while one is in progress."""
        return time.monotonic() - self._runner.busy_at if self._runner.is_idle else 0.0

    def report(self) -> Report:
        """Report whether this process takes tasks, and if not, why."""
        reasons, live = [], self._client.live_config
        # Measure until the loop's last response: while blocked, it cannot receive answers.
        if silence := self._redis.silence(self._lag.answered_at):
            reasons.append(silence)
        if self._is_stopping:  # SQL is not polled any more
            return Report(False, [DRAINS, *reasons], self._probe_details())
        if self._about.off:
            reasons.append(f"it takes nothing: {self._about.off}")
        elif not self._watchdog.is_registered:
            reasons.append("it is not registered with Redis")
        elif not self._reader.has_fetched:
            reasons.append("it has not joined its streams yet")
        if not live.version and live.problem:
            reasons.append(f"it cannot apply the configuration: {live.problem}")
        if self._sql is not None and self._sql.problem:
            reasons.append(self._sql.problem)
        if self._reader.is_unsure and not silence:
            reasons.append("the last fetch failed")
        return Report(not reasons, reasons, self._probe_details())

    def _child_pids(self) -> list[int]:
        return [*self._children.pids, *self._runner.suspects.pids]

    def _probe_details(self) -> dict[str, Any]:
        return {
            "worker": self.name,
            "id": self.id,
            "size": self._me.size,
            "slots": self._me.slots,
            "running": len(self._runner),
        }

    def stuck(self) -> Sequence[str]:
        """Return why leases are not renewed, if the watchdog is stuck."""
        return [why] if (why := self._watchdog.stuck()) else []

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of this worker."""
        live, size = self._client.live_config, str(self._me.size)
        yield "nonet_draining", (), float(self._is_stopping)
        yield "nonet_event_loop_lag_seconds", (), self._lag.recent()
        yield "nonet_config_version", (live.version,), 1
        yield "nonet_config_refused", (), float(bool(live.problem))
        yield "nonet_leases_lost_total", (), self._watchdog.losses
        yield "nonet_settles_stale_total", (), self._runner.settler.counts["stale"]
        yield "nonet_worker_slots", (size,), self._me.slots
        yield "nonet_worker_slots_busy", (size,), len(self._runner)
        yield "nonet_worker_code_left", (), self._runner.left
        yield "nonet_worker_accepting", (), float(not (self._is_stopping or self._about.off))
        yield "nonet_worker_children", (), len(self._child_pids())
        yield "nonet_worker_memory_bytes", (), self._about.resident
        yield from self._tally.samples()
        yield from failure_samples(self._client.middlewares)

    async def _measure(self) -> float:
        """Measure a round trip, and the difference between the corrected clock and the server's."""
        sent = time.monotonic()
        offset = await correction(self._broker.client, self._broker.prefix)
        self._tally.note_offset(offset.total_seconds())
        self._tally.round_trips.observe(time.monotonic() - sent)
        return _MEASURE_SECONDS

    @property
    def _is_stopping(self) -> bool:
        return self._stop.requested.is_set()

    def _count_blocked(self, culprit: Culprit) -> None:
        self._about.blocked(culprit)
        self._tally.blocked[self._tally.label(culprit.task)] += 1

    def _notice_loss(self) -> None:
        """Renew all leases at once after a new epoch was seen; from any thread."""
        logger.warning("Redis has lost its data, or came back with older data")
        self._watchdog.beat_soon()  # the renewal voids the attempts that Redis has lost
        self._lost_at = time.monotonic()  # until it is registered again, no change wakes it

    async def _start_children(self) -> None:
        """Start the fork server now, if most tasks of this worker will need it."""
        if self._me.runs_tasks_itself:
            return
        try:
            await self._children.start()
        except ForkServerError as error:
            problem = f"{self._me.size} tasks run in child processes: {error}"
            raise ConfigurationError(problem) from None

    async def _help_promote(self) -> float:
        """Promote due tasks, so that delays do not depend on a scheduler.

        Also look for orders and a new configuration, unless these would wake this worker.
        """
        pause = _HELP_PROMOTE_SECONDS
        may_have_missed = self._lost_at != self._looked_for
        if self._reader.is_relieved and not may_have_missed:
            return pause
        must_look = may_have_missed or not self._reader.is_idle
        with self._redis.asked():
            # Concurrently, so that both share a round trip.
            looking = (self._look(),) if must_look else ()
            promoted, *_ = await asyncio.gather(self._broker.promote(), *looking)
        return pause if promoted.next_in is None else min(pause, promoted.next_in)

    async def _look(self) -> None:
        """Obey orders, load a new configuration, and detect a loss of data."""
        lost_at = self._lost_at
        is_registered = self._watchdog.renewed_at > lost_at
        await self._obey_orders()
        await self._client.live_config.follow(self._broker.config_version)
        if is_registered:
            self._looked_for = lost_at
        if (described := self._described()) != self._described_last:
            self._described_last = described
            self._watchdog.beat_soon()

    async def _obey_orders(self) -> None:
        for order in await self._broker.orders(self.id):
            if order.id:
                self._runner.obey(order)
            elif not self._is_stopping:
                logger.info("draining: ordered by %s", order.why)
                self._on_ordered()
                self._stop.drain()
        self._redis.heard()

    async def _obey_while_draining(self) -> None:
        while True:
            await asyncio.sleep(_HELP_PROMOTE_SECONDS)
            # If Redis is unavailable, try again later; the end of the grace period stops this.
            with suppress(NonetError), self._redis.asked():
                await self._obey_orders()

    async def _drain(self, stop: Stop) -> ExitCode:
        """Let running tasks finish within the grace period; cancel and hand back the others."""
        logger.info("draining %d tasks", len(self._runner))
        self._about.off = DRAINS
        self._watchdog.beat_soon()
        self._runner.cut_waiting(_STOPPED)
        forced = asyncio.create_task(stop.forced.wait())
        obeying = asyncio.create_task(self._obey_while_draining())
        await self._runner.wait(self._client.settings.grace, forced)
        code = ExitCode.SECOND_SIGNAL if stop.forced.is_set() else ExitCode.OK
        forced.cancel()
        obeying.cancel()
        if len(self._runner):
            code = code or ExitCode.FAILED
            self._runner.cut_all(_STOPPED)
            await self._runner.wait(_CANCEL_SECONDS)
        if len(self._runner):
            logger.error("%d tasks did not end when cancelled", len(self._runner))
        # Stopped before signing off: a beat in flight would register this worker again.
        await in_own_thread(self._watchdog.stop)
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                # The stop may have interrupted a fetch that Redis has answered with tasks.
                await self._broker.disown(self.id, self._me.size, self._runner.deliveries)
                await self._broker.leave(self.id, self._me.size)
                if figures := self._leases.next_figures():
                    await self._broker.scripts.run("add_figures", *figures)
        except (TimeoutError, NonetError) as error:
            reason = str(error) or "no answer"
            logger.warning("not signed off, the registration will expire: %s", reason)
        return code

    def _sign_off(self) -> None:
        """Sign off right before the process ends, in a thread because the event loop is blocked."""

        def leave() -> None:
            self._watchdog.stop()  # first: a beat in flight would register this worker again
            self._broker.leave_from_thread(self.id, self._me.size, _LEAVE_SECONDS)

        # In a daemon thread: a hanging address look-up must not delay the end of the process.
        thread = threading.Thread(target=leave, name="nonet-leave", daemon=True)
        thread.start()
        thread.join(_SIGN_OFF_SECONDS)

    def _described(self) -> dict[str, Any]:
        """Return what this worker registers about itself for operators."""
        live, now = self._client.live_config, time.monotonic()
        hold, block = self._lag.hold, self._lag.block
        if hold is not None and now - hold.ended > _HELD_FOR_SECONDS:
            hold = None
        if block is not None and now - block.ended > _BLOCKED_FOR_SECONDS:
            block = None
        return {
            "name": self.name,
            "size": self._me.size,
            "concurrency": self._me.slots,
            "version": __version__,
            "loop": self._loop_name,
            "config": live.version,
            "config_problem": live.problem,
            "sql": self._runner.burials.problem,
            "held": [hold.task, round(hold.seconds, 1)] if hold is not None else None,
            "blocked": [block.task, round(block.seconds, 1)] if block is not None else None,
            "fetches_at_most": self._reader.batch.most if self._reader.batch.is_narrow else None,
            **({"threads": self._runner.threads.places} if self._runner.has_plain else {}),
            **({"keys": keys} if (keys := list(self._client.cipher.keys)) else {}),
        }

    def _make_leases(self) -> Leases:
        settings = self._client.settings
        return Leases(
            self._broker.url,
            settings.namespace,
            self.id,
            worker_ttl=settings.worker_ttl,
            lock_ttl=settings.lock_ttl,
            timeout_seconds=min(5.0, settings.renew_interval),
            epoch=self._broker.epoch,
        )

    def _make_watchdog(self) -> Watchdog:
        settings = self._client.settings
        return Watchdog(
            self._leases,
            settings.renew_interval,
            registered_for=settings.worker_ttl,
            on_unregistered=lambda reason: self._runner.cut_all_soon(reason),
            why_late=lambda: self._lag.why_late(),
        )

    def _make_lag(self) -> LoopLag:
        return LoopLag(
            self._runner.seen_in_loop,
            self._count_blocked,
            while_blocked=self._runner.end_if_stuck if self._owns_process else None,
            in_threads=self._runner.in_threads,
        )

    def _make_about(self) -> About:
        versions = self._client.registry.versions()
        return About(
            {name: known for name, known in versions.items() if name not in self._me.left},
            self._described,
            self._lag.longest,
            self._child_pids,
            keys=self._client.cipher.digest,
            tenants=self._tally.tenants.running,
        )
