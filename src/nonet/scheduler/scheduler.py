"""The scheduler daemon: one leader among any number, and what it does while it leads.

Loops: the leader's lease, delayed promotion, periodic entries, the configuration with its limits,
and chores. Every write carries the leader's term, and is refused by the script once somebody else
leads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from nonet.base.clock import Reading, steady
from nonet.base.errors import NonetError
from nonet.base.loop import name_of
from nonet.client.client import Client
from nonet.config.settings import Settings
from nonet.daemon.contact import Contact, Reached
from nonet.daemon.health import Answer, Page, Report, never_stuck
from nonet.daemon.service import ExitCode, Stop, every, reached, retrieve, who, wind_up
from nonet.rules.outcomes import summarize
from nonet.scheduler.census import Census
from nonet.scheduler.configuration.configuration_loop import ConfigurationLoop
from nonet.scheduler.pauses import PauseMemory
from nonet.scheduler.periodic.memory import Memory
from nonet.scheduler.periodic.periodic_loop import PeriodicLoop
from nonet.scheduler.startup import StartUp
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.namespace.leadership import DeposedError, Leadership
from nonet.telemetry.metrics import ROUND_TRIPS, Histogram, Peak, Sample

logger = logging.getLogger(__name__)

_LEAD_SECONDS = 1.0
_STANDBY_SECONDS = 0.2
_LONGEST_PAUSE = 1.0
_RESIGN_SECONDS = 1.0
_BATCH = 250  # takes 1 to 2 ms, as no more than 80 parked ones are looked at
# Longer than it takes a leader to look; who led before, and lost touch, goes before the others.
_YIELD_SECONDS = {True: 1.5, False: 2.5}
_BEAT_SECONDS = 0.25
_STANDSTILL_SECONDS = 1.0


Chore = Callable[[str], Awaitable[float]]
"""One pass of a loop of the leader, which gets its term; returns the seconds until the next."""


@dataclass
class SchedulerParts:
    """What a scheduler consists of.

    Attributes:
        memory, pauses: of what Redis may forget; cleared while somebody else leads.
        chores: further loops by name; each runs while this process leads.
        census: what metrics tell of the namespace; None: nobody asks.
        sql: whether the database answers; None: there is none, or nobody asks.
    """

    settings: Settings
    client: Client
    leadership: Leadership
    configuration: ConfigurationLoop
    startup: StartUp
    periodic: PeriodicLoop
    memory: Memory
    pauses: PauseMemory
    chores: Mapping[str, Chore]
    census: Census | None = None
    sql: Reached | None = None


@dataclass
class _Pulse:
    """When a loop last came to an end, and how often it failed."""

    last: datetime | None = None
    failures: int = 0
    error: str = field(default="", repr=False)

    def shown(self) -> dict[str, Any]:
        last = f"{self.last:%Y-%m-%dT%H:%M:%S.%fZ}" if self.last else None
        return {"last": last, "failures": self.failures, "error": self.error}


class Scheduler:
    """One scheduler process; leads when it holds the lease, else stands by."""

    def __init__(self, parts: SchedulerParts) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._broker = parts.client.broker
        self._leadership = parts.leadership
        self.name: str = f"{os.getpid()}@{socket.getfqdn()}"
        self._owner = f"{self.name}/{secrets.token_hex(4)}"
        self._term: str | None = None
        self._leads_until = 0.0
        self._has_led = False
        self._beat_at, self._longest_gap = time.monotonic(), 0.0
        self._lag, self._round_trips = Peak(), Histogram(ROUND_TRIPS)
        self._leads_since: datetime | None = None
        self._redis = Contact()
        self._pulses: dict[str, _Pulse] = {}
        self._wakes: dict[str, asyncio.Task[None]] = {}
        self._stop = Stop()

    async def run(self, stop: Stop) -> ExitCode:
        """Schedule until a stop is requested, then hand the lease over.

        Returns:
            OK, or SECOND_SIGNAL if a second request did not let the last steps end.

        Raises:
            ConfigurationError: the configuration is bad at the start and no good one is
                published, or Redis is not fit. That it is away is waited out.
        """
        self._stop = stop
        settings = self._settings
        inspection = Inspection(self._broker, settings.namespace)
        check = partial(inspection.check, allow_eviction=settings.allow_eviction)
        if not await reached(stop, check):
            return ExitCode.OK
        await self._parts.configuration.start()
        logger.info(
            "scheduler %s ready: %d periodic entries, event loop of %s",
            self.name,
            self._parts.periodic.number,
            name_of(asyncio.get_running_loop()),
        )
        self._beat_at = time.monotonic()
        ticks = {
            "heartbeat": self._beat,
            "leader lease": self._lead,
            "delayed promotion": self._while_leading(self._promote),
            "configuration": self._while_leading(self._parts.configuration.tick),
            "start-up hooks": self._while_leading(self._parts.startup.tick),
            "periodic entries": self._while_leading(self._fire_due),
            "last occurrences in SQL": self._while_leading(self._parts.memory.save),
            "pauses": self._while_leading(self._parts.pauses.tick),
            **{name: self._while_leading(chore) for name, chore in self._parts.chores.items()},
        }
        if (census := self._parts.census) is not None:
            ticks |= {"metrics": census.look, "dead letters": census.count_letters}
        if self._parts.sql is not None:
            ticks["SQL"] = self._parts.sql.look
        try:
            async with asyncio.TaskGroup() as loops:
                running = {
                    loops.create_task(every(stop, name, self._felt(name, tick)), name=name)
                    for name, tick in ticks.items()
                }
                await wind_up(stop, running)
        finally:
            for wake in self._wakes.values():
                wake.cancel()
            if self._term is not None:
                await self._resign(self._term)
        return ExitCode.SECOND_SIGNAL if stop.forced.is_set() else ExitCode.OK

    @property
    def term(self) -> str | None:
        """The term while this process leads by its own clock and is not to stop, else None."""
        if self._stop.requested.is_set() or time.monotonic() >= self._leads_until:
            return None
        return self._term

    def nobody_led_until(self, instant: datetime) -> None:
        """See `PeriodicLoop.nobody_led_until`."""
        self._parts.periodic.nobody_led_until(instant)

    def fire_all_missed(self) -> None:
        """See `PeriodicLoop.fires_all`."""
        self._parts.periodic.fires_all = True

    @property
    def is_firing(self) -> bool:
        """Whether this process leads, has published and planned all, and fires what is due."""
        parts, term = self._parts, self.term
        is_set_up = parts.configuration.is_published and parts.periodic.is_planned
        return term is not None and is_set_up and not self._waits_for(term)

    def report(self) -> Report:
        """Whether this process can do its work: stand by, or lead with all hooks done."""
        reasons = []
        # As of the last time that the loop went round: a blocked one hears nobody.
        if silence := self._redis.silence(self._beat_at):
            reasons.append(silence)
        elif self.term is not None and (waits_for := self._waits_for(self.term)):
            reasons.append(waits_for)
        if self._parts.sql is not None and self._parts.sql.problem:
            reasons.append(self._parts.sql.problem)
        return Report(not reasons, reasons, self._told())

    def stuck(self) -> Sequence[str]:
        """Nothing: all that it does goes on in its event loop."""
        return never_stuck()

    def pages(self) -> Mapping[str, Page]:
        """What autoscalers ask for."""
        return {"/desired": lambda _: self._desired()}

    def _desired(self) -> Answer:
        wanted = self._parts.census.desired() if self._parts.census is not None else None
        if wanted is None:
            problem = {"error": "nobody knows: no scheduler leads, or Redis does not answer"}
            return Answer.json(problem, is_fine=False)
        return Answer.json(wanted)

    def samples(self) -> Iterator[Sample]:
        """What metrics tell of this scheduler and of its namespace."""
        configuration, periodic = self._parts.configuration, self._parts.periodic
        version = configuration.current.version if configuration.current else ""
        yield "nonet_draining", (), float(self._stop.requested.is_set())
        yield "nonet_event_loop_lag_seconds", (), self._lag.largest()
        yield "nonet_redis_round_trip_seconds", (), self._round_trips
        yield "nonet_config_version", (version,), 1
        yield "nonet_config_refused", (), float(bool(configuration.problem))
        yield "nonet_scheduler_is_leader", (), float(self.term is not None)
        yield "nonet_periodic_entries", (), periodic.number
        yield "nonet_periodic_broken_entries", (), len(periodic.problems)
        for name, pulse in list(self._pulses.items()):
            yield "nonet_scheduler_loop_failures_total", (name,), pulse.failures
        if self._parts.census is not None:
            yield from self._parts.census.samples()

    def _waits_for(self, term: str) -> str:
        """Why nothing periodic is fired yet; empty: it is."""
        if not self._parts.configuration.is_known_in(term):
            return "the configuration is not read yet"
        return self._parts.pauses.reason or self._parts.startup.not_ready()

    def _told(self) -> dict[str, Any]:
        """What this process says of itself, to probes and to those who ask who leads."""
        configuration, periodic = self._parts.configuration, self._parts.periodic
        return {
            "name": self.name,
            "role": "leader" if self.term is not None else "standby",
            "term": self.term,
            "since": f"{self._leads_since:%Y-%m-%dT%H:%M:%SZ}" if self._leads_since else None,
            "entries": periodic.number,
            "remembers": self._parts.memory.place,
            "broken": periodic.problems,
            "waits_for": self._waits_for(self.term) if self.term is not None else "",
            "config": {
                "version": configuration.current.version if configuration.current else "",
                "problem": configuration.problem,
            },
            "loops": {name: pulse.shown() for name, pulse in self._pulses.items()},
        }

    def _felt(self, name: str, tick: Callable[[], Awaitable[float]]) -> Callable[..., Any]:
        """A tick whose end, or failure, is noted."""
        pulse = self._pulses[name] = _Pulse()

        async def felt() -> float:
            try:
                pause = await tick()
            except BaseException as error:  # counted here, told and survived by `every`
                why = summarize(error)
                pulse.failures += 1
                pulse.error = why.brief
                raise
            pulse.last, pulse.error = datetime.now(UTC), ""
            return pause

        return felt

    def _while_leading(self, chore: Chore) -> Callable[[], Awaitable[float]]:
        async def tick() -> float:
            term = self.term
            if term is None:
                return _STANDBY_SECONDS
            try:
                return await chore(term)
            except DeposedError:
                # Somebody else leads, or Redis has lost the lease with all else: the next look at
                # it tells. Until then nothing is forgotten: it may be all that is left.
                logger.warning("the lease is lost")
                self._term = self._leads_since = None
                return _STANDBY_SECONDS

        return tick

    def _stand_by(self) -> None:
        self._term = self._leads_since = None
        self._parts.memory.stand_by()
        self._parts.pauses.stand_by()

    async def _lead(self) -> float:
        ttl = self._settings.leader_ttl
        # Often, so that an emptied Redis has a leader again soon, and older data are known as such.
        pause = min(_LEAD_SECONDS, ttl / 3)
        if self._stood_still() and time.monotonic() >= self._leads_until:
            self._has_led = False  # somebody else may have led since, and we would not know
            self._stand_by()
        asked, sent, epoch = time.monotonic(), steady(), self._leadership.epoch.since
        told, leads = json.dumps(self._told()), self._has_led and asked < self._leads_until
        with self._redis.asked():
            term = await self._leadership.lead(self._owner, ttl, told, has_led=leads)
        self._round_trips.observe(self._redis.heard() - asked)
        self._has_led = self._has_led if term is None and self._is_new(epoch) else term is not None
        if term != self._term:
            logger.info("leading in term %s" if term else "standing by%s", term or "")
            self._leads_since = datetime.now(UTC)
        if term is None and not self._is_new(epoch):
            self._stand_by()
        self._term = term
        self._leads_until = asked + ttl
        await self._watch_clock(sent)
        if term is None and self._is_new(epoch):
            return _YIELD_SECONDS[self._has_led]  # to whoever led until Redis lost its data
        if term is None:
            await self._woken("scheduler", pause)  # by a leader that stops
            return 0.0
        return pause

    def _stood_still(self) -> bool:
        """Whether this process was stopped for a while since it looked last (and resets that)."""
        gap, self._longest_gap = max(self._longest_gap, time.monotonic() - self._beat_at), 0.0
        return gap > _STANDSTILL_SECONDS

    async def _beat(self) -> float:
        """Notice a standstill, whatever the other loops wait for."""
        now = time.monotonic()
        gap = now - self._beat_at
        self._longest_gap = max(self._longest_gap, gap)
        self._lag.note(max(0.0, gap - _BEAT_SECONDS), now)
        self._beat_at = now
        return _BEAT_SECONDS

    def _is_new(self, epoch: int) -> bool:
        """Whether Redis has lost its data since it was of an epoch that we knew."""
        return 0 < epoch < self._leadership.epoch.since

    async def _watch_clock(self, sent: float) -> None:
        """Let time go on evenly if somebody set the clock of Redis; who stands by only watches."""
        clock = self._leadership.clock
        if clock is None:
            return
        reading = Reading(sent, steady(), clock.now)
        step = self._broker.clock.look(reading)
        if not step or self._term is None:
            return
        before = self._broker.clock.before
        if await self._leadership.set_clock(self._term, clock.offset, step, before, who()):
            self._broker.clock.correct(reading, step)
            logger.warning(
                "the clock of Redis was set by %+.1f s; leases and delays go on as before",
                step.total_seconds(),
            )

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
        """Entries are planned once the configuration of this term is known.

        They are fired once the start-up hooks have put right what they build on.
        """
        if not self._parts.configuration.is_known_in(term):
            return _STANDBY_SECONDS
        may_fire = not self._waits_for(term)
        pause = await self._parts.periodic.tick(term, lambda: self.term == term, may_fire=may_fire)
        return pause if may_fire else _STANDBY_SECONDS

    async def _woken(self, name: str, seconds: float) -> None:
        """Wait until a script wakes `name`: a blocking pop, whose own time-out is too coarse."""
        wake = self._wakes.get(name)
        if wake is None or wake.done():
            wake = asyncio.create_task(self._broker.wait_for_wake(name), name=f"{name} wake")
            wake.add_done_callback(retrieve)  # it may fail when nobody waits any more
            self._wakes[name] = wake
        # A leader that is to stop keeps its lease until its ticks have ended.
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
            reason = str(error) or "no answer"
            logger.warning("not resigned, the lease ends by itself: %s", reason)
