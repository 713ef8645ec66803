"""How each row is measured."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import history
from bench_tasks import Blocked, Burn, Flood, Locked, Noop, Sleep, Urgent
from place import Counters, Daemon, Place
from raw import Raw

from nonet import BaseTask, Nonet

_CALLERS = 50
_SLOTS = 100
_STEP = 50_000  # number of task objects created at a time
_SETTLED_SECONDS = 0.3  # seconds within which the last tasks are settled
_DEDUP_SECONDS = 21
_FORGOTTEN_SECONDS = 60
_DUE_IN_SECONDS = 3.0
_REALTIME_A_SECOND = 100

Make = Callable[[int], BaseTask]
Values = dict[str, float]


@dataclass(frozen=True)
class Load:
    """The amount of work per measured value.

    Attributes:
        seconds: duration of each submit loop, and of each latency measurement.
        drain: number of tasks in a queue.
        bodies: number of tasks that use 1 ms of CPU time or sleep for 10 ms.
        late: number of delayed tasks due at one instant; a twentieth as many have spread delays.
        flood: number of background tasks queued ahead of the realtime ones.
        queued: length of the long queue; the short queue has `measured` tasks.
        measured: number of tasks measured of each queue.
        waiting: number of tasks that wait for a lock while others are listed.
        cancelled: number of queued tasks that are cancelled together.
        one_slot: number of tasks run one after the other; a fifth as many in their own processes.
        idle: seconds for which an idle worker is watched.
    """

    seconds: float = 1.0
    drain: int = 40_000
    bodies: int = 5_000
    late: int = 10_000
    flood: int = 100_000
    queued: int = 1_000_000
    measured: int = 10_000
    waiting: int = 100_000
    cancelled: int = 200_000
    one_slot: int = 300
    idle: float = 5.0


QUICK = Load(
    seconds=0.5, drain=10_000, bodies=2000, late=2000, flood=30_000, queued=100_000, measured=5000,
    waiting=20_000, cancelled=50_000, one_slot=100, idle=2.0,
)  # fmt: skip
TINY = Load(
    seconds=0.05, drain=300, bodies=100, late=100, flood=3000, queued=600, measured=200,
    waiting=300, cancelled=300, one_slot=10, idle=0.2,
)  # fmt: skip


class Bench:
    """One method for each row; it returns the value of each figure."""

    def __init__(self, place: Place, load: Load) -> None:
        self._place = place
        self._load = load
        self._raw = Raw(place.url, load.seconds)

    async def raw_submit(self) -> Values:
        """Measure entries per second that bare redis-py adds to a stream, in three ways."""
        found = {}
        for name, measure in self._raw.ways():
            self._place.fresh()
            found[f"raw_{name}"] = await measure()
        return found

    async def raw_drain(self) -> Values:
        """Measure entries per second that bare redis-py reads, acknowledges and deletes."""
        self._place.fresh()
        rate = await self._raw.drain(self._load.drain)
        self._place.fresh()
        return {"raw_drain": rate, "raw_ping": await self._raw.ping()}

    async def submit(self) -> Values:
        """Measure submissions per second: one by one, by many callers of one client, in bulk."""
        found = {}
        for name, count in (("sequential", 1), ("concurrent", _CALLERS)):
            async with self._empty():
                found[name] = await self._submit_by(count)
        async with self._empty() as app:
            found["bulk"] = await self._submit_bulk(app)
        return found

    async def _submit_by(self, callers: int) -> float:
        await Noop(0).schedule()  # connects and loads the scripts
        start, number = time.perf_counter(), 0

        async def call() -> None:
            nonlocal number
            while time.perf_counter() - start < self._load.seconds:
                number += 1
                await Noop(number).schedule()

        await asyncio.gather(*(call() for _ in range(callers)))
        return number / (time.perf_counter() - start)

    async def _submit_bulk(self, app: Nonet, step: int = 1000) -> float:
        start, number = time.perf_counter(), 0
        while time.perf_counter() - start < self._load.seconds:
            await app.submit_many(map(Noop, range(number, number + step)))
            number += step
        return number / (time.perf_counter() - start)

    async def drain(self) -> Values:
        """Measure one worker on a queue of tasks that do nothing, without results."""
        found = await self._drain(Noop, self._load.drain)
        return {
            "drain": found.rate,
            "drain_cpu": found.worker_cpu,
            "drain_redis": found.redis_cpu,
            "drain_commands": found.commands,
            "drain_reads": found.reads,
        }

    async def results(self) -> Values:
        """Measure as `drain`, but keep a result of each task."""
        return {"results": (await self._drain(Noop, self._load.drain, result_ttl="300")).rate}

    async def mutex(self) -> Values:
        """Measure as `drain`, but with a separate mutex for each task."""
        return {"mutex": (await self._drain(Locked, self._load.drain)).rate}

    async def two(self) -> Values:
        """Measure the speed-up of two worker processes over one, with tasks that compute."""
        one = (await self._drain(Burn, self._load.bodies)).rate
        return {"two": (await self._drain(Burn, 2 * self._load.bodies, workers=2)).rate / one}

    async def sleeps(self) -> Values:
        """Measure the share of the ideal throughput, with tasks that sleep for 10 ms."""
        found = await self._drain(Sleep, self._load.bodies)
        return {"sleeps": 100 * found.rate / (_SLOTS / 0.01)}

    async def latency(self) -> Values:
        """Measure the time from `schedule()` to the start of the body, with one idle worker."""
        async with self._empty():
            with self._place.worker():
                await self._warm_up()
                slow = await self._paced(Noop, 20, 5 * self._load.seconds)
                fast = await self._paced(Noop, 500, 3 * self._load.seconds)
        return {
            "latency_20_p50": _quantile(slow, 50),
            "latency_20_p99": _quantile(slow, 99),
            "latency_500_p50": _quantile(fast, 50),
            "latency_500_p99": _quantile(fast, 99),
        }

    async def realtime(self) -> Values:
        """Measure the latency of realtime tasks while background tasks keep all slots busy."""
        flood = self._load.flood
        async with self._empty() as app:
            await self._fill(app, Flood, flood)
            with self._place.worker():
                await self._place.until(lambda: self._done(flood) > 2 * _SLOTS)
                found = await self._paced(
                    Urgent, _REALTIME_A_SECOND, 2 * self._load.seconds, first=flood
                )
                if self._done(flood) == flood:
                    raise RuntimeError("the background tasks ended before the realtime ones")
        return {"realtime_p50": _quantile(found, 50), "realtime_p99": _quantile(found, 99)}

    async def delayed(self) -> Values:
        """Measure tasks due at one instant and tasks with spread delays, with a scheduler and one
        idle worker.
        """
        async with self._empty() as app:
            with self._place.scheduler(), self._place.worker():
                await self._warm_up(at_time=datetime.now(UTC) + timedelta(seconds=1))
                at_once = await self._late(app, [0.0] * self._load.late)
                self._place.probe.clear()
                count = max(20, self._load.late // 20)
                pause = 5 * self._load.seconds / count
                spread = await self._late(app, [number * pause for number in range(count)])
        return {
            "delayed_all": max(at_once) / 1000,
            "delayed_p50": _quantile(spread, 50),
            "delayed_p99": _quantile(spread, 99),
            "delayed_early": sum(late < 0 for late in at_once + spread),
        }

    async def memory(self) -> Values:
        """Measure the memory of a queued task, and the memory that an ended task leaves."""
        self._place.fresh()
        empty = self._place.counters()
        async with self._place.app() as app:
            await self._fill(app, Noop, self._load.drain)
        queued = self._place.counters()
        return {"memory": (queued.memory - empty.memory) / self._load.drain}

    async def forgotten(self) -> Values:
        """Measure the memory per task that remains after all ids have expired."""
        self._place.fresh()
        seconds = str(_DEDUP_SECONDS)
        count = self._load.drain
        async with self._place.app(dedup_ttl=_DEDUP_SECONDS) as app:
            nothing_kept = {"NONET_RESULT_TTL": "0", "NONET_HISTORY": "0"}
            with self._place.worker(NONET_DEDUP_TTL=seconds, **nothing_kept):
                await self._warm_up()
                empty = self._place.counters().memory
                await self._fill(app, Noop, count)
                await self._place.until(lambda: self._done(count) == count, 60)
                deadline = time.monotonic() + _DEDUP_SECONDS + _FORGOTTEN_SECONDS
                left = math.inf
                while left > count and time.monotonic() < deadline:
                    await asyncio.sleep(1)
                    left = self._place.counters().memory - empty
        return {"memory_left": max(0.0, left) / count}

    async def lists(self) -> Values:
        """Measure lists while many tasks wait for a lock, from the opening of an application."""
        waiting, found = self._load.waiting, Values()
        async with self._empty() as app:
            await self._fill(app, Blocked, waiting + 1)
            with self._place.worker():
                key = "{nonet}:tasks:delayed"
                await self._place.until(lambda: self._place.raw.zcard(key) == waiting, 120)
                self._place.watch_commands()
                for name, state in (("list_running", "running"), ("list_waiting", "waiting")):
                    start = time.perf_counter()
                    async with self._place.app() as other:
                        page = await other.list_tasks(state=state)
                    found[name] = time.perf_counter() - start
                    if not page.matched:
                        raise RuntimeError(f"no task is {state}")
                found["list_script"] = self._place.longest_command()
        return found

    async def cancel(self) -> Values:
        """Measure the cancellation of all tasks of a class, which are queued."""
        async with self._empty() as app:
            await self._fill(app, Noop, self._load.cancelled)
            self._place.watch_commands()
            start = time.perf_counter()
            number = await app.client.cancel_many(task=Noop)
            seconds = time.perf_counter() - start
        if number != self._load.cancelled:
            raise RuntimeError(f"{number} tasks were cancelled")
        return {"cancel": seconds, "cancel_script": self._place.longest_command()}

    async def idle(self) -> Values:
        """Measure the load that an idle worker puts on Redis."""
        async with self._empty():
            with self._place.worker() as worker:
                await self._warm_up()
                await asyncio.sleep(min(2.0, self._load.idle))
                before, cpu = self._place.counters(), worker.cpu()
                await asyncio.sleep(self._load.idle)
                after, cpu = self._place.counters(), worker.cpu() - cpu
        return {
            "idle_reads": (after.reads - before.reads - 1) / self._load.idle,
            "idle_commands": (after.commands - before.commands - 1) / self._load.idle,
            "idle_cpu": 100 * cpu / self._load.idle,
        }

    async def scale(self) -> Values:
        """Compare the throughput on a long queue with the throughput on a short one."""
        # Interleave the runs and take the best of three: the difference is a few percent.
        found: dict[int, list[float]] = {self._load.measured: [], self._load.queued: []}
        for _ in range(3):
            for queued, rates in found.items():
                drained = await self._drain(Noop, queued, until=self._load.measured)
                rates.append(drained.rate)
        short, long = (max(rates) for rates in found.values())
        return {"scale": long / short}

    async def history(self) -> Values:
        """Measure what the history costs, and the memory of the figures of classes."""
        return {
            "history_redis": await history.redis_time(self._place, max(20, self._load.drain // 25)),
            "history_memory": await history.memory(self._place),
            "figures_memory": history.figures_memory(self._place),
            "history_drain": await self._with_history(),
        }

    async def _with_history(self) -> float:
        """Return the throughput with a history, as a share of that without one."""
        found: dict[str, list[float]] = {"0": [], "10000": []}
        for _ in range(3):  # as in `scale`
            for kept, rates in found.items():
                rates.append((await self._drain(Noop, self._load.drain, kept=kept)).rate)
        without, with_history = (max(rates) for rates in found.values())
        return with_history / without

    async def start(self) -> Values:
        """Measure the time from the start of a worker to its first task, and its memory then."""
        async with self._empty() as app:
            await app.submit_many([Noop(0)])
            with self._place.worker() as worker:
                await self._place.until(lambda: self._done(1) == 1)
                await asyncio.sleep(_SETTLED_SECONDS)
                first = (self._place.probe.begun[0] - worker.started_ns) / 1e9
                return {"start": first, "start_rss": worker.rss() / 2**20}

    async def children(self) -> Values:
        """Measure the time per task in each of the three places where a task may run."""
        return {
            "slot_loop": await self._one_slot("small", self._load.one_slot),
            "slot_child": await self._one_slot("medium", self._load.one_slot),
            "slot_fresh": await self._one_slot("large", self._load.one_slot // 5),
        }

    async def _one_slot(self, size: str, count: int) -> float:
        async with self._empty() as app:
            await app.submit_many(map(Noop, range(count)), labels={"size": size})
            with self._place.worker("--size", size, "--concurrency", "1"):
                await self._place.until(lambda: self._done(count) == count)
        ended = sorted(self._place.probe.ended[:count])
        return (ended[-1] - ended[0]) / 1e6 / (count - 1)

    async def _drain(
        self,
        make: Make,
        count: int,
        *,
        result_ttl: str = "0",
        kept: str = "10000",
        workers: int = 1,
        until: int | None = None,
    ) -> _Drained:
        """Fill a queue, start workers, and observe the first `until` tasks."""
        wanted = count if until is None else until
        looked_at = min(
            count, 2 * wanted
        )  # scanning a million entries would slow down the measured processes
        async with self._empty() as app:
            await self._fill(app, make, count)
            with ExitStack() as running:
                daemons = [
                    running.enter_context(
                        self._place.worker(
                            number=number + 1, NONET_RESULT_TTL=result_ttl, NONET_HISTORY=kept
                        )
                    )
                    for number in range(workers)
                ]
                await self._place.until(lambda: self._done(looked_at) > 0)
                first = self._snapshot(daemons, looked_at)
                await self._place.until(lambda: self._done(looked_at) >= wanted, 120)
                if wanted == count:
                    await asyncio.sleep(_SETTLED_SECONDS)
                    self._place.probe.each_once(range(count))
                last = self._snapshot(daemons, looked_at)
        rate = self._rate(count, workers) if wanted == count else self._rate_of_first(wanted)
        return _Drained(rate, first, last)

    def _rate(self, count: int, workers: int) -> float:
        """Return tasks per second: of one worker overall, of several while all have work."""
        probe = self._place.probe
        ended = probe.ended[:count].tolist()
        if workers == 1:
            return count / (max(ended) - min(probe.begun[:count])) * 1e9
        by_worker: dict[int, list[int]] = {number + 1: [] for number in range(workers)}
        for worker, at in zip(bytes(probe.worker[:count]), ended, strict=True):
            by_worker[worker].append(at)
        if not all(by_worker.values()):
            raise RuntimeError("a worker had nothing to do")
        start, end = max(map(min, by_worker.values())), min(map(max, by_worker.values()))
        if end <= start:
            raise RuntimeError("the workers had nothing to do at the same time")
        return sum(start < at <= end for at in ended) / (end - start) * 1e9

    def _rate_of_first(self, wanted: int) -> float:
        ended = sorted(filter(None, self._place.probe.ended[: 2 * wanted]))[:wanted]
        return len(ended) / (ended[-1] - ended[0]) * 1e9

    def _snapshot(self, daemons: Sequence[Daemon], count: int) -> _Snapshot:
        cpu = sum(daemon.cpu() for daemon in daemons)
        return _Snapshot(self._done(count), cpu, self._place.counters())

    async def _fill(self, app: Nonet, make: Make, count: int) -> None:
        for start in range(0, count, _STEP):
            await app.submit_many(map(make, range(start, min(count, start + _STEP))))

    async def _warm_up(self, at_time: datetime | None = None) -> None:
        """Let the workers run a task, then wait until they are idle."""
        probe = self._place.probe
        await Noop(probe.capacity - 1).schedule(at_time=at_time)
        await self._place.until(lambda: probe.count[-1] > 0)
        await asyncio.sleep(_SETTLED_SECONDS)
        probe.clear()

    async def _paced(self, make: Make, rate: int, seconds: float, first: int = 0) -> list[float]:
        """Submit at a steady rate; return the milliseconds from `schedule()` to each body."""
        tasks = range(first, first + max(20, int(rate * seconds)))
        submitted: list[int] = []
        start = time.perf_counter()
        async with asyncio.TaskGroup() as calls:
            for number in tasks:
                # Avoid a period that coincides with a polling interval.
                due = start + (number - first + random.random() / 2) / rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                submitted.append(time.time_ns())
                calls.create_task(make(number).schedule())
        probe = self._place.probe
        await self._place.until(lambda: probe.done(tasks) == len(tasks))
        begun = probe.begun[tasks.start : tasks.stop]
        probe.each_once(tasks)
        found = [(at - due) / 1e6 for at, due in zip(begun, submitted, strict=True)]
        if not first:
            probe.clear()
        return found

    async def _late(self, app: Nonet, offsets: Sequence[float]) -> list[float]:
        """Return by how many milliseconds each delayed task was late."""
        start = time.time() + _DUE_IN_SECONDS
        dues = [start + offset for offset in offsets]
        if len(set(offsets)) == 1:
            at_time = datetime.fromtimestamp(start, UTC)
            await app.submit_many(map(Noop, range(len(dues))), at_time=at_time)
        else:
            submitting = (
                Noop(number).schedule(at_time=datetime.fromtimestamp(due, UTC))
                for number, due in enumerate(dues)
            )
            await asyncio.gather(*submitting)
        if time.time() > start:
            raise RuntimeError("the tasks were due before all were submitted")
        tasks = range(len(dues))
        await self._place.until(lambda: self._done(len(dues)) == len(dues), dues[-1] - start + 20)
        self._place.probe.each_once(tasks)
        begun = self._place.probe.begun[: len(dues)]
        return [at / 1e6 - due * 1e3 for at, due in zip(begun, dues, strict=True)]

    def _done(self, count: int) -> int:
        return self._place.probe.done(range(count))

    @asynccontextmanager
    async def _empty(self) -> AsyncIterator[Nonet]:
        """Open an application on an empty server."""
        self._place.fresh()
        async with self._place.app() as app:
            yield app


@dataclass(frozen=True)
class _Snapshot:
    done: int
    worker_cpu: float
    server: Counters


@dataclass(frozen=True)
class _Drained:
    """The result of draining a queue, with the cost per task."""

    rate: float
    first: _Snapshot
    last: _Snapshot

    def _each(self, used: float) -> float:
        return used / max(1, self.last.done - self.first.done)

    @property
    def worker_cpu(self) -> float:
        """Microseconds of CPU time of the workers per task."""
        return self._each(1e6 * (self.last.worker_cpu - self.first.worker_cpu))

    @property
    def redis_cpu(self) -> float:
        """Microseconds of CPU time of Redis per task."""
        return self._each(1e6 * (self.last.server.cpu - self.first.server.cpu))

    @property
    def commands(self) -> float:
        return self._each(self.last.server.commands - self.first.server.commands)

    @property
    def reads(self) -> float:
        return self._each(self.last.server.reads - self.first.server.reads)


def _quantile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
