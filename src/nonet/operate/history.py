"""The history: tasks that have ended; submit failed ones again, each at most once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import Field

from nonet.base.actor import who
from nonet.base.errors import (
    ConflictError,
    InvalidArgumentsError,
    MalformedMessageError,
    NotFoundError,
    UnknownTaskError,
)
from nonet.base.messages.formats import format_problem
from nonet.base.messages.message import Envelope
from nonet.base.messages.repetition import REPEATS_END, Known, Repeat, repeat_of_end
from nonet.operate import resubmission
from nonet.operate.audited import audited
from nonet.operate.lists import Searched, opened, searched
from nonet.operate.tasks import AnyTaskQuery
from nonet.rules.findings import remedies
from nonet.rules.permissions import Action
from nonet.stores.namespace.history import FAILED, EndedFilter, History, Kept, cursor_of
from nonet.tasks.handles import EndedTask, Handle

if TYPE_CHECKING:
    from nonet.client.client import Client
    from nonet.stores.stores import Stores

EndState = Literal["done", "dead", "cancelled", "expired"]
_Find: TypeAlias = Callable[[str], Awaitable[Kept | None]]
# How long a preview counts, and how many reasons of refusals are kept.
_PREVIEW_SECONDS = 2.0
_PROBLEMS = 10
_BUDGET = 22_000


class EndedQuery(AnyTaskQuery):
    """Which ended tasks are listed."""

    state: tuple[EndState, ...] = Field(
        default=(), description="Only tasks that ended in this state. Repeatable."
    )

    @property
    def budget(self) -> int:
        """How many tasks to examine: as many as are kept by default."""
        return self.search or _BUDGET

    async def filter(
        self, stores: Stores, states: Sequence[str] = (), until: datetime | None = None
    ) -> EndedFilter:
        """Return the filter for the stores.

        Args:
            states: instead of `state`.
            until: latest end.
        """
        query = self.asked(until=until)
        return await query.ended(stores.broker, stores.results, tuple(states) or self.state)

    async def failures(self, stores: Stores, until: datetime | None = None) -> EndedFilter:
        """Return the filter for the failures among them, which can be submitted again."""
        failed = tuple(state for state in self.state if state in FAILED)
        return await self.filter(stores, failed or tuple(FAILED), until)


async def find(stores: Stores, query: EndedQuery) -> Searched[EndedTask]:
    """Return the tasks that ended last, the newest first.

    Labels are known of failures only. The last page alone has fewer items than `limit`, unless
    `search` tasks are examined before.
    """
    found = await stores.history.page(
        await query.filter(stores),
        limit=query.limit,
        budget=query.budget,
        cursor=opened(query.cursor),
    )
    return searched(found)


async def get(stores: Stores, id: str) -> EndedTask:
    """Return how a task ended, also when its result is not kept any more.

    Raises:
        NotFoundError: the history does not have it.
    """
    kept = await stores.history.find(id)
    if kept is None:
        raise NotFoundError(f"task {id} is not in the history: it has not ended, or long ago")
    return kept.task


@audited(Action.RESUBMIT, "task {id}: submit again: {changes}")
async def resubmit(
    client: Client, id: str, changes: Mapping[str, Any] | None = None
) -> Handle[Any]:
    """Submit a failed task again as a new task, once: its id is derived from the failed one.

    Args:
        changes: arguments by name that replace those of the failed task.

    Raises:
        NotFoundError: the history does not have the task.
        ConflictError: it has not failed; or it is a dead letter, was quarantined, or its message
            was not kept; or it was submitted again before. The message names the next step.
        UnknownTaskError: its class is not registered.
        InvalidArgumentsError: its class rejects the arguments.
    """
    stores = client.stores
    kept = await stores.history.find(id)
    if kept is None:
        raise NotFoundError(
            f"task {id} is not in the history of ended tasks: 'task-run history' lists them"
        )
    if kept.task.state not in FAILED:
        raise ConflictError(
            f"task {id} is {kept.task.state}: only failed tasks are submitted again"
        )
    await client.live_config.refresh()
    if row := await _row_of(kept, client):
        raise ConflictError(f"task {id} is a dead letter: 'task-run dlq resubmit {row}' submits it")
    handle = await _submit(kept, client, stores.history.find, changes)
    await stores.events.log("tasks-resubmitted", who(), f"task {id} as {handle}")
    return handle


@dataclass(frozen=True, slots=True)
class FailurePreview:
    """What `resubmit_all` would submit.

    Attributes:
        classes: how many failures match, by class.
        moment: pass it to `resubmit_all`, which leaves alone what ends later.
        is_exact: False if the time was over before all failures were examined.
    """

    classes: Mapping[str, int]
    moment: datetime
    is_exact: bool

    @property
    def number(self) -> int:
        """How many failures match."""
        return sum(self.classes.values())


async def preview_resubmit(client: Client, selection: EndedFilter) -> FailurePreview:
    """Count the failures that match.

    Args:
        selection: its states are failures.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    moment = await client.stores.broker.logical_now()
    classes, end, is_exact = Counter[str](), time.monotonic() + _PREVIEW_SECONDS, True
    async with aclosing(client.stores.history.kept(selection)) as walk:
        async for _, _, kept in walk:
            if kept is not None:
                classes[kept.task.name] += 1
            if time.monotonic() > end:
                is_exact = False
                break
    return FailurePreview(classes, moment, is_exact)


@dataclass(frozen=True, slots=True)
class Resubmitted:
    """What a call of `resubmit_all` did.

    Attributes:
        number: how many tasks it submitted.
        refused: how many it did not, and `problems` has the reasons of some.
        cursor: continues behind the last failure; empty at the end.
    """

    number: int
    refused: int
    problems: Sequence[str]
    cursor: str


@audited(Action.RESUBMIT, "all failures: {words}")
async def resubmit_all(
    client: Client,
    selection: EndedFilter,
    words: str = "",
    *,
    cursor: str = "",
    seconds: float = 20.0,
) -> Resubmitted:
    """Submit failed tasks of the history again, each at most once, dead letters too.

    Args:
        selection: its states are failures; its ``until`` is `FailurePreview.moment`.
        words: which failures, for the event stream.
        cursor: `Resubmitted.cursor` of the call before.
        seconds: end after this time.

    Raises:
        ServerUnreachableError: Redis or SQL does not answer. Some tasks may be submitted: a task
            that was is refused when it is tried again.
        AdmissionRejected: a ceiling is reached.
    """

    history, letters = client.stores.history, client.stores.dead_letters
    await client.live_config.refresh()
    repeats = await _ended_repeats(history)

    async def find(id: str) -> Kept | None:
        return repeats.get(id)

    end, next = time.monotonic() + seconds, ""
    number, refused, problems = 0, 0, list[str]()
    async with aclosing(history.kept(selection, cursor=cursor)) as walk:
        async for _, position, kept in walk:
            if kept is None:
                continue
            try:
                if row := await _row_of(kept, client):
                    await resubmission.resubmit(row, client, await letters())
                else:
                    await _submit(kept, client, find)
                number += 1
            except (ConflictError, UnknownTaskError, InvalidArgumentsError) as error:
                refused += 1
                problems += [str(error)] if len(problems) < _PROBLEMS else []
            if time.monotonic() > end:
                next = cursor_of(position)
                break
    if number:
        await client.stores.events.log("tasks-resubmitted", who(), f"{number} tasks: {words}")
    return Resubmitted(number, refused, problems, next)


async def _ended_repeats(history: History) -> dict[str, Kept]:
    """Read once which repeats have ended: a search for each failure would read all each time."""
    walk = history.kept(EndedFilter())
    found = [kept async for _, _, kept in walk if kept and kept.task.id.startswith(REPEATS_END)]
    return {kept.task.id: kept for kept in found}


async def _submit(
    kept: Kept, client: Client, find: _Find, changes: Mapping[str, Any] | None = None
) -> Handle[Any]:
    id = kept.task.id
    repeat = repeat_of_end(client.stores.history.namespace, id, kept.life)
    envelope = _readable(kept, client)
    await _check_repeat(id, repeat, client, find)
    submission = client.envelopes.prepare_again(
        envelope.name,
        envelope.args,
        repeat,
        labels=envelope.labels,
        changes=changes,
        callback_of=envelope.group,
    )
    durable = client.registry.get(envelope.name).cls.durable
    handle = await client.send(submission, durable=durable)
    if handle != repeat.id:
        raise ConflictError(f"task {id} was not submitted again: task {handle} has its unique key")
    if not handle.created:  # a concurrent call was faster, or another task has the id
        await _check_repeat(id, repeat, client, find)
    return handle


async def _row_of(kept: Kept, client: Client) -> int | None:
    """Return the row of the dead letter of a task, if it is one."""
    task_class = client.registry.find(kept.task.name)
    overrides = client.live_config.overrides
    if task_class is None or not any(
        overrides.effective(task_class, vo).dlq_eligible for vo in overrides.vos
    ):
        return None
    letters = await client.stores.dead_letters()
    rows = await letters.list(limit=1, task_id=kept.task.id)
    is_its = bool(rows) and kept.has_letter(rows[0].task_class, rows[0].generation)
    return rows[0].id if is_its else None


def _readable(kept: Kept, client: Client) -> Envelope:
    id, name = kept.task.id, kept.task.name
    if kept.task.reason == "quarantined":
        raise ConflictError(
            f"task {id} was quarantined: 'task-run quarantine list' shows its entry, and "
            "'task-run quarantine retry ENTRY' submits it"
        )
    if not kept.envelope:
        submit = remedies.of_task("submit", name)
        raise ConflictError(
            f"the arguments of task {id} were not kept, because they are large: '{submit} "
            "--args …' submits it with the arguments that you type"
        )
    try:
        envelope = client.envelopes.read_again(id, kept.envelope)
    except MalformedMessageError as error:
        raise ConflictError(f"task {id} was not submitted again: {error}") from None
    if problem := format_problem(envelope.version):
        raise ConflictError(
            f"task {id} was written by another release ({problem}): submit it with that one"
        )
    return envelope


async def _check_repeat(id: str, repeat: Repeat, client: Client, find: _Find) -> None:
    """Raise `ConflictError` if the task was submitted again before, as far as that is known."""
    known = await client.recognise(repeat.id)
    if known is None and (ended := await find(repeat.id)) is not None:
        known = Known(ended.task.state, repeat.mark)
    if known is None:
        return
    if known.mark != repeat.mark:
        raise ConflictError(
            f"task {id} was not submitted again: another task has the id {repeat.id}"
        )
    submit = remedies.of_task("resubmit", repeat.id)
    again = f"; '{submit}' submits that one" if known.state in FAILED else ""
    raise ConflictError(
        f"task {id} was submitted again already: task {repeat.id} is {known.state}{again}"
    )
