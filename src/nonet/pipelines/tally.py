"""Counts what one pipeline does in this process: `PipelineTally`."""

from __future__ import annotations

from collections import Counter


class PipelineTally:
    """The counters of one pipeline in this process."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.fetches = 0
        self.losses = 0

    def fetched(self, rows: int) -> None:
        """Count a fetch."""
        self.fetches += 1

    def started(self, wait_seconds: float) -> None:
        """Count a row whose processing begins, and how long it had been due."""

    def processed(self, outcome: str, seconds: float) -> None:
        """Count a row that left its worker."""
        self.outcomes[outcome] += 1

    def lost(self) -> None:
        """Count a lost lease."""
        self.losses += 1
