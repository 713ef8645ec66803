"""Run tasks in an order: `Workflow`, `chain`, `group` and `chord`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import asdict, replace

from nonet.base.messages.message import Reference
from nonet.base.messages.terms import delay_problem, microseconds, start_by_problem, step_term
from nonet.tasks.handles import R
from nonet.tasks.runs import WorkflowRun
from nonet.tasks.steps import FAILURE, MISSING, SUCCESS, Added, After, Edge, Event, Previous, Step
from nonet.tasks.sync_runs import SyncWorkflowRun
from nonet.tasks.task import (
    BaseTask,
    Given,
    Options,
    StepOptions,
    TaskOf,
    TaskWithOptions,
    current_submitter,
    current_sync_submitter,
    ensure_task,
    refusing,
    task_and_options,
)

_EVENT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")


class Workflow:
    """Tasks that run in an order; each is a step and starts when those before it have ended.

    A step that cannot run, because a step before it failed, ends ``cancelled``. The workflow is
    ``failed`` if a failure was not taken over by a step after `failed`; else it is ``done``.

    Args:
        title: shown to operators.
        labels: labels of all steps; a step's own labels take precedence. Steps that a running step
            adds do not have them.

    Example:
        workflow = Workflow("nightly import", labels={"customer": "acme"})
        rows = workflow.step(Extract("2026-11-25"))
        stored = workflow.step(Load.given(rows=rows))
        workflow.step(Alarm(), after=failed(stored))
        run = await workflow.submit()
        print(await run.result(stored, timeout=60))
    """

    def __init__(self, title: str = "", *, labels: Mapping[str, Any] | None = None) -> None:
        self.title = title
        self.labels = labels
        self.steps: list[Step[Any]] = []
        self._above = ""
        self._ends_in_group = False

    def __repr__(self) -> str:
        return f"Workflow({self.title!r}, {len(self.steps)} steps)"

    if not TYPE_CHECKING:
        __or__ = refusing("chain(first, second), not first | second")
        __iter__ = refusing("the workflow itself, not *workflow: it is one part")

    @classmethod
    def below(cls, place: str) -> Workflow:
        """For the framework: the steps that a running step adds."""
        made = cls()
        made._above = f"{place}."
        return made

    def step(
        self, task: TaskOf[R], *, after: After = (), **options: Unpack[StepOptions]
    ) -> Step[R]:
        """Add a step.

        Args:
            task: a task, or ``SomeTask.given(…)`` if arguments are results of earlier steps. Its
                ``with_options(…)`` take precedence.
            after: the steps that must be done before it, `failed` and `ended` ones, or several of
                them. Steps whose results are arguments need not be named.
            options: ``delay``, ``at_time``, ``labels``, ``start_by`` and ``unique``, as in
                `BaseTask.schedule`. A delay, and a `start_by` that is a duration, count from when
                it could start.

        Raises:
            TypeError: `task` is neither a task nor given, or `after` names anything but steps.
            ValueError: a step before it belongs to another workflow, is named twice with different
                edges, or may fail although its result is an argument; or an option is invalid.
        """
        return self._step(task, _edges(after), options)

    def _step(
        self,
        task: Any,
        after: Iterable[Edge],
        options: StepOptions | Mapping[str, Any],
        *,
        listed: bool = False,
    ) -> Step[Any]:
        """Add a step.

        Args:
            listed: `PREVIOUS` is a list even if there is only one step before.
        """
        item, chosen = task_and_options(task, options, "Workflow.step()", "id", "transaction")
        if not isinstance(item, Given):
            ensure_task(item, "Workflow.step")
        edges = self._joined(after)
        if isinstance(item, Given):
            if edges:
                item = _with_previous(item, list(edges), listed)
            for used in _used(item.values):
                edge = edges.setdefault(used, Edge(used))
                if edge.on != SUCCESS:
                    raise ValueError(f"{item}: {used} may fail, so its result cannot be given")
        if chosen.delay is not None and (problem := delay_problem(chosen.delay)):
            raise ValueError(f"Workflow.step: delay: {problem}")
        return self._added(item, edges, chosen)

    def _added(
        self, item: BaseTask | Given[Any] | Event, edges: Mapping[Step[Any], Edge], chosen: Options
    ) -> Step[Any]:
        for step in edges:
            if step.workflow is not self:
                raise ValueError(f"Workflow.step: {step} belongs to another workflow")
        if self.labels:
            chosen = replace(chosen, labels={**self.labels, **(chosen.labels or {})})
        place = f"{self._above}{len(self.steps)}"
        made = Step[Any](self, place, item, tuple(edges.values()), chosen)
        self.steps.append(made)
        return made

    def event(
        self, name: str, *, timeout: float | timedelta | None = None, after: After = ()
    ) -> Step[Any]:
        """Add a step without code, which is done when an event comes; ``app.signal`` sends it.

        Args:
            name: letters, digits, ``_``, ``.`` and ``-``; unique in the workflow.
            timeout: seconds or a duration after which the step fails, from when the steps before it
                have ended; None: it waits without limit.
            after: as of `step`.

        Returns:
            The step. Its result is the payload of the event.

        Raises:
            TypeError, ValueError: `after`, the name or the timeout is invalid.

        Example:
            approved = workflow.event("approved", timeout=timedelta(days=3))
            workflow.step(Add.given(a=approved, b=1))
        """
        if not (isinstance(name, str) and _EVENT_NAME.fullmatch(name)):
            raise ValueError(
                f"Workflow.event: {name!r:.100} must be 1 to 40 letters, digits, '_', '.' or '-', "
                "with a letter first"
            )
        if timeout is not None and (problem := start_by_problem(timeout)):
            raise ValueError(f"Workflow.event: timeout: {problem}")
        return self._event(Event(name), _edges(after), Options(start_by=timeout))

    def _event(self, event: Event, after: Iterable[Edge], options: Options) -> Step[Any]:
        if any(step.task == event for step in self.steps):
            raise ValueError(f"Workflow.event: the workflow already has an event {event.name}")
        return self._added(event, self._joined(after), options)

    @staticmethod
    def _joined(after: Iterable[Edge]) -> dict[Step[Any], Edge]:
        """Return the edges by step."""
        edges: dict[Step[Any], Edge] = {}
        for edge in after:
            if edges.setdefault(edge.step, edge) != edge:
                raise ValueError(f"Workflow.step: after= names {edge.step} twice, differently")
        return edges

    @property
    def last(self) -> list[Step[Any]]:
        """The steps that come last if no step fails: only handlers come after them.

        A handler is a step after `failed`, or a step that needs the success of a handler.
        """
        handlers, followed = set[Step[Any]](), set[Step[Any]]()
        for step in self.steps:
            if any(
                edge.on == FAILURE or (edge.on == SUCCESS and edge.step in handlers)
                for edge in step.after
            ):
                handlers.add(step)
            else:
                followed |= {edge.step for edge in step.after}
        return [step for step in self.steps if step not in handlers | followed]

    def add(
        self, part: Part, after: Sequence[Step[Any]] = (), *, listed: bool = False
    ) -> list[Step[Any]]:
        """Add a task, or copies of all steps of another workflow, after the given steps.

        Args:
            part: a task, ``SomeTask.given(…)``, or a workflow.
            after: the steps that must be done before it.
            listed: `PREVIOUS` is a list even if there is only one step before.

        Returns:
            The steps that come last among those added, see `last`.

        Raises:
            ValueError: the other workflow has no steps.
        """
        first = _edges(after)
        is_several = isinstance(part, Iterable) and not isinstance(part, str | BaseTask | Workflow)
        if is_several:
            raise TypeError(f"{part!r:.100} is a {type(part).__name__}: write group(*parts)")
        if not isinstance(part, Workflow):
            return [self._step(part, first, {}, listed=listed)]
        if not part.steps:
            raise ValueError(
                "an empty group or workflow cannot be a part of another one: leave it out"
            )
        copies: dict[str, Step[Any]] = {}
        for step in part.steps:
            edges = [replace(edge, step=copies[edge.step.place]) for edge in step.after]
            item = step.task
            if isinstance(item, Event):
                copies[step.place] = self._event(item, edges or first, step.options)
                continue
            if isinstance(item, Given):
                item = Given(item.cls, _mapped(item.values, copies))
            options = asdict(step.options)
            copies[step.place] = self._step(item, edges or first, options, listed=listed)
        return [copies[step.place] for step in part.last]

    async def submit(self, *, id: str | None = None) -> WorkflowRun:
        """Submit all steps; none starts before all are submitted.

        Args:
            id: an id of your own, up to 90 characters. Submitting it again returns the same run.
                In a running task the default is the same in each attempt, so that a retry finds
                the run of its earlier attempt.

        Raises:
            NotBoundError: no application is open in this process.
            InvalidArgumentsError: an argument or option is invalid; nothing was submitted.
            AdmissionRejected: a ceiling of the configuration is reached; nothing was submitted.
            ServerUnreachableError: Redis does not answer. The workflow may have been submitted.
        """
        run: WorkflowRun = await current_submitter().submit_workflow(self, id=id)
        return run

    def submit_sync(self, *, id: str | None = None) -> SyncWorkflowRun:
        """Submit all steps from a program, a thread or a ``def execute`` without an event loop.

        It works where `BaseTask.schedule_sync` does, and blocks until Redis has answered.

        Args:
            id: as of `submit`.

        Returns:
            A `nonet.SyncWorkflowRun`, whose methods block.

        Raises:
            NotBoundError, InvalidArgumentsError, AdmissionRejected, ServerUnreachableError: as
                `submit`.

        Example:
            run = chain(Add(1, 2), Add(3, 4)).submit_sync()
            assert run.wait(timeout=30).state == "done"
        """
        run: SyncWorkflowRun = current_sync_submitter().submit_workflow(self, id=id)
        return run


Part = BaseTask | Given[Any] | TaskWithOptions[Any] | Workflow
"""The parts that `chain`, `group` and `chord` combine."""


def chain(*parts: Part, title: str = "", labels: Mapping[str, Any] | None = None) -> Workflow:
    """Run parts one after the other; each starts when the part before it is done.

    Args:
        parts: tasks, ``SomeTask.given(…)``, either ``.with_options(…)``, or workflows. `PREVIOUS`
            stands for the result before.
        title, labels: as of `Workflow`.

    Example:
        run = await chain(Extract("2026-11-25"), Load.given(rows=PREVIOUS)).submit()
    """
    made = Workflow(title, labels=labels)
    last: Sequence[Step[Any]] = ()
    for part in parts:
        last = made.add(part, last, listed=made._ends_in_group)
        made._ends_in_group = isinstance(part, Workflow) and part._ends_in_group
    return made


def group(*parts: Part, title: str = "", labels: Mapping[str, Any] | None = None) -> Workflow:
    """Run parts at the same time.

    For a part after a group `PREVIOUS` is a list of results, however many parts the group has.

    Args:
        parts: tasks, ``SomeTask.given(…)``, either ``.with_options(…)``, or workflows.
        title, labels: as of `Workflow`.

    Example:
        run = await group(Resize("a.png"), Resize("b.png")).submit()
    """
    made = Workflow(title, labels=labels)
    made._ends_in_group = True
    for part in parts:
        made.add(part)
    return made


def chord(
    parts: Iterable[Part],
    body: Part = MISSING,
    *,
    title: str = "",
    labels: Mapping[str, Any] | None = None,
) -> Workflow:
    """Run parts at the same time, and a last one when all of them are done.

    In `body`, `PREVIOUS` is the list of their results; without parts it is empty.

    Args:
        parts: tasks, ``SomeTask.given(…)``, either ``.with_options(…)``, or workflows.
        body: the part that runs last.
        title, labels: as of `Workflow`.

    Example:
        run = await chord([Add(1, 2), Add(3, 4)], Sum.given(numbers=PREVIOUS)).submit()
    """
    if body is MISSING:
        raise TypeError("chord: there is no body: write chord(parts, body), not chord(parts)(body)")
    made, given_parts = Workflow(title, labels=labels), group(*parts)
    if not given_parts.steps and isinstance(body, Given):
        body = _with_previous(body, [], listed=True)
    made.add(body, made.add(given_parts) if given_parts.steps else (), listed=True)
    return made


def packed_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace steps in given arguments by references, for the envelope."""
    return {name: _replaced(value, _reference) for name, value in values.items()}


def step_terms(workflow: str, steps: Sequence[Step[Any]]) -> list[str]:
    """Return the line of terms of each step, see `nonet.base.messages.terms.step_term`."""
    leaving: dict[str, set[str]] = {}
    for step in steps:
        for edge in step.after:
            leaving.setdefault(edge.step.place, set()).add(edge.on)
    return [
        step_term(
            workflow,
            "".join(sorted(leaving.get(step.place, ()))),
            [f"{edge.on}{edge.step.place}" for edge in step.after],
            any_failed=any(edge.on == FAILURE for edge in step.after),
            delay_us=microseconds(step.options.delay or 0),
        )
        for step in steps
    ]


def _edges(after: After) -> list[Edge]:
    given: Any = after
    several = isinstance(given, Iterable) and not isinstance(given, str)
    edges = [
        one if isinstance(one, Edge) else Edge(one) for one in (given if several else (given,))
    ]
    for edge in edges:
        if not isinstance(edge.step, Step):
            raise TypeError(
                f"Workflow.step: after={given!r:.100} must be what step() returned, failed(step), "
                "ended(step), or a list of these; leave it out if no step comes before"
            )
    return edges


def _replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Replace the steps in lists, tuples and mappings."""
    if isinstance(value, Step | Added | Previous):
        return change(value)
    if isinstance(value, dict):
        return {key: _replaced(item, change) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, change) for item in value)
    return value


def _reference(value: Step[Any] | Added | Previous) -> Reference:
    if isinstance(value, Previous):
        raise ValueError("PREVIOUS is given, but no step comes before")
    if isinstance(value, Added):
        return Reference(value.step.place, added=True)
    return Reference(value.place)


def _used(values: Mapping[str, Any]) -> list[Step[Any]]:
    """The steps whose results are needed."""
    found: list[Step[Any]] = []

    def note(value: Any) -> Any:
        if not isinstance(value, Previous):
            found.append(value.step if isinstance(value, Added) else value)
        return value

    _replaced(dict(values), note)
    return found


def _with_previous(item: Given[Any], before: Sequence[Step[Any]], listed: bool) -> Given[Any]:
    previous = list(before) if listed or len(before) > 1 else before[0]

    def change(value: Any) -> Any:
        return previous if isinstance(value, Previous) else value

    return Given(item.cls, _replaced(dict(item.values), change))


def _mapped(values: Mapping[str, Any], copies: Mapping[str, Step[Any]]) -> Mapping[str, Any]:
    def change(value: Any) -> Any:
        if isinstance(value, Added):
            return copies[value.step.place].added
        return value if isinstance(value, Previous) else copies[value.place]

    changed: Mapping[str, Any] = _replaced(dict(values), change)
    return changed
