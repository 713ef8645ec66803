"""Decides whether a `System` is idle, and explains what keeps it busy."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from nonet.base.errors import NotFoundError
from nonet.stores.namespace.sandbox import Sandbox, Survey, Unfinished
from nonet.tasks.schedules import Overlap
from nonet.testing.running import Running

if TYPE_CHECKING:
    from nonet.rules.periodic import EntryStatus

# How long only queued tasks must be left before their causes are checked.
_STUCK_SECONDS = 0.3
_MOST_EXPLAINED = 20
# Causes of `Explanation` that never end here, and those that only the test can end.
_NEVER = ("worker", "impossible")
_FOR_OTHERS = ("paused",)
_BUSY = ("queued", "running", "dying")


class NotIdleError(AssertionError):
    """`System.run_until_idle` did not end; the message explains each task that is left.

    Example:
        with suppress(NotIdleError):
            await system.run_until_idle(timeout=0.1)
    """


class IdleCheck:
    """Checks a system again and again until nothing is left to do."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._app = running.app
        self._stuck_since = time.monotonic()

    async def is_idle(self) -> bool:
        """Whether nothing is left to do now.

        Raises:
            NotIdleError: a task waits for something that never happens here.
        """
        __tracebackhide__ = True
        self._running.check()
        survey = self._running.sandbox.survey()
        if not _has_work(survey) and (quiet := await self._quiet()) is not None:
            await self._refuse_stuck(quiet, "waiting")
            return True
        now = time.monotonic()
        if any(item.state in ("running", "dying") for item in survey.unfinished):
            self._stuck_since = now
        if now - self._stuck_since < _STUCK_SECONDS:
            return False
        self._stuck_since = now
        return await self._is_for_others(survey)

    async def _quiet(self) -> Survey | None:
        """Return the tasks left when neither schedules nor the outbox have any due; else None.

        The order matters: schedules, outbox, survey. An occurrence that is not due when the
        schedules are read does not fire later, so no task starts after the survey and none is
        written to the outbox.
        """
        running = self._running
        due = await self._due_entries()
        prepared, survey = running.envelopes.prepared, running.sandbox.survey()
        if _has_work(survey):
            return None
        left = {item.id: item for item in survey.unfinished}
        if not all(_is_held_up(entry, left) for entry in due):
            running.pace.hurry()
            return None
        if not self._uses_outbox():
            return survey
        if await self._is_outbox_due():
            running.pace.hurry()
            return None
        # A task that was handed over meanwhile may have run, and may have submitted other tasks.
        survey = running.sandbox.survey()
        is_same = running.envelopes.prepared == prepared
        return survey if is_same and not _has_work(survey) else None

    async def _due_entries(self) -> list[EntryStatus]:
        """The periodic entries with a due occurrence that has not fired."""
        now = await self._app.broker.now()
        found = await self._app.stores.periodic.statuses()
        return [
            item for item in found if item.enabled and item.next is not None and item.next <= now
        ]

    def _uses_outbox(self) -> bool:
        has_sql = self._app.settings.may_have_sql()
        return has_sql and any(item.cls.durable for item in self._app.registry)

    async def _is_outbox_due(self) -> bool:
        waiting, _ = await (await self._app.stores.outbox()).overdue(0.0)
        return waiting > 0

    async def _refuse_stuck(self, survey: Survey, state: str) -> None:
        """Raises `NotIdleError` if a task in this state can never run here."""
        __tracebackhide__ = True
        there = [item for item in survey.unfinished if item.state == state]
        stuck = [line for item in there if (line := await self._explained(item, only=_NEVER))]
        if stuck:
            tasks = "1 task" if len(stuck) == 1 else f"{len(stuck)} tasks"
            raise NotIdleError(listed(f"{tasks} can never run here", stuck))

    async def _is_for_others(self, survey: Survey) -> bool:
        """Whether only queued tasks are left that the test itself must release."""
        __tracebackhide__ = True
        await self._refuse_stuck(survey, "queued")
        queued = [item for item in survey.unfinished if item.state == "queued"]
        paused = [item for item in queued if await self._explained(item, only=_FOR_OTHERS)]
        return len(queued) == len(paused) > 0

    async def why_not(self, timeout: float) -> str:
        """Explain what is left to do after a timeout in seconds."""
        survey = self._running.sandbox.survey()
        busy = [item for item in survey.unfinished if item.state in _BUSY]
        lines = [line for item in busy[:_MOST_EXPLAINED] if (line := await self._explained(item))]
        if len(busy) > _MOST_EXPLAINED:
            lines.append(f"… and {len(busy) - _MOST_EXPLAINED} others")
        now = await self._app.broker.now()
        due = [
            f"{task}: {number:,} occurrence{'s' * (number != 1)} of its schedule due. Leave the "
            "class out with @pytest.mark.nonet(tasks=[…]), or advance by less"
            for task, number in self._running.scheduler.periodic.overdue(now)
        ]
        lines = due + lines
        if not lines:
            lines.append("something is due, but the scheduler does not move it: see its log")
        return listed(f"not idle after {timeout:g} s", lines)

    async def _explained(self, item: Unfinished, *, only: Sequence[str] = ()) -> str:
        """Return why a task has not ended; empty if it has ended or `only` excludes the cause."""
        try:
            why = await self._app.explain(item.id)
        except NotFoundError:
            return ""
        if why.cause == "ended" or (only and why.cause not in only):
            return ""
        return f"{item.name} {item.id}: {why.line}"


def refuse_leaks(sandbox: Sandbox) -> None:
    """Raises `AssertionError` if a key neither expires nor belongs to an unfinished task."""
    __tracebackhide__ = True
    if leaked := sandbox.leaked():
        text = "these keys neither expire nor belong to an unfinished task"
        raise AssertionError(listed(text, leaked))


def listed(head: str, lines: Sequence[str]) -> str:
    """A headline, and lines below it."""
    return "\n".join([f"{head}:", *(f"  {line}" for line in lines)])


def _has_work(survey: Survey) -> bool:
    is_due = survey.next_due is not None and survey.next_due <= timedelta(0)
    return is_due or any(item.state in _BUSY for item in survey.unfinished)


def _is_held_up(entry: EntryStatus, left: Mapping[str, Unfinished]) -> bool:
    """Whether a due entry waits for its last occurrence, as script `fire` decides it.

    Args:
        left: the tasks that have not ended; none of them is running.
    """
    before = left.get(entry.last_id)
    if before is None or entry.paused:
        return False
    return not before.has_run or entry.overlap == Overlap.QUEUE
