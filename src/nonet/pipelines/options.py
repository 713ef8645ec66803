"""What is configured for a pipeline now: `PipelineOptions`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The attributes of a pipeline that the configuration can replace.

    Attributes:
        workers: how many rows one process processes at once.
        interval: seconds until a processed row is due again.
        queue: how many rows are leased in advance at most; None: twice `workers`.
        paused: no row is fetched.
    """

    workers: int
    interval: float
    queue: int | None
    paused: bool = False
