"""Several daemons in one process: a worker and the pipelines beside it, or some namespaces."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

from nonet.daemon.health import Answer, Observed, Page, Report
from nonet.daemon.service import ExitCode, Stop
from nonet.telemetry.metrics import Sample
from nonet.telemetry.speaker import speak_for


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
        """The pages of all; numbers of several namespaces are added up."""
        found: dict[str, list[Page]] = {}
        for daemon in self._daemons:
            for path, page in daemon.pages().items():
                found.setdefault(path, []).append(page)
        return {path: partial(_sum, pages) for path, pages in found.items()}


def _sum(pages: Sequence[Page], accept: str) -> Answer:
    """Add up the numbers of some pages by their names, or return the first that failed."""
    answers = [page(accept) for page in pages]
    failed = [answer for answer in answers if answer.status != HTTPStatus.OK]
    if failed or len(answers) == 1:
        return (failed or answers)[0]
    total: Counter[str] = Counter()
    for answer in answers:
        total.update(json.loads(answer.content))
    return Answer.json(dict(total))


class InNamespace:
    """A daemon that says in its reasons and metrics of which namespace it is."""

    def __init__(self, daemon: Observed, namespace: str) -> None:
        self._daemon = daemon
        self._namespace = namespace

    def report(self) -> Report:
        """That of the daemon."""
        found = self._daemon.report()
        reasons = [f"{self._namespace}: {reason}" for reason in found.reasons]
        return Report(found.ready, reasons, found.details)

    def stuck(self) -> Sequence[str]:
        """That of the daemon."""
        return [f"{self._namespace}: {why}" for why in self._daemon.stuck()]

    def samples(self) -> Iterator[Sample]:
        """Those of the daemon, with a further label; see `nonet.telemetry.exposition`."""
        for name, labels, value in self._daemon.samples():
            yield name, (*labels, self._namespace), value

    def pages(self) -> Mapping[str, Page]:
        """Those of the daemon."""
        return self._daemon.pages()


def observed(daemons: Sequence[tuple[str, Observed]]) -> Together:
    """Return what probes and metrics show of daemons, given with their namespaces."""
    if len({namespace for namespace, _ in daemons}) == 1:
        return Together([daemon for _, daemon in daemons])
    return Together([InNamespace(daemon, namespace) for namespace, daemon in daemons])


async def run_together(daemons: Sequence[tuple[str, Daemon]], stop: Stop) -> ExitCode:
    """Run daemons until a stop is requested; if one cannot start, drain the others.

    Args:
        daemons: with their namespaces, which their log lines name if there are several.

    Returns:
        The largest exit code.

    Raises:
        NonetError: the first error that ended a daemon.
    """
    are_several = len({namespace for namespace, _ in daemons}) > 1

    async def run(namespace: str, daemon: Daemon) -> ExitCode:
        if are_several:
            speak_for(namespace)
        return await daemon.run(stop)

    running = [asyncio.create_task(run(*each)) for each in daemons]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        stop.requested.set()  # else one has failed, or ended by itself
        return max(await asyncio.gather(*running))
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
