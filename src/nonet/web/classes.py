"""What the pages and the API tell of task classes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from nonet.operate.queues import active_of
from nonet.rules.figures import ClassFigures, Figures
from nonet.rules.pauses import of_task
from nonet.web.site import Site

_HOUR = timedelta(hours=1)
# A read takes a command for each minute.
_SECONDS = 30.0
# Names of figures that are no classes.
_NO_CLASSES = ("unknown", "others")


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """A task class and its last hour.

    Attributes:
        name: full name, ``category:Class``; or ``unknown`` and ``others``, see `ClassFigures`.
        is_known: whether this process has loaded it.
        active: its tasks that have not ended, by stream.
        paused: what keeps its tasks from starting: ``all``, ``task:NAME`` or empty.
        ended_per_minute: its tasks that workers ended.
        total: the figures of the last hour.
    """

    name: str
    is_known: bool
    active: dict[str, int]
    paused: str = ""
    ended_per_minute: float = 0.0
    total: Figures = Figures()  # noqa: RUF009  # it is immutable

    @property
    def failed_share(self) -> float | None:
        """The part of the ended tasks that failed for good; None: none ended."""
        return self.total.failed / self.total.ended if self.total.ended else None

    @property
    def is_class(self) -> bool:
        """Whether it is a class rather than a sum of others."""
        return self.name not in _NO_CLASSES


async def figures_of(site: Site) -> dict[str, ClassFigures]:
    """Return the figures of the last hour by class, read at most every half minute."""
    read = partial(site.nonet.stores.history.figures, since=_HOUR)
    found = await site.shared.read(("classes",), _SECONDS, read)
    return {item.name: item for item in found}


async def summaries(site: Site) -> list[ClassSummary]:
    """Return the classes that this process knows, or that have tasks or figures, by name."""
    figures, pauses = await figures_of(site), await site.read(site.nonet.stores.controls.load)
    measured = await site.shared.read(("queues",), 2.0, site.nonet.stores.measures.figures)
    active: dict[str, Counter[str]] = {}
    for (task, stream), number in active_of(measured).items():
        active.setdefault(task, Counter())[stream] = number
    known = {item.name for item in site.nonet.registry}
    names = known | figures.keys() | active.keys()

    def summary(name: str) -> ClassSummary:
        pause, found = of_task(pauses, "", name), figures.get(name)
        common = name, name in known, dict(active.get(name, {})), pause.what if pause else ""
        if found is None:
            return ClassSummary(*common)
        return ClassSummary(*common, found.ended_per_minute, found.total)

    return [summary(name) for name in sorted(names)]
