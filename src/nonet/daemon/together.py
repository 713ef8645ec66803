"""Several daemons in one process: a worker, and the pipelines beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from nonet.daemon.answer import Page
from nonet.daemon.health import Observed, Report
from nonet.daemon.service import ExitCode, Stop
from nonet.telemetry.metrics import Sample


class Daemon(Observed, Protocol):
    """One of them."""

    async def run(self, stop: Stop) -> ExitCode:
        """Run until a stop is requested, then drain."""


class Together:
    """What probes and metrics show of several daemons."""

    def __init__(self, daemons: Sequence[Observed]) -> None:
        self._daemons = daemons

    def report(self) -> Report:
        """Ready if all of them are."""
        reports = [daemon.report() for daemon in self._daemons]
        reasons = [reason for report in reports for reason in report.reasons]
        details: dict[str, Any] = {}
        for report in reversed(reports):  # the first one names the process
            details |= report.details
        return Report(all(report.ready for report in reports), reasons, details)

    def stuck(self) -> Sequence[str]:
        """Why one of them makes no progress."""
        return [why for daemon in self._daemons for why in daemon.stuck()]

    def samples(self) -> Iterator[Sample]:
        """The metrics of all."""
        for daemon in self._daemons:
            yield from daemon.samples()

    def pages(self) -> Mapping[str, Page]:
        """The pages of all."""
        return {path: page for daemon in self._daemons for path, page in daemon.pages().items()}


async def run_together(daemons: Sequence[Daemon], stop: Stop) -> ExitCode:
    """Run daemons until a stop is requested; if one cannot start, drain the others.

    Returns:
        The largest exit code.

    Raises:
        NonetError: the first error that ended a daemon.
    """
    running = [asyncio.create_task(daemon.run(stop)) for daemon in daemons]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        stop.requested.set()  # else one has failed, or ended by itself
        return max(await asyncio.gather(*running))
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
