"""The scheduler daemon: one process leads, and runs the duties of the leader; the others stand by.

Each duty is a loop. All its writes carry the term of the leader; once another scheduler leads, the
scripts refuse them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from nonet.base.actor import process_name, who
from nonet.base.clock import Reading, steady
from nonet.base.errors import NonetError
from nonet.base.loop import name_of
from nonet.client.client import Client
from nonet.config.settings import Settings
from nonet.daemon.answer import Answer, Page
from nonet.daemon.contact import Contact, Reached
from nonet.daemon.health import Observed, Report
from nonet.daemon.service import ExitCode, Stop, every, reached, retrieve, wind_up
from nonet.scheduler.census import Census
from nonet.scheduler.configuration.configuration_loop import ConfigurationLoop
from nonet.scheduler.pauses import PauseMemory
from nonet.scheduler.periodic.memory import Memory
from nonet.scheduler.periodic.periodic_loop import PeriodicLoop
from nonet.scheduler.periodic.stored import StoredEntries
from nonet.scheduler.startup import StartUp
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.namespace.leadership import DeposedError, Leadership
from nonet.telemetry.failure_log import FailureLog
from nonet.telemetry.metrics import ROUND_TRIPS, Histogram, Peak, Sample
from nonet.telemetry.running_middleware import failure_samples

logger = logging.getLogger(__name__)

_LEAD_SECONDS = 1.0
_STANDBY_SECONDS = 0.2
_LONGEST_PAUSE = 1.0
_RESIGN_SECONDS = 1.0
_BATCH = 250  # takes 1 to 2 ms: a promotion checks at most 80 parked tasks
# How long a scheduler waits before it requests the lease after Redis lost its data, by whether it
# led before. The former leader waits less, so that it leads again. Both times exceed the pause
# between two renewals.
_YIELD_SECONDS = {True: 1.5, False: 2.5}
_BEAT_SECONDS = 0.25
_STANDSTILL_SECONDS = 1.0


Chore = Callable[[str], Awaitable[float]]
"""One pass of a duty of the leader: receives the term, returns the seconds until the next pass."""


@dataclass
class SchedulerParts:
    """The parts of a scheduler.

    Attributes:
        memory, pauses: state that must survive a loss of Redis; cleared while another scheduler
            leads.
        chores: further duties of the leader, by the name of their loop.
        census: figures for metrics; None if nothing scrapes them.
        sql: the probe of the database; None without a database or without probes.
    """

    settings: Settings
    client: Client
    leadership: Leadership
    configuration: ConfigurationLoop
    startup: StartUp
    periodic: PeriodicLoop
    stored: StoredEntries
    memory: Memory
    pauses: PauseMemory
    chores: Mapping[str, Chore]
    census: Census | None = None
    sql: Reached | None = None


class Scheduler(Observed):
    """One scheduler process. It leads while it holds the lease, and stands by otherwise.

    Attributes:
        periodic: the periodic entries; tests notify it after they moved the clock.
    """

    def __init__(self, parts: SchedulerParts) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._broker = parts.client.stores.broker
        self._leadership = parts.leadership
        self.periodic: PeriodicLoop = parts.periodic
        self.name: str = process_name()
        self._owner = f"{self.name}/{secrets.token_hex(4)}"
        self._term: str | None = None
        self._leads_until = 0.0
        self._has_led = False
        self._beat_at, self._longest_gap = time.monotonic(), 0.0
        self._lag, self._round_trips = Peak(), Histogram(ROUND_TRIPS)
        self._leads_since: datetime | None = None
        self._redis = Contact()
        self._failures: dict[str, FailureLog] = {}
        self._wakes: dict[str, asyncio.Task[None]] = {}
        self._stop = Stop()

    async def run(self, stop: Stop) -> ExitCode:
        """Schedule until a stop is requested, then release the lease.

        Returns:
            OK, or SECOND_SIGNAL if a second stop request cut off the last passes.

        Raises:
            ConfigurationError: the configuration is bad at the start and no good one is published,
                or the settings of Redis are unsuitable. An unreachable Redis is no error: the
                scheduler waits for it.
        """
        self._stop = stop
        settings = self._settings
        inspection = Inspection(self._broker, settings.namespace)
        check = partial(inspection.check, allow_eviction=settings.allow_eviction)
        if not await reached(stop, check):
            return ExitCode.OK
        if not await reached(stop, self._parts.configuration.start):
            return ExitCode.OK
        logger.info(
            "scheduler ready: name=%s periodic_entries=%d event_loop=%s",
            self.name,
            self.periodic.number,
            name_of(asyncio.get_running_loop()),
        )
        self._beat_at = time.monotonic()
        ticks = self._ticks()
        self._failures = {name: FailureLog(name, logger) for name in ticks}
        try:
            async with asyncio.TaskGroup() as loops:
                running = {
                    loops.create_task(every(stop, name, tick, self._failures[name]), name=name)
                    for name, tick in ticks.items()
                }
                await wind_up(stop, running)
        finally:
            for wake in self._wakes.values():
                wake.cancel()
            if self._term is not None:
                await self._resign(self._term)
        return ExitCode.SECOND_SIGNAL if stop.forced.is_set() else ExitCode.OK

    def _ticks(self) -> Mapping[str, Callable[[], Awaitable[float]]]:
        """Return what this process does periodically, by name: some of it only while it leads."""
        duties: dict[str, Chore] = {
            "delayed promotion": self._promote,
            "configuration": self._parts.configuration.tick,
            "start-up hooks": self._parts.startup.tick,
            "schedules in SQL": self._parts.stored.tick,
            "periodic entries": self._fire_due,
            "last occurrences in SQL": self._parts.memory.save,
            "pauses": self._parts.pauses.tick,
            "lost workers": self._forget_lost_workers,
            **self._parts.chores,
        }
        ticks: dict[str, Callable[[], Awaitable[float]]]
        ticks = {"heartbeat": self._beat, "leader lease": self._lead}
        ticks |= {name: self._while_leading(duty) for name, duty in duties.items()}
        if (census := self._parts.census) is not None:
            ticks |= {"metrics": census.look, "dead letters": census.count_letters}
        if self._parts.sql is not None:
            ticks["SQL"] = self._parts.sql.look
        return ticks

    @property
    def term(self) -> str | None:
        """The term while this process leads by its own clock and is not stopping, else None."""
        if self._stop.requested.is_set() or time.monotonic() >= self._leads_until:
            return None
        return self._term

    @property
    def is_firing(self) -> bool:
        """Whether this process leads, has planned all entries, and submits the due ones."""
        parts, term = self._parts, self.term
        is_set_up = parts.configuration.is_published and self.periodic.is_planned
        return term is not None and is_set_up and not self._waits_for(term)

    def report(self) -> Report:
        """Report ready when standing by, or when leading with all start-up hooks done."""
        reasons = []
        # Measured at the last heartbeat: a blocked loop cannot receive answers either.
        if silence := self._redis.silence(self._beat_at):
            reasons.append(silence)
        elif self.term is not None and (waits_for := self._waits_for(self.term)):
            reasons.append(waits_for)
        if self._parts.sql is not None and self._parts.sql.problem:
            reasons.append(self._parts.sql.problem)
        return Report(not reasons, reasons, self._status())

    def pages(self) -> Mapping[str, Page]:
        """The numbers that autoscalers read."""
        return {"/desired": lambda _: self._desired()}

    def _desired(self) -> Answer:
        wanted = self._parts.census.desired() if self._parts.census is not None else None
        if wanted is None:
            problem = {
                "error": "the demand is unknown: no scheduler leads, or Redis does not answer"
            }
            return Answer.json(problem, is_fine=False)
        return Answer.json(wanted)

    def samples(self) -> Iterator[Sample]:
        """The metrics of this scheduler and of its namespace."""
        configuration, periodic = self._parts.configuration, self.periodic
        version = configuration.current.version if configuration.current else ""
        yield "nonet_draining", (), float(self._stop.requested.is_set())
        yield "nonet_event_loop_lag_seconds", (), self._lag.largest()
        yield "nonet_redis_round_trip_seconds", (), self._round_trips
        yield "nonet_config_version", (version,), 1
        yield "nonet_config_refused", (), float(bool(configuration.problem))
        yield "nonet_scheduler_is_leader", (), float(self.term is not None)
        yield "nonet_periodic_entries", (), periodic.number
        yield "nonet_periodic_broken_entries", (), len(periodic.problems)
        for name, loop in self._failures.items():
            yield "nonet_scheduler_loop_failures_total", (name,), loop.failures
        yield from failure_samples(self._parts.client.middlewares)
        if self._parts.census is not None:
            yield from self._parts.census.samples()

    def _waits_for(self, term: str) -> str:
        """Return why no periodic task is submitted yet; empty if they are submitted."""
        if not self._parts.configuration.is_known_in(term):
            return "the configuration has not been read yet"
        return self._parts.pauses.reason or self._parts.startup.not_ready()

    def _status(self) -> dict[str, Any]:
        """Return the state of this process, for probes and for ``task-run schedules leader``."""
        configuration, periodic = self._parts.configuration, self.periodic
        return {
            "name": self.name,
            "role": "leader" if self.term is not None else "standby",
            "term": self.term,
            "ttl": self._settings.leader_ttl,
            "since": f"{self._leads_since:%Y-%m-%dT%H:%M:%SZ}" if self._leads_since else None,
            "entries": periodic.number,
            "remembers": self._parts.memory.place,
            "broken": periodic.problems,
            "waits_for": self._waits_for(self.term) if self.term is not None else "",
            "config": {
                "version": configuration.current.version if configuration.current else "",
                "problem": configuration.problem,
            },
            "loops": {name: _shown(loop) for name, loop in self._failures.items()},
        }

    def _while_leading(self, chore: Chore) -> Callable[[], Awaitable[float]]:
        async def tick() -> float:
            term = self.term
            if term is None:
                return _STANDBY_SECONDS
            try:
                return await chore(term)
            except DeposedError:
                # Either another scheduler leads, or Redis has lost its data and the lease. The next
                # request for the lease shows which. Keep the memory until then: it may be the only
                # copy.
                logger.warning("leader lease lost: term=%s", term)
                self._term = self._leads_since = None
                return _STANDBY_SECONDS

        return tick

    def _stand_by(self) -> None:
        self._term = self._leads_since = None
        self._parts.memory.stand_by()
        self._parts.pauses.stand_by()

    async def _lead(self) -> float:
        ttl = self._settings.leader_ttl
        # Ask often, so that an emptied Redis soon has a leader again and the return of older data
        # is soon detected.
        pause = min(_LEAD_SECONDS, ttl / 3)
        if self._stood_still() and time.monotonic() >= self._leads_until:
            self._has_led = False  # another scheduler may have led without our noticing
            self._stand_by()
        asked, sent, epoch = time.monotonic(), steady(), self._leadership.epoch.since
        status, leads = json.dumps(self._status()), self._has_led and asked < self._leads_until
        with self._redis.asked():
            term = await self._leadership.lead(self._owner, ttl, status, has_led=leads)
        self._round_trips.observe(self._redis.heard() - asked)
        self._has_led = self._has_led if term is None and self._is_new(epoch) else term is not None
        if term != self._term:
            logger.info("leading: term=%s" if term else "standing by%s", term or "")
            self._leads_since = datetime.now(UTC)
        if term is None and not self._is_new(epoch):
            self._stand_by()
        self._term = term
        self._leads_until = asked + ttl
        await self._watch_clock(sent)
        if term is None and self._is_new(epoch):
            return _YIELD_SECONDS[self._has_led]  # the leader before the loss goes first
        if term is None:
            await self._woken("scheduler", pause)  # a leader that stops wakes the others
            return 0.0
        return pause

    def _stood_still(self) -> bool:
        """Whether this process was frozen since the last call."""
        gap, self._longest_gap = max(self._longest_gap, time.monotonic() - self._beat_at), 0.0
        return gap > _STANDSTILL_SECONDS

    async def _beat(self) -> float:
        """Detect a freeze of this process, even if all other loops wait."""
        now = time.monotonic()
        gap = now - self._beat_at
        self._longest_gap = max(self._longest_gap, gap)
        self._lag.note(max(0.0, gap - _BEAT_SECONDS), now)
        self._beat_at = now
        return _BEAT_SECONDS

    def _is_new(self, epoch: int) -> bool:
        """Whether Redis has lost its data since the last known epoch."""
        return 0 < epoch < self._leadership.epoch.since

    async def _watch_clock(self, sent: float) -> None:
        """Keep logical time even when the clock of Redis is set; only the leader corrects it."""
        clock = self._leadership.clock
        if clock is None:
            return
        reading = Reading(sent, steady(), clock.now)
        step = self._broker.epoch.clock.look(reading)
        if not step or self._term is None:
            return
        before = self._broker.epoch.clock.before
        if await self._leadership.set_clock(self._term, clock.offset, step, before, who()):
            self._broker.epoch.clock.correct(reading, step)
            logger.warning(
                "clock of Redis was set, leases and delays are unaffected: step=%+.1fs",
                step.total_seconds(),
            )

    async def _forget_lost_workers(self, term: str) -> float:
        """Delete the registrations of idle workers that died, in case no other worker does it."""
        forgotten = await self._broker.forget_workers(term)
        if forgotten is None:
            raise DeposedError
        if forgotten:
            logger.info("forgot lost workers: number=%d", forgotten)
        return self._settings.lease / 4

    async def _promote(self, term: str) -> float:
        promoted = await self._broker.promote(term, _BATCH)
        if not promoted.allowed:
            raise DeposedError
        if promoted.next_in == 0:
            return 0.0
        pause = min(_LONGEST_PAUSE, promoted.next_in or _LONGEST_PAUSE)
        await self._woken("promoter", pause)
        return 0.0

    async def _fire_due(self, term: str) -> float:
        """Plan the entries once those of this term are known, and submit due ones.

        Nothing is submitted before the pauses are restored and the start-up hooks have run.
        """
        parts = self._parts
        if not (parts.configuration.is_known_in(term) and parts.stored.is_tried_in(term)):
            return _STANDBY_SECONDS
        may_fire = not self._waits_for(term)
        pause = await self.periodic.tick(term, lambda: self.term == term, may_fire=may_fire)
        return pause if may_fire else _STANDBY_SECONDS

    async def _woken(self, name: str, seconds: float) -> None:
        """Wait until a script wakes `name`, at most `seconds`.

        The time-out of a blocking pop would be too coarse.
        """
        wake = self._wakes.get(name)
        if wake is None or wake.done():
            wake = asyncio.create_task(self._broker.wait_for_wake(name), name=f"{name} wake")
            wake.add_done_callback(retrieve)  # it may fail after the wait has ended
            self._wakes[name] = wake
        # A stop request ends the wait; the lease is kept until the other loops have ended.
        stop = asyncio.create_task(self._stop.requested.wait(), name="stop")
        try:
            await asyncio.wait({wake, stop}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if wake.done():
            wake.result()

    async def _resign(self, term: str) -> None:
        try:
            async with asyncio.timeout(_RESIGN_SECONDS):
                await self._leadership.resign(self._owner, term)
        except (TimeoutError, NonetError) as error:
            reason = str(error) or f"no answer within {_RESIGN_SECONDS:g} s"
            logger.warning("lease not released, it expires by itself: error=%s", reason)


def _shown(loop: FailureLog) -> dict[str, Any]:
    last = f"{loop.last_success:%Y-%m-%dT%H:%M:%S.%fZ}" if loop.last_success else None
    return {"last": last, "failures": loop.failures, "error": loop.error}
