"""The supervisor: start workers for a backlog, replace crashed ones, drain them all at the end."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nonet.base.actor import process_name, who
from nonet.base.errors import NonetError
from nonet.base.streams import Size
from nonet.daemon.contact import Contact
from nonet.daemon.fleet.retirement import spread
from nonet.daemon.fleet.worker_process import WorkerProcess
from nonet.daemon.health import Observed, Report, free_port
from nonet.daemon.processes import Backoff
from nonet.daemon.service import ExitCode, Stop, every, wind_up
from nonet.rules.demand import Demand, spawns
from nonet.stores.namespace.demand import Demands
from nonet.stores.queue.broker import Broker
from nonet.telemetry.metrics import Sample

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_STEP_SECONDS = 0.1
# How many times to look for tasks of dead workers when the fleet ends.
_LAST_LOOKS = 20
# A worker that has not registered within this time hangs.
_START_SECONDS = 120.0
# How long workers may take beyond the grace to cancel, hand back and unregister.
END_SECONDS = 20.0
_STATES = ("starting", "ready", "draining", "silent")


@dataclass(frozen=True)
class FleetPlan:
    """The settings of a fleet.

    Attributes:
        options: options of ``task-worker`` for each worker.
        slots: assumed slots of one worker until one has registered.
        max_lifetime: seconds after which a worker is replaced, a tenth more or less.
        worker_ttl: a worker that stays unregistered for this many seconds is killed.
        metrics_port: port of the supervisor; the workers take free ports after it. 0: no ports.
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


class Supervisor(Observed):
    """One fleet of one size.

    Attributes:
        id: for log lines and probes, ``fleet-SIZE-NONCE``.
    """

    def __init__(self, plan: FleetPlan, demands: Demands, broker: Broker) -> None:
        self.id = f"fleet-{plan.size}-{secrets.token_hex(4)}"
        self._plan = plan
        self._demands = demands
        self._broker = broker
        self._workers: list[WorkerProcess] = []
        # Dead workers; some of their child processes may still live.
        self._dead: list[WorkerProcess] = []
        self._backoff = Backoff()
        self._demand: Demand | None = None
        self._wanted = 0
        self._redis = Contact(time.monotonic())
        self._has_started = False
        self._refused: int | None = None
        # Places whose workers an operator has drained; SIGHUP fills them again.
        self._empty = 0
        self._stop = Stop()

    async def run(self, stop: Stop) -> int:
        """Supervise until a stop is requested, then drain all workers.

        Returns:
            The largest exit code of the drained workers, or the exit code of the first workers if
            they refused to start.
        """
        self._stop = stop
        plan = self._plan
        text = "fleet ready: id=%s min=%d max=%d"
        logger.info(text, self.id, plan.minimum, plan.maximum)
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
            # If the supervisor fails, closing the lines drains the workers that still run.
            for worker in (*self._workers, *self._dead):
                worker.close()
        return code if self._refused is None else self._refused

    def roll(self) -> None:
        """Replace every worker, one by one: the old one drains once the new one has registered."""
        if self._stop.requested.is_set():
            return
        old = self._staying()
        logger.info("rolling workers: number=%d", len(old))
        for worker in old:
            worker.is_old = True
        self._empty = 0
        for worker in self._workers:
            worker.was_ordered = False

    def report(self) -> Report:
        """Whether the fleet can do its work now, and the state of each worker."""
        now, reasons = time.monotonic(), []
        ready = sum(worker.is_registered for worker in self._workers)
        if self._stop.requested.is_set():
            reasons.append("the fleet drains")  # and sends Redis no more requests
        elif silence := self._redis.silence(now):
            reasons.append(silence)
        if ready < self._minimum:
            reasons.append(f"{ready} of at least {self._minimum} workers are registered")
        details = {
            "fleet": self.id,
            "size": self._plan.size,
            "min": self._plan.minimum,
            "max": self._plan.maximum,
            "empty": self._empty,
            "workers": [self._status(worker, now) for worker in list(self._workers)],
        }
        return Report(not reasons, reasons, details)

    def samples(self) -> Iterator[Sample]:
        """The metrics of this fleet; its workers have ports of their own."""
        yield "nonet_draining", (), float(self._stop.requested.is_set())
        states = Counter(worker.state for worker in list(self._workers))
        for state in _STATES:
            yield "nonet_fleet_workers", (str(self._plan.size), state), states[state]

    def _status(self, worker: WorkerProcess, now: float) -> dict[str, object]:
        found = {item.id: item for item in self._demand.workers} if self._demand else {}
        known = found.get(worker.id)
        return {
            "worker": process_name(worker.pid),
            "pid": worker.pid,
            "state": worker.state,
            "slots": known.slots if known else None,
            "running": known.busy if known else None,
            "port": worker.port,
            "age": round(now - worker.started_at, 1),
        }

    # ---- demand --------------------------------------------------------------------------------

    async def _look(self) -> float:
        """Read who is registered; start workers for a backlog that lasts for two reads."""
        with self._redis.asked():
            self._demand = demand = await self._demands.look(self._plan.size)
        now = self._redis.heard()
        registered = {item.id: item for item in demand.workers}
        for worker in self._workers:
            known = registered.get(worker.id)
            worker.note_registration(known is not None, now)
            if known is not None and known.drains:
                worker.is_leaving = True  # a drain may also come from a command
            self._has_started = self._has_started or worker.is_registered
        before, self._wanted = self._wanted, self._overflow(demand)
        for _ in range(min(before, self._wanted)):
            self._start("backlog")
        return _LOOK_SECONDS

    def _overflow(self, demand: Demand) -> int:
        staying = self._staying()
        ours = {worker.id for worker in staying}
        if any(item.id in ours and not item.takes for item in demand.workers):
            return 0  # a worker of this fleet takes no tasks: the machine is at its limit
        return spawns(
            demand,
            self._plan.slots,
            starting=sum(not worker.was_registered for worker in staying),
            alive=len(staying),
            room=self._plan.maximum - self._empty - len(self._workers),
        )

    # ---- the workers ---------------------------------------------------------------------------

    async def _step(self) -> float:
        now = time.monotonic()
        for worker in list(self._workers):
            worker.listen()
            if (code := worker.ended()) is not None:
                self._replace_ended(worker, code, now)
            elif now >= worker.ends_at:
                worker.is_old = True
        for worker in self._workers:
            self._kill_silent(worker, now)
        if self._refused is None:
            self._roll_on()
            self._let_go()
            self._keep_minimum()
        return _STEP_SECONDS

    def _start(self, why: str, replaces: WorkerProcess | None = None) -> None:
        now = time.monotonic()
        if now < self._backoff.until or self._stop.requested.is_set():
            return
        life = self._plan.max_lifetime
        port = self._free_port()
        worker = WorkerProcess([*self._plan.options, "--metrics-port", str(port)])
        worker.port, worker.replaces = port, replaces
        if life is not None:
            worker.ends_at = now + spread(life)
        self._workers.append(worker)
        logger.info("started worker: pid=%d reason=%s", worker.pid, why)

    def _free_port(self) -> int:
        """Return a port for the probes and metrics of a worker: the first free one after ours."""
        ours = self._plan.metrics_port
        if not ours:
            return 0
        # A worker that is starting does not listen on its port yet.
        taken = {worker.port for worker in self._workers}
        port = free_port(self._plan.metrics_host, ours, taken)
        if not port:
            logger.warning("no free port, a worker has no probes and metrics: above=%d", ours)
        return port

    def _replace_ended(self, worker: WorkerProcess, code: int, now: float) -> None:
        worker.listen()  # it may have sent a message since the step began
        self._remove(worker, code)
        if worker.was_ordered:
            self._empty += 1
            logger.info(
                "%s ended as ordered, SIGHUP fills its place: exit_code=%d", worker.name, code
            )
        elif worker.is_leaving or code == ExitCode.OK:
            logger.info("%s ended: exit_code=%d", worker.name, code)
        elif code == ExitCode.USAGE and not self._has_started:
            logger.error("%s cannot start, the fleet ends: exit_code=%d", worker.name, code)
            self._refused = code
            self._stop.drain()
        else:
            pause = self._backoff.crashed(now - worker.started_at, now)
            how = f"signal={-code}" if code < 0 else f"exit_code={code}"
            logger.error("%s crashed: %s restart_in=%.1fs", worker.name, how, pause)
            if worker.replaces is not None and code == ExitCode.USAGE:
                self._stop_rolling()

    def _remove(self, worker: WorkerProcess, code: int) -> None:
        self._workers.remove(worker)
        if code == ExitCode.OK or not worker.id:
            worker.close()  # it has handed all tasks back, or never had any
        else:
            self._dead.append(worker)

    async def _hand_on(self) -> float:
        """Hand on the tasks of dead workers whose child processes have ended, too.

        While a child lives, it may still execute a task. The sweep reclaims these tasks when their
        leases end.
        """
        for worker in list(self._dead):
            worker.listen()
            if worker.is_gone:
                tasks = await self._broker.take_over(worker.id, self._plan.size, who())
                logger.warning("handed on tasks of %s: number=%d", worker.name, tasks)
                self._dead.remove(worker)
                worker.close()
        return _STEP_SECONDS

    def _stop_rolling(self) -> None:
        """Keep the old workers, because the new one refuses to start."""
        logger.error("stopped replacing workers: repair the configuration, then send SIGHUP")
        life = self._plan.max_lifetime
        for worker in self._workers:
            worker.is_old = False
            if life is not None:
                worker.ends_at = time.monotonic() + spread(life)

    def _keep_minimum(self) -> None:
        for _ in range(self._minimum - len(self._staying())):
            self._start("below minimum")

    def _roll_on(self) -> None:
        """Replace one old worker at a time."""
        for worker in self._workers:
            old = worker.replaces
            if old is None:
                continue
            if old not in self._workers:
                worker.replaces = None  # continue with the next one
            elif worker.is_registered and not old.is_leaving:
                logger.info("draining %s: a new worker replaces it", old.name)
                old.drain()
            return
        for worker in self._workers:
            if worker.is_old and not worker.is_leaving:
                return self._start(f"replaces {worker.name}", worker)

    def _let_go(self) -> None:
        """Let idle workers end while more than the minimum remain."""
        is_rolling = any(worker.replaces or worker.is_old for worker in self._workers)
        for worker in self._workers:
            left = sum(other.is_registered for other in self._staying())
            if worker.wants_to_leave and not is_rolling and left > self._minimum:
                worker.let_go()
            worker.wants_to_leave = False  # an idle worker asks again each second

    @property
    def _minimum(self) -> int:
        """How many workers to keep: fewer while places are empty."""
        draining = sum(worker.was_ordered for worker in self._workers)
        return max(0, self._plan.minimum - self._empty - draining)

    def _staying(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if not worker.is_leaving]

    def _kill_silent(self, worker: WorkerProcess, now: float) -> None:
        """Kill a worker that hangs or is frozen; its tasks run elsewhere."""
        heard_at = self._redis.heard_at
        if heard_at is None or self._redis.is_silent(now):
            return  # Redis may be unavailable rather than the worker
        hangs = not worker.was_registered and now - worker.started_at > _START_SECONDS
        # Measure from read to read: between the last read and now the worker may have registered.
        silent = 0.0 if worker.silent_since is None else heard_at - worker.silent_since
        if hangs or silent > self._plan.worker_ttl:
            logger.error("killed %s: not registered in time", worker.name)
            worker.kill()

    # ---- the end -------------------------------------------------------------------------------

    async def _drain(self, stop: Stop) -> int:
        """Drain all workers; return the largest of their exit codes."""
        logger.info("draining workers: number=%d", len(self._workers))
        for worker in self._workers:
            worker.drain()
        deadline = time.monotonic() + self._plan.grace + END_SECONDS
        codes: list[int] = [ExitCode.OK]
        was_forced = False
        while self._workers:
            if stop.forced.is_set() and not was_forced:
                was_forced = True
                for worker in self._workers:
                    worker.hurry()
            if time.monotonic() >= deadline:
                for worker in self._workers:
                    worker.kill()
            codes += self._reap()
            await asyncio.sleep(_STEP_SECONDS)
        await self._hand_on_last()
        return ExitCode.SECOND_SIGNAL if stop.forced.is_set() else max(codes)

    async def _hand_on_last(self) -> None:
        """Hand on what is possible within a moment; the sweep does the rest."""
        with suppress(NonetError, TimeoutError):
            for _ in range(_LAST_LOOKS):
                if self._dead:
                    await asyncio.sleep(_STEP_SECONDS)
                    await asyncio.wait_for(self._hand_on(), _LAST_LOOKS * _STEP_SECONDS)

    def _reap(self) -> list[int]:
        codes = []
        for worker in list(self._workers):
            code = worker.ended()
            if code is None:
                continue
            worker.listen()  # it may have sent its id and ended since the last read
            self._remove(worker, code)
            logger.info("%s ended: exit_code=%d", worker.name, code)
            # A worker that had not sent its id held no tasks, so its exit code does not matter.
            has_begun = bool(worker.id)
            codes.append((ExitCode.FAILED if code < 0 else code) if has_begun else ExitCode.OK)
        return codes
