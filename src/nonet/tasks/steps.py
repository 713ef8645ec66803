"""What a workflow consists of: `Step`, the edges between steps, and what stands for results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic

from msgspec import Struct

from nonet.tasks.handles import R_co
from nonet.tasks.task import BaseTask, Given, Options

SUCCESS, FAILURE, ALWAYS = "s", "f", "a"


class Previous:
    """Stands for the result of the step before in `BaseTask.given`; a list after several steps.

    Example:
        workflow = chain(Add(1, 2), Add.given(a=PREVIOUS, b=3))
    """

    def __repr__(self) -> str:
        return "PREVIOUS"


PREVIOUS: Final = Previous()
"""In `BaseTask.given`: the result of the step before; a list of results if there are several.

Example:
    workflow = chain(Add(1, 2), Add.given(a=PREVIOUS, b=3))
"""


MISSING: Any = None
"""Default of an argument without which a call is refused, by a sentence that says what to write."""

EVENT = "await:"
"""What the name of a step without code begins with. No class has such a name: ``await`` is a
keyword."""


class Event(Struct, frozen=True):
    """What a step without code waits for; see `Workflow.event`.

    Attributes:
        name: chosen by the author.
    """

    name: str


class Step(Generic[R_co]):
    """A task in a `Workflow`, as `Workflow.step` makes it.

    Attributes:
        workflow: the `nonet.Workflow`.
        place: its place in the workflow: ``0`` for the first step that was added.
        task: the task, what `BaseTask.given` made, or the event that it waits for.
        after: its predecessors, each with the edge from it.
        options: what was passed to `Workflow.step`, with the labels of the workflow.

    Example:
        workflow = Workflow()
        first = workflow.step(Add(1, 2))
        assert first.place == "0"
    """

    def __init__(
        self,
        workflow: Any,
        place: str,
        task: BaseTask | Given[Any] | Event,
        after: Sequence[Edge],
        options: Options,
    ) -> None:
        self.workflow = workflow
        self.place = place
        self.task = task
        self.after = after
        self.options = options

    @property
    def added(self) -> Added:
        """In `BaseTask.given`: the results of the steps that it adds and that are done, as a list.

        See `TaskContext.add_step`.
        """
        return Added(self)

    def __repr__(self) -> str:
        if isinstance(self.task, Event):
            return f"<step {self.place}: event {self.task.name}>"
        kind = self.task.cls if isinstance(self.task, Given) else type(self.task)
        return f"<step {self.place}: {kind.__name__}>"


class Added(Struct, frozen=True):
    """Stands for the results of the steps that a step adds; see `Step`."""

    step: Step[Any]


class Edge(Struct, frozen=True):
    """A predecessor of a step, and when the step may follow it.

    Attributes:
        on: ``s`` if it is done, ``f`` if it failed, ``a`` whenever it has ended.
    """

    step: Step[Any]
    on: str = SUCCESS


def failed(step: Step[Any]) -> Edge:
    """In ``after=``: run if this step has failed. The failure then does not fail the workflow.

    A step fails if its task is dead, expired or cancelled, or if it cannot run because of a
    failure before it; if that failure is taken over, the step is not needed instead. A step after
    several failures runs if at least one of them happens.

    Args:
        step: a step of the same workflow.

    Example:
        workflow.step(Apologise(), after=failed(payment))
    """
    return Edge(step, FAILURE)


def ended(step: Step[Any]) -> Edge:
    """In ``after=``: run when this step has ended, in whatever state.

    Args:
        step: a step of the same workflow.

    Example:
        workflow.step(CleanUp(), after=ended(payment))
    """
    return Edge(step, ALWAYS)


After = Step[Any] | Edge | Iterable[Step[Any] | Edge]
"""The predecessors of a step: steps that must be done, or edges."""
