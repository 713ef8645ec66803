"""Building workflows: steps, edges, chains, groups and chords, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from workflows.flow_tasks import Add, Fail, Noop, Note, Spread, Sum

from nonet import (
    PREVIOUS,
    BaseTask,
    InvalidArgumentsError,
    NotBoundError,
    RegistrationError,
    Workflow,
    chain,
    chord,
    ended,
    failed,
    group,
)
from nonet.base.messages.message import Reference
from nonet.tasks.runs import place_of
from nonet.tasks.steps import MISSING, Edge
from nonet.tasks.task import Given
from nonet.tasks.workflows import packed_values
from nonet.testing import run_inline


def shape(flow: Workflow) -> str:
    """The steps in order, each with the letters and places before it."""
    return " | ".join(
        " ".join([_name(step.task), *(f"{edge.on}{edge.step.place}" for edge in step.after)])
        for step in flow.steps
    )


def _name(task: Any) -> str:
    if not isinstance(task, Given):
        return type(task).__name__
    return f"{task.cls.__name__}({', '.join(map(_text, packed_values(task.values).values()))})"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{' '.join(map(_text, value))}]"
    return f"{'*' * value.added}{value.place}" if isinstance(value, Reference) else repr(value)


SUM, ADD = Sum.given(numbers=PREVIOUS), Add.given(PREVIOUS, b=1)


def with_handler() -> Workflow:
    """A step and another one that runs if it fails, with a follower."""
    flow = Workflow()
    flow.step(Note(), after=flow.step(Note(), after=failed(flow.step(Noop()))))
    return flow


def with_clean_up() -> Workflow:
    """A step, its handler, and one that runs in any case."""
    flow = Workflow()
    first = flow.step(Noop())
    flow.step(Fail(), after=[first, ended(flow.step(Note(), after=failed(first)))])
    return flow


BUILT: dict[str, tuple[Callable[[], Workflow], str]] = {
    "chain": (lambda: chain(Noop(), Note(), Noop()), "Noop | Note s0 | Noop s1"),
    "chain with a result": (lambda: chain(Add(1, 2), ADD), "Add | Add(0, 1) s0"),
    "group": (lambda: group(Noop(), Note()), "Noop | Note"),
    "chord": (lambda: chord([Add(1, 2), Add(3, 4)], SUM), "Add | Add | Sum([0 1]) s0 s1"),
    "chord of none": (lambda: chord([], SUM), "Sum([])"),
    "chord of none, without a result": (lambda: chord([], Noop()), "Noop"),
    "chain of a group": (
        lambda: chain(Add(0, 0), group(ADD, ADD), SUM),
        "Add | Add(0, 1) s0 | Add(0, 1) s0 | Sum([1 2]) s1 s2",
    ),
    "chain of a chain with a group of one": (
        lambda: chain(chain(Noop(), group(Add(1, 1))), SUM),
        "Noop | Add s0 | Sum([1]) s1",
    ),
    "chain of a group of chains": (
        lambda: chain(group(chain(Noop(), Add(1, 1)), Add(2, 2)), SUM),
        "Noop | Add s0 | Add | Sum([1 2]) s1 s2",
    ),
    "chain of chains": (
        lambda: chain(Add(1, 2), chain(ADD, ADD), ADD),
        "Add | Add(0, 1) s0 | Add(1, 1) s1 | Add(2, 1) s2",
    ),
    "chord in a chain in a chord": (
        lambda: chord([chain(Noop(), chord([Add(1, 1), Add(2, 2)], SUM)), Add(3, 3)], SUM),
        "Noop | Add s0 | Add s0 | Sum([1 2]) s1 s2 | Add | Sum([3 4]) s3 s4",
    ),
    "chain of parts with handlers": (
        lambda: chain(with_handler(), Add(1, 1)),
        "Noop | Note f0 | Note s1 | Add s0",
    ),
    "chain of parts with a clean-up": (
        lambda: chain(with_clean_up(), Add(1, 1)),
        "Noop | Note f0 | Fail s0 a1 | Add s2",
    ),
    "one part twice": (
        lambda: (lambda part: chain(part, part))(chain(Noop(), Note())),
        "Noop | Note s0 | Noop s1 | Note s2",
    ),
}


@pytest.mark.parametrize("case", BUILT)
def test_parts_are_put_together(case: str) -> None:
    """Chains, groups, chords and workflows can be parts of each other."""
    build, expected = BUILT[case]
    assert shape(build()) == expected


def test_a_result_as_an_argument_is_an_edge() -> None:
    """A step whose result is an argument comes before, also inside of lists and mappings."""
    flow = Workflow()
    one, two, three = flow.step(Add(1, 1)), flow.step(Add(2, 2)), flow.step(Spread(3))
    flow.step(Sum.given(numbers=[one, 7, (two,)]), after=ended(flow.step(Noop())))
    flow.step(Sum.given(numbers=three.added))
    flow.step(Add.given(one, {"x": [three]}))
    assert shape(flow).split(" | ")[4:] == [
        "Sum([0 7 (Reference(place='1', added=False),)]) a3 s0 s1",
        "Sum(*2) s2",
        "Add(0, {'x': [Reference(place='2', added=False)]}) s0 s2",
    ]


def test_given_binds_arguments() -> None:
    """Positional and by name; of annotated classes, models and classes with a constructor."""

    class Undecorated(BaseTask):
        a: int
        b: str = "x"

        async def execute(self) -> None: ...

    class Model(BaseTask, BaseModel):
        a: int

        async def execute(self) -> None: ...

    class Own(BaseTask):
        def __init__(self, a: int, *, b: int = 2, **others: int) -> None:
            self.a = a

        async def execute(self) -> None: ...

    assert Undecorated.given(1, b="y").values == {"a": 1, "b": "y"}
    assert Model.given(a=1).values == {"a": 1}
    assert Own.given(1, b=3, c=4).values == {"a": 1, "b": 3, "c": 4}
    assert repr(Add.given(1, b=2)) == "Add.given(a, b)"


class Many(BaseTask):
    numbers: tuple[int, ...]

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    async def execute(self) -> None: ...


def other() -> Any:
    """A step of another workflow."""
    return Workflow().step(Add(1, 1))


def mixed(*edges: Callable[[Any], Any]) -> None:
    flow = Workflow()
    step = flow.step(Add(1, 1))
    flow.step(Noop(), after=[edge(step) for edge in edges])


def given_a_failure(edge: Callable[[Any], Edge]) -> None:
    flow = Workflow()
    step = flow.step(Add(1, 1))
    flow.step(Add.given(step, 1), after=edge(step))


def given_another() -> None:
    flow = Workflow()
    own = flow.step(Add(1, 1))
    flow.step(Add.given(other(), 1), after=own)


def untyped(value: Any) -> Any:
    """A value whose type is not checked before it is passed."""
    return value


NOT_A_TASK: Any = 7
REFUSED: dict[type[Exception], list[tuple[Callable[[], object], str]]] = {
    TypeError: [
        (lambda: Workflow().step(NOT_A_TASK), "Workflow.step"),
        (lambda: chain(other()), "Workflow.step"),
        (lambda: Workflow().step(Noop(), after=untyped("0")), "after='0' must be what step()"),
        (lambda: Workflow().step(Noop(), after=failed(untyped("0"))), "must be what step"),
        (lambda: Add.given(1), "Add.given: missing a required"),
        (lambda: Add.given(1, c=2), "Add.given: "),
        (lambda: Many.given(1, 2), "pass arguments by name"),
        (lambda: group(untyped(Noop() for _ in "ab")), r"is a generator: write group\(\*parts\)"),
        (lambda: group(*untyped(chain(Noop()))), r"Workflow: write the workflow itself, not \*"),
        (lambda: untyped(chord)([Noop()])(Noop()), r"chord\(parts, body\), not chord\(parts\)\("),
        (lambda: untyped(Noop()) | Noop(), r"Noop: write chain\(first, second\), not first \|"),
        (lambda: untyped(ADD) | Noop(), r"Given: write chain\(first, second\), not first \|"),
        (lambda: untyped(chain(Noop())) | Noop(), r"Workflow: write chain\(first, second\)"),
        (lambda: untyped(Noop().with_options(delay=1)) | Noop(), r"write chain\(first, second\)"),
        (lambda: place_of(MISSING), r"no step was passed: pass .* run.result\(workflow.last\[0\]"),
        (lambda: place_of("0"), "'0' is no step: pass what"),
    ],
    ValueError: [
        (lambda: Workflow().step(Noop(), after=other()), "<step 0: Add> belongs to another workf"),
        (given_another, "belongs to another workflow"),
        (lambda: mixed(failed, ended), "twice, differently"),
        (
            lambda: given_a_failure(failed),
            r"Add.given\(a, b\): <step 0: Add> may fail, so its result cannot be given",
        ),
        (lambda: Workflow().step(Noop(), delay=-1), "delay: must be seconds or a timedelta from 0"),
        (lambda: Workflow().step(Noop(), delay=timedelta(days=20_000)), "ten years"),
        (lambda: chain(Noop(), group(), Noop()), "empty group"),
    ],
}


@pytest.mark.parametrize("error", REFUSED)
def test_mistakes_are_refused(error: type[Exception]) -> None:
    """At once, with what is wrong."""
    for build, text in REFUSED[error]:
        with pytest.raises(error, match=text):
            build()


def test_the_same_edge_twice_is_one() -> None:
    """A step may be named in after= and be an argument."""
    flow = Workflow()
    step = flow.step(Add(1, 1))
    flow.step(Add.given(step, step), after=[step, step])
    assert shape(flow) == "Add | Add(0, 0) s0"


async def test_a_given_task_is_not_scheduled() -> None:
    """Only a workflow has the results for which it waits; the error says so."""
    with pytest.raises(TypeError, match=r"Add.given\(a, b\) waits for other steps: add it to a"):
        await Add.given(other(), 1).schedule()


async def test_a_workflow_needs_an_application() -> None:
    """Submitting without an open one says what to do; inside of run_inline, too."""

    @dataclass
    class Submits(BaseTask):
        async def execute(self) -> None:
            await chain(Noop()).submit()

    with pytest.raises(NotBoundError):
        await chain(Noop()).submit()
    with pytest.raises(NotBoundError, match="System"):
        await run_inline(Submits())


async def test_a_workflow_that_cannot_run_is_refused_at_its_submission(flows: Any) -> None:
    """No steps, PREVIOUS without a step before it, values that no message can carry."""
    cases: list[tuple[Workflow, type[Exception], str]] = [
        (Workflow(), InvalidArgumentsError, "it has no steps"),
        (group(), InvalidArgumentsError, "it has no steps"),
        (chain(), InvalidArgumentsError, "it has no steps"),
        (chain(SUM), InvalidArgumentsError, "PREVIOUS is given, but no step comes before"),
        (chain(Add.given(object(), b=1)), InvalidArgumentsError, "flow_tasks:Add"),
        (chain(Many(1)), RegistrationError, "Many"),
    ]
    for flow, error, text in cases:
        with pytest.raises(error, match=text):
            await flow.submit()
    assert flows.keys("[ftb]:*") == []
