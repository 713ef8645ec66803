"""Start the scheduler and the workers of the demo, watch them, and stop them."""

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
