"""`TaskRun`: the real ``task-run`` in a process of its own, on an empty namespace."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import redis
from preloaded import Preloaded, may_be_preloaded, shim
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet import Nonet, Size
from nonet.daemon.service import Stop

NAMESPACE = "cli"
_TESTS = Path(__file__).parent.parent
_SCRIPTS = Path(sys.executable).parent


@dataclass(frozen=True)
class Ended:
    """What a command said and with which code it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one line of JSON on stdout."""
        (line,) = self.out.splitlines()
        return json.loads(line)


class TaskRun:
    """Calls ``task-run`` with the settings of one test.

    Attributes:
        environment: ``NONET_…`` variables of all calls.
        redis: a synchronous client.
    """

    def __init__(self, redis_server: RedisServer, home: Path) -> None:
        self.redis: redis.Redis = redis_server.client()
        self.home = home
        self._started: list[asyncio.subprocess.Process | Preloaded] = []
        self.environment = {
            "NONET_REDIS_URL": redis_server.url,
            "NONET_NAMESPACE": NAMESPACE,
            "NONET_STATE_DIR": str(home / "state"),
            "NONET_TASKS": "cli.errands",
            "NONET_LOCK_TTL": "6",  # a lost lock is noticed after a third of it
        }

    async def __call__(
        self, *arguments: object, script: str = "task-run", input: str = "", **environment: str
    ) -> Ended:
        """Run to the end; other keywords are variables beside those of the test."""
        if may_be_preloaded(script, environment):
            return await self._run(script, *arguments, input=input, **environment)
        process = await self.start(*arguments, script=script, **environment)
        async with asyncio.timeout(WAIT_SECONDS):
            out, err = await process.communicate(input.encode())
        return Ended(process.returncode or 0, out.decode(), err.decode())

    async def start(
        self, *arguments: object, script: str = "task-run", **environment: str
    ) -> asyncio.subprocess.Process:
        """Start a command beside the test."""
        command, more = [self.script(script)], dict[str, str]()
        if may_be_preloaded(script, environment):
            command, more = shim(script)
        process = await asyncio.create_subprocess_exec(
            *command,
            *map(str, arguments),
            env={**self.variables(environment), **more},
            cwd=self.home,  # no stray .env
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self._started.append(process)
        return process

    def script(self, name: str) -> str:
        """The path of a console script."""
        return str(_SCRIPTS / name)

    async def _run(self, script: str, *arguments: object, input: str, **environment: str) -> Ended:
        """The same as a start and its end, without the imports of a start."""
        with ExitStack() as opened:
            given, out, err = (opened.enter_context(TemporaryFile()) for _ in range(3))
            given.write(input.encode())
            given.seek(0)
            process = Preloaded(
                [self.script(script), *map(str, arguments)],
                environment=self.variables(environment),
                cwd=self.home,
                stdin=given,
                stdout=out,
                stderr=err,
            )
            self._started.append(process)
            code = await asyncio.to_thread(process.wait, WAIT_SECONDS)
            out.seek(0)
            err.seek(0)
            return Ended(code, out.read().decode(), err.read().decode())

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of a call."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NONET_")}
        for name in ("PYTHONDONTWRITEBYTECODE", "COLUMNS"):
            kept.pop(name, None)
        return {**kept, "PYTHONPATH": str(_TESTS), **self.environment, **environment}

    def close(self) -> None:
        """Leave nothing behind of a test that failed."""
        for process in self._started:
            if process.returncode is None:
                os.kill(process.pid, signal.SIGKILL)
        self.redis.close()

    def app(self) -> Nonet:
        """The application of this process, not yet open."""
        names = {name.removeprefix("NONET_").lower() for name in self.environment}
        return Nonet.from_settings(
            **{name: self.environment[f"NONET_{name.upper()}"] for name in names}
        )

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Nonet]:
        """An open application with a worker for small tasks, in this process."""
        stop = Stop()
        async with self.app() as app, app.injector() as injector:
            running = asyncio.create_task(app.worker(Size.SMALL, injector).run(stop))
            workers = f"{{{NAMESPACE}}}:workers"
            try:
                await until(lambda: self.redis.zcard(workers), "the worker is registered")
                yield app
            finally:
                stop.request()
                await running

    def keys(self, pattern: str = "*") -> set[str]:
        """Names of keys, without the namespace, but for the one that the fixture has made."""
        prefix = f"{{{NAMESPACE}}}:"
        found = {key.removeprefix(prefix) for key in self.redis.keys(prefix + pattern)}
        return found - {"epoch"}


async def until_written(path: Path) -> str:
    """Wait until a task has written a file; its text."""
    return await until(lambda: path.exists() and path.read_text(), f"{path.name} is written")
