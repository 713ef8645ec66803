"""Start the scheduler and the workers of the demo, watch them, and stop them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nonet.app import Nonet
from nonet.base.errors import ConfigurationError, NonetError
from nonet.base.streams import Size
from nonet.daemon.service import Stop
from nonet.stores.connection.guardian import die_with_me

_STOP_SECONDS = 4.0
_LOG_LINES = 5
_POLL_SECONDS = 0.1
_READY_SECONDS = 60.0
_Result = TypeVar("_Result")


class StoppedError(NonetError):
    """A signal stopped the demo."""


@dataclass(frozen=True)
class Daemon:
    """A running daemon: its command line, its log and its process."""

    command: str
    log: Path
    process: asyncio.subprocess.Process

    async def ended(self) -> NonetError:
        """Wait until the process ends; return an error with the last log lines as notes."""
        code = await self.process.wait()
        error = NonetError(f"{self.command} ended early, with exit code {code}")
        log = self.log.read_text(encoding="utf-8", errors="replace")
        for line in log.splitlines()[-_LOG_LINES:]:
            error.add_note(line)
        return error


@asynccontextmanager
async def running(
    commands: list[list[str]], settings: Mapping[str, str], directory: Path
) -> AsyncIterator[list[Daemon]]:
    """Run daemons while the block runs; they also end if this process is killed.

    Args:
        commands: command lines of console scripts of this package.
        settings: the ``NONET_`` variables of the daemons.
        directory: for their logs; also their working directory, so that no ``.env`` is read.

    Raises:
        ConfigurationError: a console script is not installed.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("NONET_") and name != "PYTHONDONTWRITEBYTECODE"
    }
    started: list[Daemon] = []
    try:
        for number, command in enumerate(commands, 1):
            log = directory / f"{number}-{command[0]}.log"
            started.append(await _start(command, {**inherited, **settings}, log))
        yield started
    finally:
        await _stop(started)


async def unless_stopped(
    work: Coroutine[Any, Any, _Result], daemons: list[Daemon], stop: Stop
) -> _Result:
    """Do `work`; raise if a daemon ends or a signal arrives first."""
    working = asyncio.create_task(work, name="demo")
    stopped = asyncio.create_task(stop.requested.wait(), name="stop")
    ends = [asyncio.create_task(daemon.ended()) for daemon in daemons]
    tasks = [working, stopped, *ends]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            raise StoppedError("the demo was stopped by a signal")
        for end in ends:
            if end.done():
                raise end.result()
        return working.result()
    finally:
        left = set(tasks)
        # Cancel repeatedly: redis-py sends with `asyncio.wait_for`, which in Python 3.11 loses a
        # cancellation that arrives just before it returns.
        while left:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=_POLL_SECONDS)


async def workers_ready(app: Nonet) -> None:
    """Wait until a worker of each size is registered."""
    deadline = time.monotonic() + _READY_SECONDS
    while {item.size for item in await app.client.results.workers()} != {*Size}:
        if time.monotonic() > deadline:
            raise NonetError(f"no worker of each size was ready within {_READY_SECONDS:g} s")
        await asyncio.sleep(_POLL_SECONDS / 2)


async def _start(command: list[str], environment: Mapping[str, str], log: Path) -> Daemon:
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            _script(command[0]),
            *command[1:],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the daemons
            preexec_fn=die_with_me(),
        )
    return Daemon(" ".join(command), log, process)


def _script(name: str) -> str:
    """Find a console script beside this Python, beside this command, or on PATH."""
    places = [Path(sys.executable).parent, Path(sys.argv[0]).resolve().parent]
    path = os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)])
    if not (found := shutil.which(name, path=path)):
        raise ConfigurationError(
            f"{name} is neither beside {sys.executable} nor on PATH: install Nonet there"
        )
    return found


async def _stop(daemons: list[Daemon]) -> None:
    """Terminate all daemons, and kill those that have not ended after some seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for daemon in daemons:
            with suppress(ProcessLookupError):  # it has ended
                daemon.process.send_signal(number)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                for daemon in daemons:
                    await daemon.process.wait()
