"""The daemons of a system: how each is started, watched and stopped."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nonet.dev.log import Lines, MergedLog
from nonet.stores.connection.guardian import die_with_me

_READ_BYTES = 65_536
# How long to read the last lines of a process: what it has started may hold its output open.
_LAST_LINES_SECONDS = 1.0
# A link in the log of task-web, by which one browser logs in.
_LINK = re.compile(r"http://\S+/login\?code=[\w-]+")
_WORKER = "from nonet_worker import main; main()"


@dataclass(frozen=True)
class Program:
    """A daemon that can be started.

    Attributes:
        name: a short one, which its log lines begin with.
        code: Python code that runs it, as its console script does.
        options: of its command line.
        is_alone: a second one cannot run beside the first.
    """

    name: str
    code: str
    options: tuple[str, ...] = ()
    is_alone: bool = False


def worker(size: str) -> Program:
    """Return the program of a worker."""
    return Program(size, _WORKER, ("--size", size))


def pipelines(names: Sequence[str]) -> Program:
    """Return the program of a worker that runs pipelines."""
    return Program("rows", _WORKER, ("--pipelines", ",".join(names)))


def scheduler() -> Program:
    """Return the program of a scheduler."""
    return Program("sched", "from nonet.cli.entry import schedule; schedule()")


def dashboard(host: str, port: int) -> Program:
    """Return the program of a dashboard."""
    options = ("--host", host, "--port", str(port))
    return Program("web", "from nonet.cli.entry import serve; serve()", options, is_alone=True)


class Process:
    """A daemon that runs.

    Attributes:
        program: what it runs.
        is_ready: whether it has logged that it is ready.
        is_leaving: whether it was asked to stop.
    """

    def __init__(self, program: Program, process: asyncio.subprocess.Process) -> None:
        self.program = program
        self.is_ready = self.is_leaving = False
        self._process = process
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, program: Program, environment: Mapping[str, str], log: MergedLog
    ) -> Process:
        """Start a program, whose lines go to `log`."""
        command = [sys.executable, "-P", "-c", program.code, *program.options]
        process = cls(program, await start(command, environment))
        process._reading = asyncio.create_task(process._read(log), name=f"log of {program.name}")
        return process

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    def stop(self) -> None:
        """Ask it to drain; the second time, to end at once."""
        self.is_leaving = True
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Kill it with its process group, unless it has ended: others may have its id now."""
        kill_group(self._process)

    async def wait(self) -> None:
        """Wait until it has ended and its last lines were written."""
        await self._process.wait()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_LAST_LINES_SECONDS)
            self._reading.cancel()

    async def _read(self, log: MergedLog) -> None:
        async for line in lines_of(self._process):
            if link := _LINK.search(line):
                log.say(f"dashboard, by a link for one login: {link[0]}")
                continue
            self.is_ready = self.is_ready or " ready: " in line
            log.add(self.program.name, line)


async def start(
    command: Sequence[str], environment: Mapping[str, str], fds: Sequence[int] = ()
) -> asyncio.subprocess.Process:
    """Start a process whose output is a pipe. Ctrl-C does not reach it; it dies with this one."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        pass_fds=fds,
        start_new_session=True,
        preexec_fn=die_with_me(),
    )


def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill a process that `start` has started, and what it has started."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


async def lines_of(process: asyncio.subprocess.Process) -> AsyncIterator[str]:
    """Yield the lines that a process writes, until its output is closed."""
    assert process.stdout is not None
    lines, data = Lines(), b"-"
    while data:
        data = await process.stdout.read(_READ_BYTES)
        for line in lines.feed(data):
            yield line


async def all_ended(processes: Sequence[Process], seconds: float) -> bool:
    """Wait until processes have ended, at most for some seconds; return whether they have."""
    if not processes:
        return True
    waiting = [asyncio.create_task(process.wait()) for process in processes]
    _, left = await asyncio.wait(waiting, timeout=seconds)
    for task in left:
        task.cancel()
    return not left
