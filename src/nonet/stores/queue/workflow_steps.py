"""The steps of a workflow, each with the status of its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nonet.rules.spans import Span
from nonet.rules.workflows import BLOCKED, after_in_words, names_steps
from nonet.stores.queue.results import Results, ended_status
from nonet.stores.queue.workflows import Workflows, step_id
from nonet.tasks.handles import TaskStatus

Graph = Mapping[str, tuple[str, tuple[str, ...]]]
"""The class and the predecessors of each step, by its place; see `Workflows.graph`."""

_PAGE = 250


@dataclass(frozen=True, slots=True)
class WorkflowStep:
    """A step of a workflow.

    Attributes:
        place: its place in the workflow.
        after: the steps before it: a letter (``s`` on success, ``f`` on failure, ``a`` always) and
            the place.
        task: status of its task, live or ended, without a traceback; its state is ``lost`` if
            Redis has lost it.
        spans: since when it waited for a worker, and ran; of earlier attempts the time is not kept.
    """

    place: str
    after: tuple[str, ...]
    task: TaskStatus
    spans: tuple[Span, ...] = ()

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for other steps."""
        return self.task.state == "waiting" and names_steps(self.task.blocker)

    @property
    def state(self) -> str:
        """State of its task, or ``blocked``."""
        return BLOCKED if self.is_blocked else self.task.state

    @property
    def order(self) -> str:
        """The steps before it as its author named them: ``1, ended(0)``."""
        return after_in_words(self.after)

    @property
    def note(self) -> str:
        """What it waits for or does now, or its error: one line."""
        waits = "" if self.is_blocked else self.task.blocker  # `order` shows it
        return (waits or str(self.task.progress or "") or self.task.error).partition("\n")[0]


async def read_steps(
    workflows: Workflows, results: Results, workflow: str, graph: Graph, places: Sequence[str]
) -> list[WorkflowStep]:
    """Read some steps of a workflow, in the given order."""
    found: list[WorkflowStep] = []
    for start in range(0, len(places), _PAGE):
        some = places[start : start + _PAGE]
        tasks = await _tasks(workflows, results, workflow, some)
        for place in some:
            name, after = graph[place]
            id = step_id(workflow, place)
            task = tasks.get(id) or TaskStatus(id, name, "lost")
            task = replace(task, name=task.name or name, traceback="")
            found.append(WorkflowStep(place, after, task))
    return found


async def _tasks(
    workflows: Workflows, results: Results, workflow: str, places: Sequence[str]
) -> dict[str, TaskStatus]:
    """Read the tasks of steps. One that ends meanwhile has a result, or is read again."""
    tasks: dict[str, TaskStatus] = {}
    for _ in range(2):
        left = [place for place in places if step_id(workflow, place) not in tasks]
        for place, ended in zip(left, await workflows.results(workflow, left), strict=True):
            if ended is not None:
                id = step_id(workflow, place)
                tasks[id] = ended_status(id, ended)
        live = [id for place in left if (id := step_id(workflow, place)) not in tasks]
        tasks |= {item.id: item for item in await results.statuses(live)}
    return tasks
