"""What is configured for a pipeline now: `options_of`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nonet.rules.pipelines import BY_CONFIGURATION

if TYPE_CHECKING:
    from nonet.config.models import PipelineConfig
    from nonet.pipelines.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The attributes of a pipeline that the configuration can replace.

    Attributes:
        workers: how many rows one process processes at once.
        interval: seconds until a processed row is due again.
        queue: how many rows are leased in advance at most; None: twice `workers`.
        paused: why no row is fetched; empty if rows are.
    """

    workers: int
    interval: float
    queue: int | None
    paused: str = ""


def options_of(
    cls: type[Pipeline[Any]], configured: PipelineConfig | None, pause: str
) -> PipelineOptions:
    """Combine the attributes of a pipeline with its section of the configuration.

    Args:
        configured: its section; None: there is none.
        pause: who paused it by a command; empty: it is not paused by one.
    """
    workers, interval, queue = cls.workers, cls.interval, cls.queue
    if configured is not None:
        workers = configured.workers or workers
        interval = interval if configured.interval is None else configured.interval
        queue = configured.queue or queue
        pause = pause or (BY_CONFIGURATION if configured.pause else "")
    return PipelineOptions(workers, interval, queue, pause)
