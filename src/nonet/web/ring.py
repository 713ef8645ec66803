"""The last hour of a namespace for charts: a ring of samples that this process takes.

Redis keeps what workers ended, by minutes. How many tasks were queued, running or submitted it
does not keep, so each web process samples that while it lives.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nonet.base.errors import NonetError
from nonet.rules.figures import SlotFigures
from nonet.stores.namespace.figures import Figures
from nonet.stores.stores import Stores

SAMPLE_SECONDS = 10.0
HOUR = timedelta(hours=1)
MINUTES_SECONDS = 30.0  # it takes a command for each minute


@dataclass(frozen=True, slots=True)
class Sample:
    """A namespace at one instant.

    Attributes:
        queued, running, waiting, delayed: how many tasks are in each state.
        submitted: tasks a second that were submitted since the sample before; None: not known.
    """

    at: datetime
    queued: int
    running: int
    waiting: int
    delayed: int
    submitted: float | None


@dataclass(frozen=True, slots=True)
class LastHour:
    """What charts show.

    Attributes:
        since: since when this process takes samples; None: it takes none.
        samples: one for each `SAMPLE_SECONDS`, the oldest first.
        minutes: what workers ended, by minutes, the oldest first.
    """

    since: datetime | None
    samples: tuple[Sample, ...]
    minutes: tuple[SlotFigures, ...]


class Ring:
    """Takes samples while `run` runs.

    Args:
        stores: gives the stores of the namespace.

    Attributes:
        problem: why the last sample could not be taken; empty if it could.
    """

    def __init__(self, stores: Callable[[], Stores]) -> None:
        self._stores = stores
        self._samples: deque[Sample] = deque(maxlen=round(HOUR.total_seconds() / SAMPLE_SECONDS))
        self._accepted: tuple[float, int] | None = None
        self._since: datetime | None = None
        self.problem = ""

    @property
    def submitted(self) -> float | None:
        """Tasks a second that were submitted lately; None: not known."""
        known = [each.submitted for each in list(self._samples)[-6:] if each.submitted is not None]
        return sum(known) / len(known) if known else None

    def last_hour(self, minutes: Sequence[SlotFigures]) -> LastHour:
        """Return the samples, beside what Redis keeps of the same time."""
        return LastHour(self._since, tuple(self._samples), tuple(minutes))

    async def run(self) -> None:
        """Take samples until this is cancelled."""
        self._since = datetime.now(UTC)
        while True:
            try:
                # The count makes submissions a little slower, as metrics of schedulers do.
                self._add(await self._stores().measures.figures(count_accepted=True))
                self.problem = ""
            except (NonetError, TimeoutError) as error:
                self._accepted, self.problem = None, str(error)
            await asyncio.sleep(SAMPLE_SECONDS)

    def _add(self, found: Figures) -> None:
        accepted, now = sum(found.submitted.values()), time.monotonic()
        rate = None
        if self._accepted is not None:
            at, before = self._accepted
            # Fewer than before: Redis has lost its data.
            rate = max(0, accepted - before) / (now - at)
        self._accepted = now, accepted
        streams = found.streams.values()
        self._samples.append(
            Sample(
                at=datetime.now(UTC),
                queued=sum(each.depth - each.in_flight for each in streams),
                running=sum(each.in_flight for each in streams),
                waiting=found.waiting,
                delayed=found.delayed,
                submitted=rate,
            )
        )
