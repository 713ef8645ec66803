"""The place of a measurement: its own Redis, its own daemons, and counters of what they use."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis
from probe import FILE, WORKER, Probe

from nonet import Nonet
from nonet.base.keys import LAYOUT
from nonet.stores.connection.embedded import find_server

_HERE = Path(__file__).resolve().parent
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_READY_SECONDS = 20
_STOP_SECONDS = 5
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Counters:
    """The work of the server since it started.

    Attributes:
        commands: executed commands, including those that scripts call.
        reads: socket reads, which approximate round trips.
        cpu: seconds of CPU time.
        memory: bytes in use.
    """

    commands: int
    reads: int
    cpu: float
    memory: int


class Daemon:
    """A process started for a measurement."""

    def __init__(
        self, command: list[str], environment: dict[str, str], log: Path, cwd: Path | None = None
    ) -> None:
        self._log = log
        self.started_ns = time.time_ns()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=cwd or log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C must not reach the daemon
            )

    def cpu(self) -> float:
        """Seconds of CPU time used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss(self) -> int:
        """Bytes of memory in use."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * _PAGE

    def check(self) -> None:
        """Raise `RuntimeError` if the process has ended."""
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"a daemon ended with {code}:\n{self.said()}")

    def said(self) -> str:
        """Return the end of its log."""
        return self._log.read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        """Terminate the process; kill it if it does not end."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Place:
    """A server, a probe and daemons; all of them are removed at the end of the block.

    Args:
        capacity: number of tasks; they are numbered from 0.
    """

    def __init__(self, capacity: int) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="nonet-bench-"))
        self._daemons: list[Daemon] = []
        self.probe = Probe(self._probe_path, capacity)
        port = _free_port()
        self.url = f"redis://127.0.0.1:{port}/0"
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command = [find_server(), *options, "--dir", str(self._home)]
        self._server = Daemon(command, {**os.environ}, self._home / "server.log")
        self.raw = redis.Redis.from_url(self.url, protocol=2)

    def __enter__(self) -> Self:
        try:
            self._wait_for_server()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self._daemons:
            daemon.stop()
        self.raw.close()
        self._server.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def fresh(self) -> None:
        """Empty the server and the probe.

        The server is marked as used before, because a new Redis grants no locks for some seconds.
        """
        self.raw.flushall()
        self.raw.hset("{nonet}:epoch", mapping={"since": 1, "seq": 1, "layout": LAYOUT})
        self.probe.clear()

    def app(self, **settings: Any) -> Nonet:
        """Return an application that is not open yet."""
        return Nonet.from_settings(redis_url=self.url, tasks=("bench_tasks",), **settings)

    @contextmanager
    def worker(self, *options: str, number: int = 1, **settings: str) -> Iterator[Daemon]:
        """Start a ``task-worker``; by default size small with 100 slots."""
        options = options or ("--size", "small", "--concurrency", "100")
        with self._daemon("task-worker", options, number, settings) as daemon:
            yield daemon

    @contextmanager
    def scheduler(self) -> Iterator[Daemon]:
        """Start a ``task-scheduler``."""
        with self._daemon("task-scheduler", (), 0, {}) as daemon:
            yield daemon

    def counters(self) -> Counters:
        """Return the counters of the server; the query itself adds one command and one read."""
        info = self.raw.info("all")
        commands = sum(v["calls"] for k, v in info.items() if k.startswith("cmdstat_"))
        cpu = info["used_cpu_user"] + info["used_cpu_sys"]
        return Counters(commands, info["total_reads_processed"], cpu, info["used_memory"])

    def watch_commands(self) -> None:
        """Begin to record the commands that take longer than a millisecond."""
        self.raw.config_set("slowlog-log-slower-than", 1000)
        self.raw.slowlog_reset()

    def longest_command(self) -> float:
        """Return the milliseconds of the longest command since `watch_commands`; 1 if none is."""
        return max((entry["duration"] / 1000 for entry in self.raw.slowlog_get(128)), default=1.0)

    def version(self) -> str:
        """Return the version of the server."""
        return str(self.raw.info("server")["redis_version"])

    async def until(self, done: Callable[[], bool], seconds: float = _READY_SECONDS) -> None:
        """Wait until another process has fulfilled a condition.

        Raises:
            RuntimeError: the time ran out, or a daemon ended.
        """
        deadline = time.monotonic() + seconds
        while not done():
            for daemon in self._daemons:
                daemon.check()
            if time.monotonic() > deadline:
                logs = "\n".join(daemon.said() for daemon in self._daemons)
                raise RuntimeError(f"not done after {seconds:g} s:\n{logs}")
            await asyncio.sleep(_POLL_SECONDS)

    @contextmanager
    def _daemon(
        self, name: str, options: tuple[str, ...], number: int, settings: dict[str, str]
    ) -> Iterator[Daemon]:
        environment = {
            **os.environ,
            "NONET_REDIS_URL": self.url,
            "NONET_STATE_DIR": str(self._home),
            "NONET_TASKS": "bench_tasks",
            "PYTHONPATH": str(_HERE),
            FILE: str(self._probe_path),
            WORKER: str(number),
            **settings,
        }
        command = [str(Path(sys.executable).with_name(name)), *options]
        daemon = Daemon(command, environment, self._home / f"{name}-{number}.log")
        self._daemons.append(daemon)
        try:
            yield daemon
        finally:
            self._daemons.remove(daemon)
            daemon.stop()

    @property
    def _probe_path(self) -> Path:
        return self._home / "probe"

    def _wait_for_server(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            self._server.check()
            try:
                self.raw.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
