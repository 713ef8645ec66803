"""Describe what steps and workflows wait for. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from nonet.base.durations import span
from nonet.rules.findings import remedies
from nonet.tasks.runs import StepState

# Bytes of a blocker that a record keeps.
_LONGEST_BLOCKER = 60
_MEANT = {"s": "{}", "f": "failed({})", "a": "ended({})"}
_THE_START = "the start of its workflow"
_STEP = r"(failed\(|ended\()?\d+(\.\d+)*\)?"
_STEPS = re.compile(rf"{_THE_START}|after {_STEP}(, {_STEP})*(, …)?")
# What a workflow waits for: the first step in the first of these states. What runs comes last,
# because the others wait for something.
_FIRST_CAUSES = ("lost", "dying", "waiting", "queued", "delayed", "running", "blocked")
_ORDER = get_args(StepState)
BLOCKED = "blocked"
"""The state of a step that waits for other steps, where `waiting` would mean locks."""
FOLLOWED = "followed"
"""The state of a predecessor that has ended, while its successors are being released."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """A step that another one waits for.

    Attributes:
        state: state of its task; ``done`` if it waits for steps that it added; `FOLLOWED`; or
            ``lost``.
    """

    id: str
    name: str
    state: str

    def __str__(self) -> str:
        state = self.state
        if state == "done":
            state = "done, but not the steps that it added"
        return f"{self.id} ({self.name + ', ' if self.name else ''}{state})"


@dataclass(frozen=True, slots=True)
class Blocked:
    """What an unreleased step waits for.

    Attributes:
        workflow: id of its workflow, and `state` of that; an empty state: it is gone.
        cancel: why the workflow is being cancelled; empty: it is not.
        missing: number of predecessors that have not ended.
        event: the event that it waits for now; empty: it waits for steps.
        before: the first of these; None: it waits for the start of the workflow, or for nothing.
        root: the step for which `before` waits in the end, or `before` itself.
    """

    workflow: str
    state: str
    cancel: str = ""
    missing: int = 0
    before: Predecessor | None = None
    root: Predecessor | None = None
    event: str = ""


def why_blocked(blocked: Blocked) -> tuple[str, str]:
    """Return what a step waits for, in words, and the next command.

    >>> first = Predecessor("w:0", "mail:Send", "running")
    >>> why_blocked(Blocked("w", "running", missing=3, before=first, root=first))
    ('waiting: it comes after w:0 (mail:Send, running) and 2 others', 'task-run explain w:0')
    """
    workflow, before, root = blocked.workflow, blocked.before, blocked.root
    if not blocked.state:
        text = (
            f"waiting: its workflow {workflow} is gone from Redis. A worker ends it within minutes"
        )
        return text, remedies.of_keys()
    if blocked.cancel:
        text = f"waiting: its workflow {workflow} is being cancelled {blocked.cancel}"
        return text, remedies.of_workflow("show", workflow)
    if blocked.state in ("building", "resuming"):
        doing = "submitted" if blocked.state == "building" else "resumed"
        text = f"waiting: its workflow {workflow} is still being {doing}"
        return text, remedies.of_workflow("show", workflow)
    if blocked.event:
        text = (
            f"waiting for event {blocked.event}: a program (app.signal), an operator or the page "
        )
        return f"{text}of the workflow lets it come", remedies.of_signal(workflow, blocked.event)
    if before is None or root is None:
        return "waiting: the steps before it have ended, so it is about to be released", ""
    if before.state == FOLLOWED:
        return f"waiting: {before.id} has ended, and its successors are being released", ""
    if before.state == "lost":
        text = f"waiting: it comes after {before.id}, which is gone from Redis. A worker ends it "
        return text + "within minutes", remedies.of_keys()
    others = blocked.missing - 1
    text = f"waiting: it comes after {before}"
    text += f" and {others} other{'s' if others > 1 else ''}" if others else ""
    if root.id != before.id:
        text += f". What they wait for first is {root}"
    return text, remedies.of_task("explain", root.id)


def not_a_task(id: str) -> str:
    """Say that an id names a workflow and not a task.

    >>> not_a_task("nightly")
    "nightly is a workflow, not a task: 'task-run workflows show nightly' shows it"
    """
    command = remedies.of_workflow("show", id)
    return f"{id} is a workflow, not a task: {command!r} shows it"


def after_in_words(after: Sequence[str]) -> str:
    """Name predecessors as authors do in ``after=``.

    >>> after_in_words(["s0", "f1", "a2.0"]), after_in_words([])
    ('0, failed(1), ended(2.0)', '')
    """
    return ", ".join(_MEANT[edge[0]].format(edge[1:]) for edge in after)


def blocker_in_words(blocker: str) -> str:
    """Turn the blocker in the record of a blocked step into words.

    >>> blocker_in_words("after s0 f1"), blocker_in_words("after ")
    ('after 0, failed(1)', 'the start of its workflow')
    """
    if is_event(blocker):
        return blocker
    edges = blocker.removeprefix("after").split()
    if not edges:
        return _THE_START
    is_cut = len(blocker) >= _LONGEST_BLOCKER
    words = after_in_words(edges[:-1] if is_cut else edges)
    return f"after {words}{', …' if is_cut else ''}"


def is_event(blocker: str) -> bool:
    """Return whether a blocker is an event of a workflow."""
    return blocker.startswith("event ")


def names_steps(blocker: str) -> bool:
    """Return whether a blocker comes from `blocker_in_words`, and is not a lock or another reason.

    >>> names_steps("after 0, failed(1.2), …"), names_steps("after 3 tries")
    (True, False)
    """
    return is_event(blocker) or _STEPS.fullmatch(blocker) is not None


def counts(states: Iterable[str]) -> dict[str, int]:
    """Count states of steps, in the order in which they are shown.

    >>> counts(["blocked", "done", "blocked"])
    {'done': 1, 'blocked': 2}
    """
    found = Counter(states)
    return {
        state: found[state] for state in (*_ORDER, *sorted({*found} - {*_ORDER})) if found[state]
    }


def counts_in_words(numbers: Mapping[str, int]) -> str:
    """Say how many steps are in each state.

    >>> counts_in_words({"done": 1, "blocked": 2})
    '1 done, 2 blocked'
    """
    return ", ".join(f"{number:,} {state}" for state, number in numbers.items())


def first_cause(states: Mapping[str, str]) -> str:
    """Return the place of the step that a workflow waits for; empty if all have ended.

    Args:
        states: of its steps by place, in their order.

    >>> first_cause({"0": "done", "1": "running", "2": "queued", "3": "blocked"})
    '2'
    """
    ranks = {state: rank for rank, state in enumerate(_FIRST_CAUSES)}
    live = [place for place, state in states.items() if state in ranks]
    return min(live, key=lambda place: ranks[states[place]], default="")


@dataclass(frozen=True, slots=True)
class FailedWorkflows:
    """Workflows with one title that failed lately.

    Attributes:
        title: their title; empty: one workflow without a title.
        id: the workflow that failed last, `seconds_ago`; `number`: how many there are, the first
            of them `first_ago`.
        step: id of the step that failed first in it, with its class `task` and its `error`.
    """

    title: str
    id: str
    number: int
    seconds_ago: float
    step: str = ""
    task: str = ""
    error: str = ""
    first_ago: float = 0.0


@dataclass(frozen=True, slots=True)
class StuckWorkflows:
    """Workflows that have been in a short-lived state for too long.

    Attributes:
        state: ``building`` or ``resuming``.
        id: the workflow that has been in it longest, for `seconds`; `number`: how many there are.
        submitted, total: how many of its steps have been submitted, out of how many.
    """

    state: str
    id: str
    number: int
    seconds: float
    submitted: int = 0
    total: int = 0


def failed_in_words(found: FailedWorkflows) -> str:
    """Say which workflows failed, in a sentence of an overview.

    >>> failed_in_words(FailedWorkflows("import", "w", 1, 61, "w:3", "mail:Send", "no"))
    'workflow "import" failed 1 min 1 s ago at step w:3 of mail:Send: no'
    """
    name = f' "{found.title}"' if found.title else f" {found.id}"
    text = f"workflow{name} failed {span(found.seconds_ago)} ago"
    if found.number > 1:
        text = f"{found.number} workflows{name} failed within an hour, the last "
        text += f"{span(found.seconds_ago)} ago"
    if found.step:
        of = f" of {found.task}" if found.task else ""
        text += f" at step {found.step}{of}{': ' if found.error else ''}{found.error}"
    return text


def stuck_in_words(found: StuckWorkflows) -> str:
    """Say which workflows do not leave a state, in a sentence of an overview.

    >>> stuck_in_words(StuckWorkflows("resuming", "w", 1, 90))
    'workflow w is being resumed for 1 min 30 s'
    """
    doing = "submitted" if found.state == "building" else "resumed"
    text = f"workflow {found.id} is being {doing} for {span(found.seconds)}"
    if found.state == "building":
        text += f": {found.submitted:,} of {found.total:,} steps have arrived. If its program is "
        text += "dead, cancel it and submit it again"
    more = found.number - 1
    return text + (f" (and {more} more like this)" if more else "")
