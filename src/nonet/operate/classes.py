"""Task classes: which are registered here, and how busy each one is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from nonet.base.errors import NotFoundError
from nonet.operate.lists import ListQuery, Page, Remember, Text, always, cut
from nonet.operate.queues import active_of
from nonet.rules.figures import Figures, FigureSeries
from nonet.rules.pauses import Pause, of_task, task as pause_of
from nonet.tasks.task import PeriodicBaseTask

if TYPE_CHECKING:
    from nonet.stores.stores import Stores
    from nonet.tasks.registry import Registry

_HOUR = timedelta(hours=1)
# A read of the figures takes a command for each class, or for each minute.
_FIGURES_SECONDS, _SECONDS = 30.0, 2.0
# Names of figures that are no classes.
_NO_CLASSES = ("unknown", "others")
Order = Literal["name", "ended", "failed", "active"]


class ClassQuery(ListQuery):
    """Which classes are listed."""

    text: Text = Field(default="", description="Only classes with this in their full name.")


class ActivityQuery(ClassQuery):
    """Which classes are listed, and in which order."""

    order: Order = Field(default="name", description="Sort order.")


@dataclass(frozen=True, slots=True)
class ClassView:
    """A task class as it is declared.

    Attributes:
        name: full name, ``category:Class``.
        priority: of its tasks.
        size: of its tasks.
        retry_policy: when a failed attempt is repeated.
        dlq_eligible: whether failures become dead letters.
        periodic: whether it has a schedule.
        location: where it is defined.
        package: the distribution or module that provides it.
    """

    name: str
    priority: str
    size: str
    retry_policy: str
    dlq_eligible: bool
    periodic: bool
    location: str
    package: str

    @property
    def policy(self) -> str:
        """The retry policy without its arguments."""
        return self.retry_policy.partition("(")[0]


@dataclass(frozen=True, slots=True)
class ClassActivity:
    """A task class and its last hour.

    Attributes:
        name: full name, ``category:Class``; or ``unknown`` and ``others``, see `FigureSeries`.
        is_known: whether this process has loaded it.
        active: its tasks that have not ended, by stream.
        pause: what keeps its tasks from starting; None: nothing does.
        is_paused: whether the class itself is paused, rather than all tasks.
        ended_per_minute: its tasks that workers ended.
        total: the figures of the last hour.
    """

    name: str
    is_known: bool
    active: Mapping[str, int]
    pause: Pause | None
    is_paused: bool
    ended_per_minute: float
    total: Figures

    @property
    def failed_share(self) -> float | None:
        """The part of the ended tasks that failed for good; None: none ended."""
        return self.total.failed / self.total.ended if self.total.ended else None

    @property
    def is_class(self) -> bool:
        """Whether it is a class rather than a sum of others."""
        return self.name not in _NO_CLASSES


async def find(registry: Registry, query: ClassQuery) -> Page[ClassView]:
    """Return the classes that this process has loaded, by name."""

    found = [
        ClassView(
            name=item.name,
            priority=item.cls.priority,
            size=item.cls.size,
            retry_policy=repr(item.cls.retry_policy),
            dlq_eligible=item.cls.dlq_eligible,
            periodic=issubclass(item.cls, PeriodicBaseTask),
            location=item.location,
            package=item.package,
        )
        for item in registry
        if query.text.casefold() in item.name.casefold()
    ]
    return cut(found, query)


async def activity(
    stores: Stores, registry: Registry, query: ActivityQuery, remember: Remember = always
) -> Page[ClassActivity]:
    """Return the classes that are loaded here, or have live tasks or figures."""
    found = await _active(stores, registry, remember)
    found = [item for item in found if query.text.casefold() in item.name.casefold()]
    keys = {
        "name": lambda item: 0,
        "ended": lambda item: -item.total.ended,
        "failed": lambda item: -item.total.failed,
        "active": lambda item: -sum(item.active.values()),
    }
    return cut(sorted(found, key=keys[query.order]), query)


async def get(
    stores: Stores, registry: Registry, name: str, remember: Remember = always
) -> ClassActivity:
    """Return how busy a class is.

    Args:
        name: its full name, or its bare name if it is loaded and unique.

    Raises:
        NotFoundError: it is not loaded here, and no task of it is live or ended in the last hour.
    """
    full = [item.name for item in registry if item.name.rpartition(":")[2] == name]
    name = full[0] if len(full) == 1 else name
    for item in await _active(stores, registry, remember):
        if item.name == name:
            return item
    raise NotFoundError(
        f"{name}: this server has not loaded the class, and no task of it is live or ended in "
        "the last hour: start task-web with --tasks MODULE"
    )


async def _active(stores: Stores, registry: Registry, remember: Remember) -> list[ClassActivity]:
    async def read() -> list[FigureSeries]:
        return await stores.counts.figures(since=_HOUR)

    figures = {item.name: item for item in await remember(("classes",), _FIGURES_SECONDS, read)}
    pauses = await remember(("pauses",), _SECONDS, stores.controls.load)
    measured = await remember(("queues",), _SECONDS, stores.measures.figures)
    active: dict[str, Counter[str]] = {}
    for (name, stream), number in active_of(measured).items():
        active.setdefault(name, Counter())[stream] = number
    known = {item.name for item in registry}

    def one(name: str) -> ClassActivity:
        found = figures.get(name)
        return ClassActivity(
            name,
            name in known,
            dict(active.get(name, {})),
            of_task(pauses, "", name),
            name not in _NO_CLASSES and any(item.what == pause_of(name) for item in pauses),
            found.ended_per_minute if found else 0.0,
            found.total if found else Figures(),
        )

    return [one(name) for name in sorted(known | figures.keys() | active.keys())]
