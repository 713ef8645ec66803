"""The supervisor: starts workers where work overflows, replaces what crashed, and ends them all."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from nonet.base.errors import NonetError
from nonet.base.streams import Size
from nonet.daemon.contact import Contact
from nonet.daemon.fleet.backoff import Backoff
from nonet.daemon.fleet.retirement import spread
from nonet.daemon.fleet.worker_process import WorkerProcess
from nonet.daemon.health import Page, Report, free_port, never_stuck
from nonet.daemon.service import ExitCode, Stop, every, who, wind_up
from nonet.rules.demand import Demand, spawns
from nonet.stores.namespace.demand import Demands
from nonet.stores.queue.broker import Broker
from nonet.telemetry.metrics import Sample

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_STEP_SECONDS = 0.1
# At the end of the fleet, for what its last workers held.
_LAST_LOOKS = 20
# Who has not registered by then hangs.
_START_SECONDS = 120.0
# Beyond the grace, workers may take so long to cancel, hand back and sign off.
END_SECONDS = 20.0
_STATES = ("starting", "ready", "draining", "silent")


@dataclass(frozen=True)
class FleetPlan:
    """What a fleet shall be.

    Attributes:
        options: of ``task-worker`` for each of its workers.
        slots: of one worker, until one has said how many it has.
        max_lifetime: seconds after which a worker is replaced, a tenth more or less.
        worker_ttl: a worker that Redis has not heard of for so long beyond its registration is
            killed.
        metrics_port: of the fleet; its workers have free ports after it. 0: none has any.
        metrics_host: address on which all of them listen.
    """

    size: Size
    minimum: int
    maximum: int
    options: Sequence[str]
    slots: int
    grace: float
    worker_ttl: float
    max_lifetime: float | None = None
    metrics_port: int = 0
    metrics_host: str = "0.0.0.0"


@dataclass
class _Member:
    """A child and when it has to be replaced."""

    child: WorkerProcess
    ends_at: float
    port: int = 0
    is_old: bool = False
    replaces: _Member | None = field(default=None, repr=False)


class Supervisor:
    """One fleet of one size.

    Attributes:
        id: for people and run files, ``fleet-SIZE-NONCE``.
    """

    def __init__(
        self,
        plan: FleetPlan,
        demands: Demands,
        broker: Broker,
        start: Callable[[Sequence[str]], WorkerProcess] = WorkerProcess,
    ) -> None:
        self.id = f"fleet-{plan.size}-{secrets.token_hex(4)}"
        self._plan = plan
        self._demands = demands
        self._broker = broker
        self._start_child = start
        self._members: list[_Member] = []
        # Those that died; some of their child processes may live.
        self._dead: list[WorkerProcess] = []
        self._backoff = Backoff()
        self._demand: Demand | None = None
        self._wanted = 0
        self._redis = Contact(time.monotonic())
        self._has_started = False
        self._refused: int | None = None
        self._stop = Stop()

    async def run(self, stop: Stop) -> int:
        """Supervise until a stop is requested, then drain all workers.

        Returns:
            The largest exit code of the workers that were drained; that of the first ones if
            they refuse to start.
        """
        self._stop = stop
        plan = self._plan
        logger.info("fleet %s ready: %d to %d workers", self.id, plan.minimum, plan.maximum)
        try:
            async with asyncio.TaskGroup() as loops:
                running = {
                    loops.create_task(every(stop, "fleet", self._step), name="fleet"),
                    loops.create_task(every(stop, "demand", self._look), name="demand"),
                    loops.create_task(every(stop, "dead", self._hand_on), name="dead"),
                }
                await wind_up(stop, running)
            code = await self._drain(stop)
        finally:
            # After an error of ours: the line of those that live ends, and they drain.
            for child in (*(member.child for member in self._members), *self._dead):
                child.close()
        return code if self._refused is None else self._refused

    def roll(self) -> None:
        """Replace every worker, one by one: the new one is registered before the old one drains."""
        if self._stop.requested.is_set():
            return
        old = [item for item in self._members if not item.child.is_leaving]
        logger.info("rolls %d workers", len(old))
        for member in old:
            member.is_old = True

    def report(self) -> Report:
        """Whether the fleet can do its work now, and each of its workers."""
        now, reasons = time.monotonic(), []
        ready = sum(item.child.is_registered for item in self._members)
        if self._stop.requested.is_set():
            reasons.append("it drains")  # and asks Redis nothing more
        elif silence := self._redis.silence(now):
            reasons.append(silence)
        if ready < self._plan.minimum:
            reasons.append(f"{ready} of at least {self._plan.minimum} workers are registered")
        details = {
            "fleet": self.id,
            "size": self._plan.size,
            "min": self._plan.minimum,
            "max": self._plan.maximum,
            "workers": [self._told(item, now) for item in list(self._members)],
        }
        return Report(not reasons, reasons, details)

    def stuck(self) -> Sequence[str]:
        """Nothing: all that it does goes on in its event loop."""
        return never_stuck()

    def pages(self) -> Mapping[str, Page]:
        """Nothing beside probes and metrics."""
        return {}

    def samples(self) -> Iterator[Sample]:
        """What metrics tell of this fleet; its workers have ports of their own."""
        yield "nonet_draining", (), float(self._stop.requested.is_set())
        states = Counter(_state(member.child) for member in list(self._members))
        for state in _STATES:
            yield "nonet_fleet_workers", (str(self._plan.size), state), states[state]

    def _told(self, member: _Member, now: float) -> dict[str, object]:
        child = member.child
        known = {item.id: item for item in self._demand.workers} if self._demand else {}
        worker = known.get(child.id)
        return {
            "worker": child.id,
            "pid": child.pid,
            "state": _state(child),
            "slots": worker.slots if worker else None,
            "running": worker.busy if worker else None,
            "port": member.port,
            "age": round(now - child.started_at, 1),
        }

    # ---- what Redis says -----------------------------------------------------------------------

    async def _look(self) -> float:
        """See who is registered; start workers for what overflows at two looks in a row."""
        with self._redis.asked():
            self._demand = demand = await self._demands.look(self._plan.size)
        now = self._redis.heard()
        registered = {worker.id: worker for worker in demand.workers}
        for member in self._members:
            worker = registered.get(member.child.id)
            _note(member.child, worker is not None, now)
            if worker is not None and worker.drains:
                member.child.is_leaving = True  # whoever asked it to
            self._has_started = self._has_started or member.child.is_registered
        before, self._wanted = self._wanted, self._overflow(demand)
        for _ in range(min(before, self._wanted)):
            self._start("work overflows")
        return _LOOK_SECONDS

    def _overflow(self, demand: Demand) -> int:
        staying = [item.child for item in self._members if not item.child.is_leaving]
        ours = {child.id for child in staying}
        if any(worker.id in ours and not worker.takes for worker in demand.workers):
            return 0  # this machine has no more to give, whatever it lacks
        return spawns(
            demand,
            self._plan.slots,
            starting=sum(not child.was_registered for child in staying),
            alive=len(staying),
            room=self._plan.maximum - len(self._members),
        )

    # ---- the workers ---------------------------------------------------------------------------

    async def _step(self) -> float:
        now = time.monotonic()
        for member in list(self._members):
            member.child.listen()
            if (code := member.child.ended()) is not None:
                self._bury(member, code, now)
            elif now >= member.ends_at:
                member.is_old = True
        for member in self._members:
            self._kill_silent(member.child, now)
        if self._refused is None:
            self._roll_on()
            self._let_go()
            self._keep_minimum()
        return _STEP_SECONDS

    def _start(self, why: str, replaces: _Member | None = None) -> None:
        now = time.monotonic()
        if now < self._backoff.until or self._stop.requested.is_set():
            return
        life = self._plan.max_lifetime
        port = self._free_port()
        child = self._start_child([*self._plan.options, "--metrics-port", str(port)])
        ends_at = float("inf") if life is None else now + spread(life)
        self._members.append(_Member(child, ends_at, port, replaces=replaces))
        logger.info("started a worker (pid %d): %s", child.pid, why)

    def _free_port(self) -> int:
        """For the probes and metrics of a worker: the first one after ours that nobody has."""
        ours = self._plan.metrics_port
        if not ours:
            return 0
        # A worker that starts does not listen yet.
        taken = {member.port for member in self._members}
        port = free_port(self._plan.metrics_host, ours, taken)
        if not port:
            logger.warning("no port after %d is free: a worker has no probes and metrics", ours)
        return port

    def _bury(self, member: _Member, code: int, now: float) -> None:
        child = member.child
        self._remove(member, code)
        if child.is_leaving or code == ExitCode.OK:
            logger.info("%s ended: exit code %d", child.name, code)
        elif code == ExitCode.USAGE and not self._has_started:
            logger.error("%s cannot start: exit code %d; the fleet ends", child.name, code)
            self._refused = code
            self._stop.drain()
        else:
            pause = self._backoff.crashed(now - child.started_at, now)
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            logger.error("%s ended by itself: %s; next start in %.1f s", child.name, how, pause)
            if member.replaces is not None and code == ExitCode.USAGE:
                self._stay_old()

    def _remove(self, member: _Member, code: int) -> None:
        self._members.remove(member)
        if code == ExitCode.OK or not member.child.id:
            member.child.close()  # it has handed back all, or had nothing
        else:
            self._dead.append(member.child)

    async def _hand_on(self) -> float:
        """Hand on what the dead held; if a process of theirs lives on, the sweep does so later."""
        for child in list(self._dead):
            child.listen()
            if child.is_gone:
                tasks = await self._broker.take_over(child.id, self._plan.size, who())
                logger.warning("handed on %d tasks of %s", tasks, child.name)
                self._dead.remove(child)
                child.close()
        return _STEP_SECONDS

    def _stay_old(self) -> None:
        """A new worker refuses to start: those that run are worth more."""
        logger.error("no worker is replaced: mend the configuration, then send SIGHUP")
        life = self._plan.max_lifetime
        for member in self._members:
            member.is_old = False
            if life is not None:
                member.ends_at = time.monotonic() + spread(life)

    def _keep_minimum(self) -> None:
        missing = self._plan.minimum - sum(not item.child.is_leaving for item in self._members)
        for _ in range(missing):
            self._start("the fleet has too few")

    def _roll_on(self) -> None:
        """One step of the replacement of old workers, of which there is one at a time."""
        for member in self._members:
            old = member.replaces
            if old is None:
                continue
            if old not in self._members:
                member.replaces = None  # the next one
            elif member.child.is_registered and not old.child.is_leaving:
                logger.info("%s is replaced: it drains", old.child.name)
                old.child.drain()
            return
        for member in self._members:
            if member.is_old and not member.child.is_leaving:
                return self._start(f"it replaces {member.child.name}", member)

    def _let_go(self) -> None:
        """Let those end that are idle, as long as enough are left."""
        is_rolling = any(item.replaces or item.is_old for item in self._members)
        for member in self._members:
            child = member.child
            left = sum(item.child.is_registered for item in self._staying())
            if child.wants_to_leave and not is_rolling and left > self._plan.minimum:
                child.let_go()
            child.wants_to_leave = False  # it asks again

    def _staying(self) -> list[_Member]:
        return [item for item in self._members if not item.child.is_leaving]

    def _kill_silent(self, child: WorkerProcess, now: float) -> None:
        """A worker that is frozen, or hangs, is ended; its tasks run elsewhere."""
        heard_at = self._redis.heard_at
        if heard_at is None or self._redis.is_silent(now):
            return  # it may be Redis that is silent
        hangs = not child.was_registered and now - child.started_at > _START_SECONDS
        # From one look to another one: between them nobody knows whether it has come back.
        silent = 0.0 if child.silent_since is None else heard_at - child.silent_since
        if hangs or silent > self._plan.worker_ttl:
            logger.error("%s has not been heard of: killed", child.name)
            child.kill()

    # ---- the end -------------------------------------------------------------------------------

    async def _drain(self, stop: Stop) -> int:
        """Let all workers drain; the largest of their exit codes."""
        logger.info("draining %d workers", len(self._members))
        for member in self._members:
            member.child.drain()
        deadline = time.monotonic() + self._plan.grace + END_SECONDS
        codes: list[int] = [ExitCode.OK]
        was_forced = False
        while self._members:
            if stop.forced.is_set() and not was_forced:
                was_forced = True
                for member in self._members:
                    member.child.hurry()
            if time.monotonic() >= deadline:
                for member in self._members:
                    member.child.kill()
            codes += self._reap()
            await asyncio.sleep(_STEP_SECONDS)
        await self._hand_on_last()
        return ExitCode.SECOND_SIGNAL if stop.forced.is_set() else max(codes)

    async def _hand_on_last(self) -> None:
        """What can be handed on within a moment; the sweep sees to the rest."""
        with suppress(NonetError, TimeoutError):
            for _ in range(_LAST_LOOKS):
                if self._dead:
                    await asyncio.sleep(_STEP_SECONDS)
                    await asyncio.wait_for(self._hand_on(), _LAST_LOOKS * _STEP_SECONDS)

    def _reap(self) -> list[int]:
        codes = []
        for member in list(self._members):
            code = member.child.ended()
            if code is None:
                continue
            member.child.listen()  # it may have begun, and ended, since we looked
            self._remove(member, code)
            logger.info("%s ended: exit code %d", member.child.name, code)
            # Who had not begun had nothing to lose.
            has_begun = bool(member.child.id)
            codes.append((ExitCode.FAILED if code < 0 else code) if has_begun else ExitCode.OK)
        return codes


def _note(child: WorkerProcess, is_registered: bool, now: float) -> None:
    child.is_registered = is_registered
    if is_registered:
        child.was_registered, child.silent_since = True, None
    elif child.was_registered and child.silent_since is None:
        child.silent_since = now


def _state(child: WorkerProcess) -> str:
    if child.is_leaving:
        return "draining"
    if not child.was_registered:
        return "starting"
    return "ready" if child.is_registered else "silent"
