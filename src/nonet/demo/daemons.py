"""Start the demo's scheduler and workers, notice when one ends early, and stop them all."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nonet.base.errors import ConfigurationError, NonetError
from nonet.stores.connection.guardian import die_with_me

_STOP_SECONDS = 4.0
_LOG_LINES = 5


@dataclass(frozen=True)
class Daemon:
    """A running daemon: its command line, its log and its process."""

    command: str
    log: Path
    process: asyncio.subprocess.Process

    async def ended(self) -> NonetError:
        """Wait until it ends: the error to raise then. Its notes are the last lines of the log."""
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
    """Daemons that live as long as this block, and no longer than this process.

    Args:
        commands: console scripts of this package with their options.
        settings: their only ``NONET_`` variables.
        directory: their working directory, so that no ``.env`` is read; takes their logs.

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
            start_new_session=True,  # Ctrl-C is for us; we stop them in order
            preexec_fn=die_with_me(),
        )
    return Daemon(" ".join(command), log, process)


def _script(name: str) -> str:
    """Path of a console script: beside this Python, beside this command, or on PATH."""
    places = [Path(sys.executable).parent, Path(sys.argv[0]).resolve().parent]
    path = os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)])
    if not (found := shutil.which(name, path=path)):
        raise ConfigurationError(f"{name} is not installed beside {sys.executable} nor on PATH")
    return found


async def _stop(daemons: list[Daemon]) -> None:
    """End all of them, and at the latest kill them; returns when they are gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for daemon in daemons:
            with suppress(ProcessLookupError):  # it has ended
                daemon.process.send_signal(number)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                for daemon in daemons:
                    await daemon.process.wait()
