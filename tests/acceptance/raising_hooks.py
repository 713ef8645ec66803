"""What runs in a scheduler and raises: start-up hooks, or hangs, as a file says."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from acceptance.probe_tasks import passed, passed_blocking

from nonet import BaseTask, startup_hook


class Own(BaseException):
    """An unknown kind of error."""


KINDS: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Own)
}


def _file(name: str) -> Path:
    return Path(os.environ["PROBE_JOURNAL"]).with_name(name)


def _next(name: str) -> str:
    """The first line of a file, which is removed; empty if there is none."""
    path = _file(name)
    first, _, rest = (path.read_text() if path.exists() else "").partition("\n")
    path.write_text(rest)
    with _file("hooks").open("a") as file:
        file.write(f"{name} {first}\n")
    return first


@startup_hook
async def awaited() -> None:
    """Raises what the file ``awaited`` says, or waits at the gate ``gate``."""
    said = _next("awaited")
    if said == "hang":
        await passed(str(_file("gate")))
    elif said == "of a future":
        future = asyncio.get_running_loop().create_future()
        future.set_exception(GeneratorExit())
        await future
    elif said:
        raise KINDS[said]


@startup_hook
def in_thread() -> None:
    """The same in a plain function."""
    said = _next("in_thread")
    if said == "hang":
        passed_blocking(str(_file("gate")))
    elif said:
        raise KINDS[said]


class Idle(BaseTask):
    """A module of tasks has at least one."""

    async def execute(self) -> None: ...
