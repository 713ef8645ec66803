"""Queues: how much is in each stream and outside of them, and what one stream holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nonet.base.streams import Priority, Size
from nonet.operate.lists import Page, Remember, always
from nonet.rules.findings.throughput import StreamLoad, seconds_to_empty
from nonet.rules.pauses import Pause, of_task
from nonet.stores.queue.stream_tasks import StreamTasks

if TYPE_CHECKING:
    from nonet.stores.namespace.figures import Figures
    from nonet.stores.stores import Stores

_SECONDS = 2.0
_RATE_SECONDS = 10.0
_SHOWN = 10
_CLASSES = 20


@dataclass(frozen=True, slots=True)
class Queue:
    """The tasks of one priority and size.

    Attributes:
        queued: tasks that no worker has fetched.
        running: tasks that workers have.
        oldest_seconds: age of the oldest queued task; 0: none is queued.
        paused: whether no task of the stream starts.
        desired: how many workers the runnable tasks of this size would use; null: not counted.
        active: tasks of the stream that have not ended, with those that are delayed or wait.
        ceiling: how many of them are allowed; null: no ceiling.
    """

    priority: Priority
    size: Size
    queued: int
    running: int
    oldest_seconds: float
    paused: bool
    desired: int | None
    active: int
    ceiling: int | None

    @property
    def name(self) -> str:
        """Its name: ``normal:small``."""
        return f"{self.priority}:{self.size}"


@dataclass(frozen=True, slots=True)
class Queues(Page[Queue]):
    """All tasks that have not ended, by where they are.

    Attributes:
        items: the nine streams.
        delayed: tasks that wait for their time or for a retry.
        overdue: delayed tasks that are due for more than a second.
        waiting: tasks that wait for locks, for a resume or for other steps of their workflow.
        dying: failed tasks whose dead letter is not in SQL yet.
        is_estimate: whether delayed, waiting and dying are estimated, because they are very many.
        quarantined: entries of the quarantine.
        paused_classes: names of the classes that are paused.
    """

    delayed: int = 0
    overdue: int = 0
    waiting: int = 0
    dying: int = 0
    is_estimate: bool = False
    quarantined: int = 0
    paused_classes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream in full.

    Attributes:
        load: how much it holds.
        empty_in_seconds: estimate until its queued tasks have started; null: no estimate.
        tasks: some of its tasks, and the workers that have them.
        classes: how many of its tasks have not ended, for the 20 most frequent classes.
    """

    load: Queue
    empty_in_seconds: float | None
    tasks: StreamTasks
    classes: Mapping[str, int]


async def find(stores: Stores, remember: Remember = always) -> Queues:
    """Return how many tasks are where."""
    figures, pauses = await _figures(stores, remember), await stores.controls.load()
    paused = [item.what.partition(":") for item in pauses]
    return Queues(
        await _loads(stores, figures, pauses),
        delayed=figures.delayed,
        overdue=figures.overdue,
        waiting=figures.waiting,
        dying=figures.dying,
        is_estimate=figures.is_estimate,
        quarantined=figures.quarantined,
        paused_classes=[name for kind, _, name in paused if kind == "task"],
    )


async def get(
    stores: Stores, priority: Priority, size: Size, remember: Remember = always
) -> Stream:
    """Return what one stream holds."""
    name, figures = f"{priority}:{size}", await _figures(stores, remember)
    recent = await remember(("throughput",), _RATE_SECONDS, stores.counts.throughput)
    active = active_of(figures)
    classes = Counter({task: number for (task, of), number in active.items() if of == name})
    (load,) = (
        item
        for item in await _loads(stores, figures, await stores.controls.load())
        if item.name == name
    )
    return Stream(
        load,
        seconds_to_empty(streams_of(figures), active, recent.class_rates).get(name),
        await stores.results.stream_tasks(name, _SHOWN),
        dict(classes.most_common(_CLASSES)),
    )


async def _figures(stores: Stores, remember: Remember) -> Figures:
    return await remember(("queues",), _SECONDS, stores.measures.figures)


async def _loads(stores: Stores, figures: Figures, pauses: Sequence[Pause]) -> Sequence[Queue]:
    desired = await stores.demands.published()
    loads = {item.scope: item for item in await stores.ceilings.loads()}

    def load(priority: Priority, size: Size) -> Queue:
        name, found = f"{priority}:{size}", figures.streams[priority, size]
        known = loads.get(f"stream:{name}")
        queued = max(0, found.depth - found.in_flight)
        return Queue(
            priority=priority,
            size=size,
            queued=queued,
            running=found.in_flight,
            oldest_seconds=found.oldest if queued else 0.0,
            paused=of_task(pauses, name, "") is not None,
            desired=desired.get(size),
            active=known.active if known else 0,
            ceiling=known.ceiling if known else None,
        )

    return [load(priority, size) for size in Size for priority in Priority]


def streams_of(figures: Figures) -> list[StreamLoad]:
    """Return the streams that have tasks."""
    return [
        StreamLoad(priority, size, found.depth - found.in_flight, found.in_flight, found.oldest)
        for (priority, size), found in figures.streams.items()
        if found.depth
    ]


def active_of(figures: Figures) -> dict[tuple[str, str], int]:
    """Return the tasks that have not ended, by class and stream."""
    return {
        (task, f"{priority}:{size}"): number
        for (task, priority, size), number in figures.active.items()
    }
