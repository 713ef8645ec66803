"""Child processes: a supervisor starts them, reads their output, restarts and stops them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Self

from nonet.base.orphans import dying_with_me

_ENTRY_POINTS = {
    "task-worker": "from nonet_worker import main; main()",
    "task-scheduler": "from nonet.cli.entry import schedule; schedule()",
    "task-web": "from nonet.cli.entry import serve; serve()",
}
_LONGEST_LINE = 1 << 24
# How long to read the last lines of a process: what it has started may hold its output open.
_LAST_LINES_SECONDS = 1.0
# How long processes may take to end after a second request.
_FORCED_SECONDS = 5.0
LONGEST_STOP_SECONDS = 2 * _FORCED_SECONDS
"""How long `stop_all` may take beyond its `seconds`."""

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 30.0
# After the crash of a process that lived this long, begin again with the shortest pause.
_HEALTHY_SECONDS = 60.0


def daemon_command(script: str, *options: str) -> list[str]:
    """Return the command line that runs a daemon with this interpreter.

    Args:
        script: its console script, such as ``task-worker``.
    """
    # Like a console script, `-P` does not import modules from the working directory.
    return [sys.executable, "-P", "-c", _ENTRY_POINTS[script], *options]


class ChildProcess:
    """A process that this one has started. It is killed when this one ends.

    Attributes:
        is_ready: whether it has logged that it is ready.
        is_leaving: whether it was asked to stop.
        started_at: monotonic time.
    """

    def __init__(self, process: asyncio.subprocess.Process, hear: Callable[[str], None]) -> None:
        self.is_ready = self.is_leaving = False
        self.started_at = time.monotonic()
        self._process = process
        self._reading = asyncio.create_task(self._read(hear), name=f"output of {process.pid}")

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        hear: Callable[[str], None],
        fds: Sequence[int] = (),
    ) -> Self:
        """Start a process.

        Args:
            command: the path of a program, and its arguments.
            environment: its variables.
            hear: called with each line that it writes.
            fds: descriptors that it inherits.
        """
        process = await asyncio.create_subprocess_exec(
            *dying_with_me(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=fds,
            limit=_LONGEST_LINE,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the others
        )
        return cls(process, hear)

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
        """Kill it with its process group, unless it has ended: another process may have its id."""
        if self.code is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait until it has ended and its last lines were read; return its exit code."""
        code = await self._process.wait()
        await asyncio.wait({self._reading}, timeout=_LAST_LINES_SECONDS)
        self._reading.cancel()
        return code

    async def _read(self, hear: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        async for data in self._process.stdout:
            line = data.decode("utf-8", "replace").rstrip("\r\n")
            self.is_ready = self.is_ready or " ready: " in line
            hear(line)


async def all_ended(children: Sequence[ChildProcess], seconds: float) -> bool:
    """Wait until processes have ended, at most for some seconds; return whether they have."""
    if not children:
        return True
    waiting = [asyncio.create_task(child.wait()) for child in children]
    _, left = await asyncio.wait(waiting, timeout=seconds)
    for task in left:
        task.cancel()
    return not left


async def stop_all(children: Sequence[ChildProcess], seconds: float, forced: asyncio.Event) -> None:
    """Stop processes: ask them to drain, then to end at once, then kill them.

    Args:
        seconds: how long the drain may take.
        forced: ends the drain early when it is set.
    """
    for child in children:
        if not child.is_leaving:
            child.stop()
    ending = asyncio.create_task(all_ended(children, seconds))
    hurrying = asyncio.create_task(forced.wait())
    await asyncio.wait({ending, hurrying}, return_when=asyncio.FIRST_COMPLETED)
    for task in (ending, hurrying):
        task.cancel()
    for child in children:
        child.stop()
    await all_ended(children, _FORCED_SECONDS)
    for child in children:
        child.kill()
    await all_ended(children, _FORCED_SECONDS)


class Backoff:
    """A pause after each crash, which doubles while the replacements crash soon, too.

    Attributes:
        until: start no process before this time (seconds of a steady clock).
    """

    def __init__(self) -> None:
        self.until = 0.0
        self._failures = 0

    def crashed(self, lived: float, now: float) -> float:
        """Record that a process crashed after `lived` seconds; return how long to wait.

        Crashes during one pause count once: they probably share a cause.
        """
        if now >= self.until:
            self._failures = 1 if lived >= _HEALTHY_SECONDS else self._failures + 1
            doubled = _FIRST_SECONDS * 2 ** min(self._failures - 1, 16)
            self.until = now + min(_LONGEST_SECONDS, doubled)
        return self.until - now
