"""Submissions and executions a second, and idle latency, next to a bare redis-py loop.

Starts a Redis of its own and real ``task-worker`` processes, and leaves nothing behind. Every row
is measured once a round, so that a machine that slows down slows all rows; printed are medians of
the rounds. What the rows mean: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import bench_tasks
import redis
from bench_tasks import Locked, Noop, Stamp, stamp, stamped

from nonet import BaseTask, Nonet
from nonet.stores.embedded import open_embedded

_HERE = Path(__file__).resolve().parent
_BATCH = 100
_STREAM = "{nonet}:tasks:normal:small"
_READY_SECONDS = 20


@dataclass(frozen=True)
class Load:
    """How much one round does."""

    one_by_one: int = 1000
    bulk: int = 5000
    drain: int = 10_000
    latency: int = 150


@dataclass
class Row:
    """One line of the table.

    Attributes:
        measure: one round's value.
        unit: ``/s``, or ``ms`` where less is better.
        limit: name of the row to compare with.
    """

    name: str
    unit: str
    measure: Callable[[], Awaitable[float]]
    limit: str = ""
    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def ratio(self, other: Row) -> float:
        """Median of the ratios within each round, which a noisy machine disturbs least."""
        return statistics.median(a / b for a, b in zip(self.rounds, other.rounds, strict=True))


class Bench:
    """The server, and one method for each kind of row."""

    def __init__(self, url: str, home: Path, load: Load) -> None:
        self.load = load
        self._url = url
        self._home = home
        self._raw = redis.Redis.from_url(url, protocol=2)
        self._raw.config_set("appendonly", "no")
        self._p99 = 0.0

    def rows(self) -> list[Row]:
        """The table, raw rows first."""
        rate, drained = "raw XADD one by one", "raw XREADGROUP + XACK + XDEL"
        return [
            Row("raw ping", "ms", self.raw_ping),
            Row(rate, "/s", self.raw_add),
            Row("raw XADD pipelined", "/s", self.raw_add_pipelined),
            Row(drained, "/s", self.raw_drain),
            Row("submit one by one", "/s", lambda: self.submit(callers=1), rate),
            Row("submit by 32 callers", "/s", lambda: self.submit(callers=32), rate),
            Row("submit_many", "/s", self.submit_many, "raw XADD pipelined"),
            Row("drain", "/s", lambda: self.drain(Noop), drained),
            Row("drain, no results", "/s", lambda: self.drain(Noop, "0"), drained),
            Row("drain, a mutex each", "/s", lambda: self.drain(Locked), "drain"),
            Row("idle latency p50", "ms", self.latency, "raw ping"),
            Row("idle latency p99", "ms", self.latency_p99, "raw ping"),
        ]

    async def raw_ping(self) -> float:
        """Median round trip, in milliseconds."""
        times = []
        for _ in range(self.load.one_by_one):
            start = time.perf_counter()
            self._raw.ping()
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1000

    async def raw_add(self) -> float:
        """Entries a second, one round trip each."""
        self._raw.flushall()
        with _Stopwatch() as watch:
            for number in range(self.load.one_by_one):
                self._raw.xadd(_STREAM, _entry(number))
        return self.load.one_by_one / watch.seconds

    async def raw_add_pipelined(self) -> float:
        """Entries a second, many a round trip."""
        self._raw.flushall()
        with _Stopwatch() as watch:
            self._fill_raw(self.load.bulk)
        return self.load.bulk / watch.seconds

    async def raw_drain(self) -> float:
        """Entries a second that a loop reads, acknowledges and deletes."""
        self._raw.flushall()
        self._raw.xgroup_create(_STREAM, "workers", "0", mkstream=True)
        self._fill_raw(self.load.bulk)
        with _Stopwatch() as watch:
            while reply := self._raw.xreadgroup("workers", "me", {_STREAM: ">"}, count=_BATCH):
                entries = [entry for entry, _ in reply[0][1]]
                pipe = self._raw.pipeline(transaction=False)
                pipe.xack(_STREAM, "workers", *entries).xdel(_STREAM, *entries)
                pipe.execute()
        return self.load.bulk / watch.seconds

    async def submit(self, callers: int) -> float:
        """Submissions a second of so many coroutines that submit one by one."""
        async with self._app():
            numbers = iter(range(self.load.one_by_one))

            async def call() -> None:
                for number in numbers:
                    await Noop(number).schedule()

            with _Stopwatch() as watch:
                await asyncio.gather(*(call() for _ in range(callers)))
        return self.load.one_by_one / watch.seconds

    async def submit_many(self) -> float:
        """Submissions a second in bulk."""
        async with self._app() as app:
            with _Stopwatch() as watch:
                await app.submit_many(map(Noop, range(self.load.bulk)))
        return self.load.bulk / watch.seconds

    async def drain(self, task: Callable[[int], BaseTask], result_ttl: str = "3600") -> float:
        """Tasks a second of one SMALL worker, from its first settle to its last."""
        async with self._app() as app:
            ids = await app.submit_many(map(task, range(self.load.drain)))
        with self._worker(NONET_RESULT_TTL=result_ttl):
            await self._until(lambda: self._left() < self.load.drain)
            at_start = self._left()
            with _Stopwatch() as watch:
                await self._until(lambda: self._left() == 0)
        ended = self._raw.mget(f"{{nonet}}:r:{id}" for id in ids)
        assert all(result.startswith(b"done|") for result in ended)
        return at_start / watch.seconds

    async def latency(self) -> float:
        """Median time from submit to the start of the body, with an idle worker, in ms."""
        times = []
        async with self._app() as app:
            with self._worker():
                await app.result(await Stamp(0).schedule(), timeout=_READY_SECONDS)
                for slot in range(self.load.latency):
                    stamp(slot, 0)
                    await asyncio.sleep(random.uniform(0.002, 0.01))  # let it go to sleep
                    start = time.monotonic_ns()
                    await Stamp(slot).schedule()
                    await self._until(partial(stamped, slot))
                    times.append((stamped(slot) - start) / 1e6)
        self._p99 = statistics.quantiles(times, n=100)[98]
        return statistics.median(times)

    async def latency_p99(self) -> float:
        """Of the measurement before."""
        return self._p99

    def _app(self) -> Nonet:
        """An application on an empty Redis, which was used before: locks need no rest."""
        self._raw.flushall()
        self._raw.hset("{nonet}:epoch", mapping={"since": 1, "seq": 1, "calm": 0})
        return Nonet.from_settings(redis_url=self._url, tasks=("bench_tasks",))

    def _left(self) -> int:
        return int(self._raw.xlen(_STREAM))

    def _fill_raw(self, count: int) -> None:
        for start in range(0, count, _BATCH):
            pipe = self._raw.pipeline(transaction=False)
            for number in range(start, start + _BATCH):
                pipe.xadd(_STREAM, _entry(number))
            pipe.execute()

    @staticmethod
    async def _until(done: Callable[[], int]) -> None:
        async with asyncio.timeout(_READY_SECONDS):
            while not done():  # noqa: ASYNC110  # it happens in another process
                await asyncio.sleep(0.001)

    @contextmanager
    def _worker(self, **settings: str) -> Iterator[None]:
        """One ``task-worker`` process."""
        log = self._home / "worker.log"
        environment = {
            **os.environ,
            "NONET_REDIS_URL": self._url,
            "NONET_STATE_DIR": str(self._home),
            "PYTHONPATH": str(_HERE),
            **settings,
        }
        command = Path(sys.executable).with_name("task-worker")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [command, "--size", "small", "--concurrency", "100", "--tasks", "bench_tasks"],
                env=environment,
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            yield
        except TimeoutError:
            sys.stderr.write(log.read_text(errors="replace"))
            raise
        finally:
            process.terminate()
            process.wait()


class _Stopwatch:
    seconds = 0.0

    def __enter__(self) -> _Stopwatch:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start


def _entry(number: int) -> dict[str, bytes]:
    # As much as an envelope of Noop has.
    return {"id": b"%032d" % number, "envelope": b"x" * 80}


def machine(url: str) -> dict[str, str]:
    """What the numbers depend on, without saying whose machine it is."""
    with redis.Redis.from_url(url) as client:
        server = client.info("server")["redis_version"]
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "redis": str(server),
        "redis-py": redis.__version__,
    }


def table(rows: list[Row], facts: dict[str, str]) -> str:
    """The rows for people, as a Markdown table."""
    by_name = {row.name: row for row in rows}
    lines = ["| row | median | rounds | compared |", "|---|---:|---|---|"]
    for row in rows:
        digits = 2 if row.unit == "ms" else 0
        values = " ".join(f"{value:,.{digits}f}" for value in row.rounds)
        ratio = f"{row.ratio(by_name[row.limit]):.2f} x {row.limit}" if row.limit else ""
        lines.append(f"| {row.name} | {row.median:,.{digits}f} {row.unit} | {values} | {ratio} |")
    return "\n".join([*lines, "", ", ".join(f"{name} {fact}" for name, fact in facts.items())])


async def measure(rows: list[Row], rounds: int) -> None:
    """Fill in the rounds of all rows, one round after the other."""
    for number in range(rounds):
        for row in rows:
            row.rounds.append(await row.measure())
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each row is measured")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of a table")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name in [name for name in os.environ if name.startswith("NONET_")]:
        del os.environ[name]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="nonet-bench-") as directory:
        home = Path(directory)
        os.chdir(home)  # no .env of the caller
        (home / "stamps").write_bytes(bytes(8 * Load.latency))
        os.environ[bench_tasks.STAMPS] = str(home / "stamps")
        with open_embedded(home) as server:
            rows = Bench(server.url, home, Load()).rows()
            asyncio.run(measure(rows, options.rounds))
            facts = machine(server.url)
    if options.json:
        found = {
            row.name: {"unit": row.unit, "median": row.median, "rounds": row.rounds} for row in rows
        }
        print(json.dumps({"machine": facts, "rows": found}))
    else:
        print(table(rows, facts))


if __name__ == "__main__":
    main()
