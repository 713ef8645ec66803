"""The scheduler daemon: one leader among any number, and what it does while it leads.

Four loops: the leader's lease, delayed promotion, periodic entries, the configuration with its
limits. Every write carries the leader's term and is refused by the script once somebody else leads.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nonet.client import Client
from nonet.clock import Reading, steady
from nonet.config import Config, load_config
from nonet.errors import ConfigurationError, NonetError, ServerUnreachableError
from nonet.limits import Limit, LimitAddress
from nonet.outcomes import summarize
from nonet.registry import vos_from_entry_points
from nonet.scheduler.limits import configured_limits
from nonet.scheduler.plan import Entry, due, entries
from nonet.schedules import takes_after
from nonet.service import ExitCode, Stop, every, is_end, who, wind_up
from nonet.settings import Settings
from nonet.stores.inspection import Inspection
from nonet.stores.leadership import Leadership
from nonet.stores.limits import Limits, limits_version
from nonet.task import BaseTask, PeriodicBaseTask, PeriodicVoAwareBaseTask

logger = logging.getLogger(__name__)

_LEAD_SECONDS = 1.0
_STANDBY_SECONDS = 0.2
_LONGEST_PAUSE = 1.0
_CONFIG_SECONDS = 1.0
# A file that changes again within this time is still being written.
_SETTLE_SECONDS = 0.2
_RESIGN_SECONDS = 1.0
_BATCH = 500


Chore = Callable[[str], Awaitable[float]]
"""One pass of a loop of the leader, which gets its term; returns the seconds until the next."""


class Scheduler:
    """One scheduler process; leads when it holds the lease, else stands by.

    Args:
        chores: further loops by name; each runs while this process leads.
    """

    def __init__(
        self,
        settings: Settings,
        client: Client,
        leadership: Leadership,
        limits: Limits,
        chores: Mapping[str, Chore],
    ) -> None:
        self._settings = settings
        self._client = client
        self._broker = client.broker
        self._leadership = leadership
        self._limits = limits
        self._chores = chores
        self.name = f"{os.getpid()}@{socket.getfqdn()}"
        self._owner = f"{self.name}/{secrets.token_hex(4)}"
        self._term: str | None = None
        self._leads_until = 0.0
        self._entries: list[Entry] = []
        self._configured_limits: dict[LimitAddress, Limit] = {}
        self._planned_for: str | None = None
        self._fingerprint: str | None = None
        self._config_problem = ""
        self._wake: asyncio.Task[None] | None = None
        self._stop = Stop()

    async def run(self, stop: Stop) -> ExitCode:
        """Schedule until a stop is requested, then hand the lease over.

        Returns:
            OK, or SECOND_SIGNAL if a second request did not let the last steps end.

        Raises:
            ConfigurationError: the configuration is bad at the start, or Redis is not fit.
            ServerUnreachableError: Redis does not answer at the start.
        """
        self._stop = stop
        settings = self._settings
        inspection = Inspection(self._broker, settings.namespace)
        await inspection.check(allow_eviction=settings.allow_eviction)
        self._adopt(self._read_config())
        logger.info("scheduler %s ready: %d periodic entries", self.name, len(self._entries))
        try:
            async with asyncio.TaskGroup() as loops:
                running = {
                    loops.create_task(every(stop, name, tick), name=name)
                    for name, tick in (
                        ("leader lease", self._lead),
                        ("delayed promotion", self._promote),
                        ("periodic entries", self._fire_due),
                        ("configuration", self._watch_config),
                        *((name, self._while_leading(do)) for name, do in self._chores.items()),
                    )
                }
                await wind_up(stop, running)
        finally:
            if self._wake is not None:
                self._wake.cancel()
            if self._term is not None:
                await self._resign(self._term)
        return ExitCode.SECOND_SIGNAL if stop.forced.is_set() else ExitCode.OK

    @property
    def term(self) -> str | None:
        """The term while this process leads by its own clock and is not to stop, else None."""
        if self._stop.requested.is_set() or time.monotonic() >= self._leads_until:
            return None
        return self._term

    def _while_leading(self, chore: Chore) -> Callable[[], Awaitable[float]]:
        async def tick() -> float:
            term = self.term
            return _STANDBY_SECONDS if term is None else await chore(term)

        return tick

    async def _resign(self, term: str) -> None:
        try:
            async with asyncio.timeout(_RESIGN_SECONDS):
                await self._leadership.resign(self._owner, term)
        except (TimeoutError, NonetError) as error:
            reason = str(error) or "no answer"
            logger.warning("not resigned, the lease ends by itself: %s", reason)

    async def _lead(self) -> float:
        ttl = self._settings.leader_ttl
        asked, sent = time.monotonic(), steady()
        info = json.dumps({"name": self.name, "entries": len(self._entries)})
        term = await self._leadership.lead(self._owner, ttl, info)
        if term != self._term:
            logger.info("leading in term %s" if term else "standing by%s", term or "")
        self._term = term
        self._leads_until = asked + ttl
        await self._watch_clock(sent)
        # Often, so that an emptied Redis has a leader again soon, and older data are known as such.
        return min(_LEAD_SECONDS, ttl / 3)

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

    async def _promote(self) -> float:
        term = self.term
        if term is None:
            return _STANDBY_SECONDS
        promoted = await self._broker.promote(term, _BATCH)
        if not promoted.allowed:
            self._depose()
            return _STANDBY_SECONDS
        if promoted.next_in == 0:
            return 0.0
        pause = min(_LONGEST_PAUSE, promoted.next_in or _LONGEST_PAUSE)
        # A blocking pop wakes us for an earlier task, but its own time-out is too coarse.
        if self._wake is None or self._wake.done():
            self._wake = asyncio.create_task(
                self._broker.wait_for_wake("promoter"), name="promoter wake"
            )
        await asyncio.wait({self._wake}, timeout=pause)
        if self._wake.done():
            self._wake.result()
        return 0.0

    async def _fire_due(self) -> float:
        """Submit what is due of every entry; one that fails does not hold up the others."""
        term = self.term
        if term is None:
            return _STANDBY_SECONDS
        now = await self._broker.now()
        last = await self._base_instants(term, now)
        pause = _LONGEST_PAUSE
        for entry in self._entries:
            if self.term is None:  # a stop is requested, or the lease ran out meanwhile
                break
            try:
                next_instant = await self._fire(term, entry, last[entry.key], now)
            except ServerUnreachableError:
                raise
            except BaseException as error:  # an author's schedule or constructor
                if is_end(error):
                    raise
                why = summarize(error)
                logger.error("periodic entry %s: %s: %s", entry.key, why.type, why.text)
                continue
            if next_instant is not None:
                pause = min(pause, (next_instant - now).total_seconds())
        return max(0.0, pause)

    async def _fire(
        self, term: str, entry: Entry, last: datetime, now: datetime
    ) -> datetime | None:
        """Submit what is due of one entry; when to look again."""
        # A schedule that knows only the present was asked once; its answer is kept.
        asked_once = not takes_after(entry.schedule)
        stored = await self._leadership.next_of(entry.key) if asked_once else None
        grace = timedelta(seconds=self._settings.misfire_grace)
        decision = due(entry.schedule, last, now, grace, stored)
        if decision.collapsed:
            logger.warning("%s: %d occurrences not made up for", entry.key, decision.collapsed)
        for occurrence in decision.fire:
            if self.term is None:
                return None
            submission = self._client.prepare(
                self._task(entry), id=occurrence_id(entry.key, occurrence)
            )
            answer = await self._leadership.fire(term, entry.key, occurrence, submission)
            if answer == "DEPOSED":
                self._depose()
                return None
            if answer == "WAITING":
                # One occurrence waits at a time: this one's turn comes with a later tick.
                return now + timedelta(seconds=_LONGEST_PAUSE)
            logger.info("%s: occurrence %s %s", entry.key, occurrence.isoformat(), answer)
        if asked_once and decision.next is not None and decision.next != stored:
            await self._leadership.store_next(term, entry.key, decision.next)
        return decision.next

    async def _base_instants(self, term: str, now: datetime) -> dict[str, datetime]:
        """When each entry fired last, or was planned first; entries planned no more are dropped."""
        keys = [entry.key for entry in self._entries]
        last = await self._leadership.last_fired()
        new = [key for key in keys if key not in last]
        gone = sorted(last.keys() - set(keys)) if self._planned_for != term else []
        if new or gone:
            if not await self._leadership.plan(term, new, gone, now):
                self._depose()
            last = await self._leadership.last_fired()
        self._planned_for = term
        return last

    async def _watch_config(self) -> float:
        try:
            config = self._read_config()
            if config.fingerprint() != self._fingerprint and await self._is_settled(config):
                self._adopt(config)
                logger.info(
                    "configuration applied: %d periodic entries, %d limits",
                    len(self._entries),
                    len(self._configured_limits),
                )
            self._config_problem = ""
        except ConfigurationError as error:
            if str(error) != self._config_problem:
                logger.error("configuration not applied, the last good one stays: %s", error)
            self._config_problem = str(error)
        await self._publish_limits()
        return _CONFIG_SECONDS

    async def _is_settled(self, config: Config) -> bool:
        """Whether a second look finds the same configuration; else the next tick looks again."""
        await asyncio.sleep(_SETTLE_SECONDS)
        return self._read_config().fingerprint() == config.fingerprint()

    async def _publish_limits(self) -> None:
        """Let the configured limits hold, unless they do: they change, and Redis may lose them."""
        term = self.term
        if term is None:
            return
        wanted = self._configured_limits
        if await self._limits.published() == limits_version(wanted):
            return
        if await self._limits.publish(term, wanted, who()):
            logger.info("limits published: %d", len(wanted))
        else:
            self._depose()

    def _read_config(self) -> Config:
        path = self._settings.config
        return load_config(Path(path)) if path else Config()

    def _adopt(self, config: Config) -> None:
        """Plan from a configuration; raises before anything has changed if it does not fit."""
        classes = {
            item.name: item.cls
            for item in self._client.registry
            if issubclass(item.cls, PeriodicBaseTask)
        }
        vos = vos_from_entry_points(("nonet", *self._settings.entry_points))
        names = {item.name.rpartition(":")[2] for item in self._client.registry}
        planned: list[Entry] = []
        limits: dict[LimitAddress, Limit] = {}
        problems: list[str] = []
        with _noting(problems):
            planned = [
                entry for entry in entries(config, classes, vos) if self._can_be_made(entry, config)
            ]
        with _noting(problems):
            limits = configured_limits(config, names)
        if problems:
            raise ConfigurationError("\n".join(problems))
        self._entries, self._configured_limits = planned, limits
        per_vo = [name for name, cls in classes.items() if issubclass(cls, PeriodicVoAwareBaseTask)]
        if per_vo and not (config.vos or config.vo_overrides or vos):
            logger.warning("%s: nothing is planned, no VO is configured", ", ".join(per_vo))
        self._fingerprint = config.fingerprint()
        self._planned_for = None

    def _can_be_made(self, entry: Entry, config: Config) -> bool:
        """Whether the entry's task can be constructed.

        A configured one that cannot makes the configuration bad; a class that cannot be made
        without configuration is left out, so that it does not stop all others.
        """
        try:
            self._client.prepare(self._task(entry), id="check")
        except BaseException as error:  # the author's constructor may raise anything
            why = summarize(error)
            message = f"periodic entry {entry.key}: {why.text or why.type}"
            if entry.origin != "class":
                raise ConfigurationError(f"{config.source}: {entry.origin}: {message}") from error
            logger.error("%s; it is not planned until it is configured", message)
            return False
        return True

    def _task(self, entry: Entry) -> BaseTask:
        task_class = self._client.registry.get(entry.task_name)
        task: BaseTask = task_class.arguments.build(entry.args)
        return task

    def _depose(self) -> None:
        logger.warning("deposed: somebody else leads")
        self._term = None


@contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    """Note what is wrong with the configuration and go on: all of it is told at once."""
    try:
        yield
    except ConfigurationError as error:
        problems.append(str(error))


def occurrence_id(entry: str, occurrence: datetime) -> str:
    """The task id of one firing: the same whoever fires it, whenever."""
    text = f"{entry}@{occurrence.astimezone(UTC).isoformat()}"
    return "p-" + hashlib.sha256(text.encode()).hexdigest()[:32]
