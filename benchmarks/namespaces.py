"""What a task costs Redis and the worker if one worker serves 1 to 16 namespaces, and tenants.

    python benchmarks/namespaces.py [--rounds 3] [--tasks 120000]

One Redis, one worker with 100 slots, and as many tasks that do nothing, of all namespaces in equal
parts: so many that what a worker does once for a namespace, such as counting its first 1,000 starts
exactly, is little. CPU time is counted while the middle of the tasks runs. The last lines compare
fair shares of 2 and 30 tenants with none, in one namespace.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import redis

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parent / "tests"), str(_HERE)]
from namespaces_tasks import Nothing  # noqa: E402  # beside this file
from servers import RedisServer  # noqa: E402

from nonet import Nonet  # noqa: E402

NAMESPACES = (1, 2, 4, 8, 16)
TENANTS = (0, 2, 30)
_BIN = Path(sys.executable).parent
_BATCH = 1000
# Which part of the tasks is left when counting begins, and when it ends.
_FIRST, _LAST = 0.9, 0.1


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU a task, and tasks a second."""

    redis: float
    worker: float
    rate: float


class Place:
    """A Redis, and the daemons of one measurement."""

    def __init__(self, server: RedisServer, home: Path, names: list[str]) -> None:
        self.client = redis.Redis.from_url(server.url, decode_responses=True)
        self._names = names
        self._home = home
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            "NONET_REDIS_URL": server.url,
            "NONET_NAMESPACES": ",".join(names),
            "NONET_NAMESPACE": names[0],
            "NONET_TASKS": "namespaces_tasks",
            "NONET_STATE_DIR": str(home),
            "NONET_HISTORY": "0",
            "PYTHONPATH": str(_HERE),
        }
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._url = server.url

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        log = (self._home / f"{command[0]}.log").open("wb")
        process = subprocess.Popen(
            [str(_BIN / command[0]), *command[1:]], env=self._environment, stderr=log
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait()
        self.client.flushall()
        self.client.close()

    async def submit(self, number: int, tenants: int) -> None:
        each = number // len(self._names)
        for name in self._names:
            async with Nonet.from_settings(
                redis_url=self._url, namespace=name, tasks=("namespaces_tasks",)
            ) as app:
                await app.client.live_config.refresh()
                for start in range(0, each, _BATCH):
                    tenant = str(start // _BATCH % max(1, tenants))
                    labels = {"tenant": tenant} if tenants else None
                    tasks = [Nothing() for _ in range(min(_BATCH, each - start))]
                    await app.submit_many(tasks, labels=labels)

    def left(self) -> int:
        with self.client.pipeline(transaction=False) as pipe:
            for name in self._names:
                pipe.hvals(f"{{{name}}}:active")
            return sum(int(n) for values in pipe.execute() for n in values)

    def drain(self, number: int) -> Cost:
        worker = psutil.Process(self.start("task-worker", "--size", "small").pid)
        while self.left() > _FIRST * number:
            time.sleep(0.002)
        before, first, began = self._used(worker), self.left(), time.perf_counter()
        while self.left() > _LAST * number:
            time.sleep(0.1)  # it asks each namespace
        after, done = self._used(worker), first - self.left()
        seconds = time.perf_counter() - began
        redis_us, worker_us = (1e6 * (b - a) / done for a, b in zip(before, after, strict=True))
        return Cost(redis_us, worker_us, done / seconds)

    def _used(self, worker: psutil.Process) -> tuple[float, float]:
        found, times = self.client.info("cpu"), worker.cpu_times()
        return found["used_cpu_sys"] + found["used_cpu_user"], times.user + times.system


async def measure(server: RedisServer, namespaces: int, tenants: int, number: int) -> Cost:
    """Return what a task costs with so many namespaces, or fair shares of so many tenants."""
    with tempfile.TemporaryDirectory() as home:
        place = Place(server, Path(home), [f"n{at}" for at in range(namespaces)])
        try:
            if tenants:
                config = Path(home) / "shares.yaml"
                config.write_text("fairness: {by: 'label:tenant'}\n")
                place.start("task-scheduler", "--config", str(config))
                while not place.client.exists("{n0}:fair"):  # noqa: ASYNC110  # a daemon sets it
                    await asyncio.sleep(0.05)
            await place.submit(number, tenants)
            return await asyncio.to_thread(place.drain, number)
        finally:
            place.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=120_000)
    options = parser.parse_args()
    kinds = [(number, 0) for number in NAMESPACES] + [(1, number) for number in TENANTS if number]
    found: dict[tuple[int, int], list[Cost]] = {kind: [] for kind in kinds}
    with RedisServer() as server:
        for _ in range(options.rounds):  # a machine that slows down slows all
            for kind in random.sample(kinds, len(kinds)):
                found[kind].append(asyncio.run(measure(server, *kind, options.tasks)))
    base = _median(found[1, 0])
    for (namespaces, tenants), costs in found.items():
        cost = _median(costs)
        what = f"{tenants} tenants" if tenants else f"{namespaces} namespaces"
        print(
            f"{what:>14}: Redis {cost.redis:5.1f} µs ({cost.redis / base.redis:.2f}), "
            f"worker {cost.worker:5.1f} µs ({cost.worker / base.worker:.2f}), "
            f"{cost.rate:8,.0f} tasks/s ({cost.rate / base.rate:.2f})"
        )


def _median(costs: list[Cost]) -> Cost:
    parts = zip(*((cost.redis, cost.worker, cost.rate) for cost in costs), strict=True)
    return Cost(*map(statistics.median, parts))


if __name__ == "__main__":
    main()
