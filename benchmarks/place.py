"""Where is measured: a Redis of our own, daemons of our own, and what they use."""

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
from nonet.stores.connection.embedded import find_server

_HERE = Path(__file__).resolve().parent
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_READY_SECONDS = 20
_STOP_SECONDS = 5
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Counters:
    """What the server has done since it started.

    Attributes:
        commands: executed ones, those of scripts among them.
        reads: reads of sockets, about as many as round trips.
        cpu: seconds of CPU time.
        memory: bytes in use.
    """

    commands: int
    reads: int
    cpu: float
    memory: int


class Daemon:
    """A process that was started for a measurement."""

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
                start_new_session=True,  # Ctrl-C is for us, who end it in order
            )

    def cpu(self) -> float:
        """Seconds of CPU time used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss(self) -> int:
        """Bytes of memory in use."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * _PAGE

    def check(self) -> None:
        """Raises `RuntimeError` if it has ended."""
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"a daemon ended with {code}:\n{self.said()}")

    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        """End it: ask, then kill."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Place:
    """A server, a probe and daemons; all of it is gone when the block is left.

    Args:
        capacity: the largest number of a task is one less.
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
        """An empty server, and nothing written down.

        The server looks as if it was used before: locks need not rest, as after a loss of Redis.
        """
        self.raw.flushall()
        self.raw.hset("{nonet}:epoch", mapping={"since": 1, "seq": 1, "calm": 0})
        self.probe.clear()

    def app(self, **settings: Any) -> Nonet:
        """An application that is not open yet."""
        return Nonet.from_settings(redis_url=self.url, tasks=("bench_tasks",), **settings)

    @contextmanager
    def worker(self, *options: str, number: int = 1, **settings: str) -> Iterator[Daemon]:
        """A ``task-worker``; without options a small one with 100 slots."""
        options = options or ("--size", "small", "--concurrency", "100")
        with self._daemon("task-worker", options, number, settings) as daemon:
            yield daemon

    @contextmanager
    def scheduler(self) -> Iterator[Daemon]:
        """A ``task-scheduler``."""
        with self._daemon("task-scheduler", (), 0, {}) as daemon:
            yield daemon

    def counters(self) -> Counters:
        """What the server has done so far; asking is counted, too: one command, one read."""
        info = self.raw.info("all")
        commands = sum(v["calls"] for k, v in info.items() if k.startswith("cmdstat_"))
        cpu = info["used_cpu_user"] + info["used_cpu_sys"]
        return Counters(commands, info["total_reads_processed"], cpu, info["used_memory"])

    def version(self) -> str:
        """Of the server."""
        return str(self.raw.info("server")["redis_version"])

    async def until(self, done: Callable[[], bool], seconds: float = _READY_SECONDS) -> None:
        """Wait for what happens in another process.

        Raises:
            RuntimeError: it took longer, or a daemon ended.
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
