"""What a principal may see of tasks, dead letters, events …

Who may not see details sees no labels, no progress texts and no texts of errors, only their types.
Nobody sees arguments and results here: routes that need `Action.REVEAL` show them.

Example:
    status = shown.status(await site.nonet.status(id), who)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from fastapi import HTTPException

from nonet.operate.overview import overview as nonet_overview
from nonet.operate.workflows import WorkflowReport, workflow_report
from nonet.rules.details import HIDDEN, error_type
from nonet.rules.explanation import Explanation, Facts, explain
from nonet.rules.permissions import Action, Principal
from nonet.rules.pipelines import PipelineStatus
from nonet.rules.situation import Overview
from nonet.rules.workflows import Blocked, names_steps
from nonet.stores.namespace.events import Event
from nonet.stores.namespace.periodic import EntryStatus
from nonet.stores.namespace.quarantine import Quarantined
from nonet.stores.queue.workers import WorkerStatus
from nonet.stores.queue.workflow_steps import WorkflowStep
from nonet.stores.queue.workflows import WorkflowPage
from nonet.stores.sql.letters import DeadLetter
from nonet.tasks.handles import EndedTask, TaskStatus
from nonet.web.site import Site, ensure

# Instead of the id of a task that a token of some classes may not see.
_OTHER = "(of another class)"
# Ends that say who ended the task and why, instead of an error that the task raised.
_TOLD = ("cancelled", "expired")
# Kinds of events whose text quotes an error; and those that quote a search, for labels or errors.
_QUOTING = frozenset({"config-refused", "overflow-hook", "startup-hook"})
_SEARCHED = frozenset({"tasks-cancelled", "tasks-resubmitted"})


class Named(Protocol):
    """Something that has the full name of a task class."""

    @property
    def name(self) -> str:
        """``CATEGORY:CLASS``."""
        ...


_Named = TypeVar("_Named", bound=Named)


def sees_details(who: Principal, task_class: str | None) -> bool:
    """Return whether `who` may see errors, labels and progress of a class (None: of no class)."""
    return who.may(Action.DETAILS, task_class)


def ensure_searchable(who: Principal, task_class: str | None, *details: object) -> None:
    """Raise 403 if `who` searches for details that it may not see: matches would reveal them."""
    if any(details):
        ensure(who, Action.DETAILS, task_class)


def visible(found: Iterable[_Named], who: Principal) -> list[_Named]:
    """Return the tasks of a list whose classes `who` may read."""
    return [item for item in found if who.may(Action.READ, item.name)]


def matched(number: int, rows: Sequence[object], who: Principal, task_class: str | None) -> int:
    """Return how many tasks match a search, or of how many of them `who` may know."""
    return number if who.may(Action.READ, task_class) else len(rows)


def status(found: TaskStatus, who: Principal) -> TaskStatus:
    """Return the status of a task as `who` may see it."""
    if sees_details(who, found.name):
        return found
    told = found.state in _TOLD
    return replace(
        found,
        error=found.error if told else error_type(found.error),
        traceback="",
        note=found.note and HIDDEN,
        blocker=_blocker(found),
        progress=replace(found.progress, text="") if found.progress else None,
    )


def _blocker(found: TaskStatus) -> str:
    """Return a lock or the steps before it.

    A dying task quotes SQL, and one that was handed back may quote itself.
    """
    is_plain = found.blocker.startswith(("lock:", "limiter:")) or names_steps(found.blocker)
    is_quoted = found.state == "dying" or (found.state == "waiting" and not is_plain)
    return found.blocker and HIDDEN if is_quoted else found.blocker


def ended(found: EndedTask, who: Principal) -> EndedTask:
    """Return an entry of the history as `who` may see it."""
    if sees_details(who, found.name):
        return found
    return replace(found, error=found.error if found.state in _TOLD else "", traceback="")


def dead_letter(found: DeadLetter, who: Principal) -> DeadLetter:
    """Return a dead letter as `who` may see it, without its arguments."""
    if sees_details(who, found.task_class):
        return replace(found, task_args=b"")
    return replace(
        found,
        task_args=b"",
        error_message="",
        traceback="",
        last_error=error_type(found.last_error),
        history=[_attempt(item) for item in found.history],
        labels={},
    )


def _attempt(found: Mapping[str, Any]) -> dict[str, Any]:
    return {**found, "error": error_type(str(found.get("error", "")))}


def worker(found: WorkerStatus, who: Principal) -> WorkerStatus:
    """Return a worker as `who` may see it: a problem of its configuration quotes values."""
    if not found.config_problem or sees_details(who, None):
        return found
    return replace(found, config_problem=HIDDEN)


def entry(found: EntryStatus) -> EntryStatus:
    """Return a periodic entry without its arguments."""
    return replace(found, args={})


def quarantined(found: Quarantined, who: Principal) -> Quarantined:
    """Return an entry of the quarantine as `who` may see it, without its data."""
    reason = found.reason if sees_details(who, None) else found.reason and HIDDEN
    return replace(found, reason=reason, data=b"")


def event(found: Event, who: Principal) -> Event:
    """Return an event as `who` may see it."""
    if found.kind not in _QUOTING | _SEARCHED or sees_details(who, None):
        return found
    if found.kind in _QUOTING:
        return replace(found, text=HIDDEN)
    number, colon, _ = found.text.partition(": ")
    return replace(found, text=f"{number}: {HIDDEN}" if colon else number)


async def overview(site: Site, who: Principal) -> Overview:
    """Read the overview as `who` may see it, at most once in two seconds for all viewers."""
    details = sees_details(who, None)
    nonet = site.nonet
    read = partial(
        nonet_overview,
        nonet.stores,
        nonet.settings,
        details=details,
        remember=site.shared.read,
    )
    found = await site.shared.read(("overview", details), 2.0, read)
    return replace(found, submitted=site.ring.submitted)


async def pipelines(site: Site, who: Principal) -> Sequence[PipelineStatus]:
    """Read the pipelines as `who` may see them, at most once in two seconds for all viewers."""
    found = await site.shared.read(("pipelines",), 2.0, site.nonet.stores.pipelines.read)
    return found if sees_details(who, None) else [item.without_details() for item in found]


async def pipeline(site: Site, who: Principal, name: str) -> PipelineStatus:
    """Read one pipeline as `who` may see it.

    Raises:
        HTTPException: 404, no process has reported it.
    """
    for item in await pipelines(site, who):
        if item.name == name:
            return item
    raise HTTPException(404, f"no process has reported a pipeline {name!r} within a day")


async def explanation(site: Site, id: str, who: Principal, task_class: str) -> Explanation:
    """Explain where a task is, as `who` may see it; see `nonet.Nonet.explain`.

    Args:
        task_class: class of the task.
    """
    details = sees_details(who, task_class)
    return why(*await site.nonet.client.explain_by_facts(id, details=details), who)[0]


def why(
    found: Explanation, facts: Facts | None, who: Principal
) -> tuple[Explanation, Facts | None]:
    """Return an explanation in which a token of some classes sees no tasks of others."""
    if who.classes is None or facts is None:
        return found, facts
    if facts.blocked is not None:
        facts = replace(facts, blocked=_blocked(facts.blocked, who))
        return _without_others(explain(facts)), facts
    refusal = facts.refusal
    if refusal is None:
        return found, facts
    holders = tuple(
        holder
        if who.may(Action.READ, holder.task)
        else replace(holder, id=_OTHER, task="", worker="")
        for holder in refusal.holders
    )
    facts = replace(facts, refusal=replace(refusal, holders=holders, first=""))
    return _without_others(explain(facts)), facts


def _without_others(found: Explanation) -> Explanation:
    return replace(found, next="") if _OTHER in found.next else found


def _blocked(found: Blocked, who: Principal) -> Blocked:
    steps = [step.name for step in (found.before, found.root) if step]
    return found.without([name for name in steps if not who.may(Action.READ, name)], _OTHER)


async def workflows(site: Site, states: Sequence[str], limit: int, cursor: str) -> WorkflowPage:
    """Read a page of the workflows, at most once in two seconds for all viewers."""
    read = partial(site.nonet.client.workflows.page, states, limit=limit, cursor=cursor)
    return await site.shared.read(("workflows", *states, limit, cursor), 2.0, read)


async def workflow(
    site: Site, who: Principal, id: str, *, state: str | None, offset: int, limit: int
) -> WorkflowReport:
    """Read one workflow as `who` may see it, at most once in two seconds for all viewers.

    Raises:
        NotFoundError: it is unknown, or is not kept any more.
    """
    details = sees_details(who, None)
    read = partial(
        workflow_report,
        id,
        site.nonet.client,
        offset=offset,
        limit=limit,
        state=state,
        details=details,
    )
    key = ("workflow", id, state, offset, limit, details)
    found = await site.shared.read(key, 2.0, read)
    if details:
        return found
    steps = [_step(step, who) for step in found.steps]
    return replace(found, steps=steps, failure=found.failure and _step(found.failure, who))


def _step(found: WorkflowStep, who: Principal) -> WorkflowStep:
    return replace(found, task=status(found.task, who))
