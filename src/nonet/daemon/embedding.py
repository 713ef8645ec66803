"""Daemons inside a program: in its event loop, during an ``async with`` block."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from nonet.base.streams import Size
from nonet.daemon.health import answering_probes
from nonet.daemon.service import Stop
from nonet.daemon.together import Daemon, Together
from nonet.telemetry.log_guard import guard_logging

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
# How long daemons may take to hand back their tasks if the drain is cancelled.
_END_SECONDS = 5.0


class RunningDaemons:
    """The daemons that `Nonet.running` runs.

    Args:
        daemons: workers and a scheduler, by name.

    Example:
        async with app.running(sizes=["small"]) as daemons:
            assert daemons.ready, daemons.reasons
    """

    def __init__(self, daemons: Mapping[str, Daemon]) -> None:
        self._daemons = daemons

    @property
    def ready(self) -> bool:
        """Whether all of them can do their work now, as ``/readyz`` of a daemon reports it."""
        return not self.reasons

    @property
    def reasons(self) -> list[str]:
        """Why they cannot, each with the name of the daemon; empty if they can."""
        return [
            f"{name}: {reason}"
            for name, daemon in self._daemons.items()
            for reason in daemon.report().reasons
        ]


def chosen_sizes(sizes: Iterable[Size | str]) -> list[Size]:
    """Return the sizes that a caller names, each once.

    Raises:
        ValueError: a name is unknown.

    >>> chosen_sizes(["small", Size.LARGE, "small"]), chosen_sizes("medium")
    ([<Size.SMALL: 'small'>, <Size.LARGE: 'large'>], [<Size.MEDIUM: 'medium'>])
    """
    names = [sizes] if isinstance(sizes, str) else list(sizes)
    for name in names:
        if name not in tuple(Size):
            raise ValueError(f"{name!r} is no size: use {', '.join(Size)}")
    return [Size(name) for name in dict.fromkeys(names)]


@asynccontextmanager
async def running_inside(
    daemons: Mapping[str, Daemon], timeout: float | None, address: tuple[str, int] = ("", 0)
) -> AsyncIterator[RunningDaemons]:
    """Run daemons during the block. They are ready when it begins, and drained when it has ended.

    If one fails meanwhile, the block is cancelled, and its error raised at the end.

    Args:
        timeout: seconds that the start may take; None: no limit.
        address: host and port of probes and metrics; port 0 serves none.

    Raises:
        TimeoutError: they are not ready after `timeout` seconds.
    """
    guard_logging("nonet.")
    async with answering_probes(*address, Together(list(daemons.values()))):
        inside = _Inside(daemons)
        try:
            await inside.until_ready(timeout)
            try:
                yield inside.running
            finally:
                inside.raise_failure()
        finally:
            await inside.stop()


class _Inside:
    """Starts, watches and stops daemons beside the current asyncio task."""

    def __init__(self, daemons: Mapping[str, Daemon]) -> None:
        self.running = RunningDaemons(daemons)
        self._stops = {name: Stop() for name in daemons}
        self._tasks = {
            asyncio.create_task(daemon.run(self._stops[name]), name=name)
            for name, daemon in daemons.items()
        }
        self._block: asyncio.Task[object] | None = None
        self._failure: BaseException | None = None
        self._is_cancelled = self._is_stopping = False
        for task in self._tasks:
            task.add_done_callback(self._on_end)

    async def until_ready(self, timeout: float | None) -> None:
        """Wait until all can do their work; after that, a failure cancels the current task."""
        try:
            async with asyncio.timeout(timeout) as limit:
                while not self.running.ready:
                    self.raise_failure()
                    await asyncio.wait(self._tasks, timeout=_POLL_SECONDS)
        except TimeoutError:
            if not limit.expired():  # a daemon failed with a TimeoutError of its own
                raise
            reasons = "; ".join(self.running.reasons)
            raise TimeoutError(f"not ready after {timeout:g} s: {reasons}") from None
        self._block = asyncio.current_task()

    def raise_failure(self) -> None:
        """Raise the error of a daemon, unless the current task is cancelled for another reason."""
        block, self._block = self._block, None
        if self._failure is None:
            return
        if block is None or not self._is_cancelled or block.uncancel() == 0:
            raise self._failure

    async def stop(self) -> None:
        """Drain all; if that is cancelled, let them hand back their tasks at once."""
        self._is_stopping = True
        for stop in self._stops.values():
            stop.drain()
        try:
            await asyncio.wait(self._tasks)
        except asyncio.CancelledError:
            for stop in self._stops.values():
                stop.forced.set()
            await asyncio.wait(self._tasks, timeout=_END_SECONDS)
            raise
        finally:
            for task in self._tasks:
                task.cancel()

    def _on_end(self, task: asyncio.Task[object]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return  # it has drained, or was cancelled
        self._failure = self._failure or error
        if self._block is not None:
            logger.critical("%s failed: cancelling its program", task.get_name(), exc_info=error)
            self._is_cancelled = self._block.cancel() or self._is_cancelled
        elif self._is_stopping:
            logger.error("%s failed while it stopped", task.get_name(), exc_info=error)
