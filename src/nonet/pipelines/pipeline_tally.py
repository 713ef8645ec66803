"""Counts what one pipeline does in this process: `PipelineTally`."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator

from nonet.telemetry.metrics import Histogram, Sample

_WINDOW_SECONDS = 60.0


class PipelineTally:
    """The counters of one pipeline in this process.

    Attributes:
        outcomes: rows that left their worker, by outcome: ``done``, ``failed``, ``dead``,
            ``dying``, ``waiting``, ``handed-back``, ``not-selected``, ``stopped`` or ``lost``.
        fetches: statements that looked for due rows.
        losses: lost leases.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.fetches: int = 0
        self.losses: int = 0
        self.waits: Histogram = Histogram()
        self.runs: Histogram = Histogram()
        # When rows were done in the last minute, and how long each had waited.
        self._done: deque[float] = deque()
        self._waited: deque[tuple[float, float]] = deque()

    def started(self, wait_seconds: float) -> None:
        """Count a row whose processing begins, and how long it had been due."""
        self.waits.observe(wait_seconds)
        self._waited.append((time.monotonic(), wait_seconds))
        while self._waited and self._waited[0][0] < time.monotonic() - _WINDOW_SECONDS:
            self._waited.popleft()

    def processed(self, outcome: str, seconds: float) -> None:
        """Count a row that left its worker."""
        self.outcomes[outcome] += 1
        self.runs.observe(seconds)
        if outcome == "done":
            self._done.append(time.monotonic())

    @property
    def rate(self) -> int:
        """Rows that were done within the last minute."""
        while self._done and self._done[0] < time.monotonic() - _WINDOW_SECONDS:
            self._done.popleft()
        return len(self._done)

    @property
    def wait(self) -> float:
        """Mean seconds from due time to start, over the rows of the last minute."""
        since = time.monotonic() - _WINDOW_SECONDS
        waits = [wait for at, wait in self._waited if at >= since]
        return sum(waits) / len(waits) if waits else 0.0

    def samples(self, name: str) -> Iterator[Sample]:
        """Yield the metrics of the pipeline `name`."""
        for outcome, number in list(self.outcomes.items()):
            yield "nonet_pipeline_processed_total", (name, outcome), number
        yield "nonet_pipeline_fetches_total", (name,), self.fetches
        yield "nonet_pipeline_leases_lost_total", (name,), self.losses
        yield "nonet_pipeline_wait_seconds", (name,), self.waits
        yield "nonet_pipeline_run_seconds", (name,), self.runs
