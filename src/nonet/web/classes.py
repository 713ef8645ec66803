"""What the pages and the API tell of task classes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from nonet.operate.overview import active_of
from nonet.rules.figures import ClassFigures, Times
from nonet.rules.pauses import of_task
from nonet.rules.permissions import Action, Principal
from nonet.web.pauses import pauses_of
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
        failed_share: the part of them that failed for good; None: none ended.
        ended, failed, retried: their numbers in the last hour.
        wait, run: how long tasks waited, and attempts ran.
    """

    name: str
    is_known: bool
    active: dict[str, int]
    paused: str = ""
    ended_per_minute: float = 0.0
    failed_share: float | None = None
    ended: int = 0
    failed: int = 0
    retried: int = 0
    wait: Times = Times()  # noqa: RUF009  # it is immutable
    run: Times = Times()  # noqa: RUF009

    @property
    def is_class(self) -> bool:
        """Whether it is a class rather than a sum of others."""
        return self.name not in _NO_CLASSES


async def figures_of(site: Site) -> dict[str, ClassFigures]:
    """Return the figures of the last hour by class, read at most every half minute."""
    read = partial(site.nonet.stores.history.figures, since=_HOUR)
    found = await site.shared.read(("classes",), _SECONDS, read)
    return {item.name: item for item in found}


async def summaries(site: Site, who: Principal) -> list[ClassSummary]:
    """Return the classes that this process knows, or that have tasks or figures, by name.

    A principal that is scoped to classes sees those only.
    """
    figures, pauses = await figures_of(site), await pauses_of(site)
    measured = await site.shared.read(("queues",), 2.0, site.nonet.stores.measures.figures)
    active: dict[str, Counter[str]] = {}
    for (task, stream), number in active_of(measured).items():
        active.setdefault(task, Counter())[stream] = number
    known = {item.name for item in site.nonet.registry}
    names = {name for name in known | figures.keys() | active.keys() if who.may(Action.READ, name)}

    def summary(name: str) -> ClassSummary:
        pause, found = of_task(pauses, "", name), figures.get(name)
        common = name, name in known, dict(active.get(name, {})), pause.what if pause else ""
        if found is None:
            return ClassSummary(*common)
        total = found.total
        return ClassSummary(
            *common,
            ended_per_minute=found.ended_per_minute,
            failed_share=total.failed / total.ended if total.ended else None,
            ended=total.ended,
            failed=total.failed,
            retried=total.retried,
            wait=total.wait,
            run=total.run,
        )

    return [summary(name) for name in sorted(names)]
