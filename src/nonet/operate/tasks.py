"""Tasks: which are live, one in full, its result and its arguments; cancel one or many."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import Field, StringConstraints

from nonet.base.actor import who
from nonet.base.durations import moment as age_of
from nonet.base.errors import ConflictError, NotFoundError
from nonet.base.messages.repetition import repeat_of_live
from nonet.base.plain import plain
from nonet.operate.audited import Cancelled, audited
from nonet.operate.lists import Age, ListQuery, Searched, Text, opened, searched
from nonet.rules.findings import remedies
from nonet.rules.permissions import Action
from nonet.rules.workflows import not_a_task
from nonet.stores.namespace.task_queries import TaskQuery, page_of_lock
from nonet.stores.queue.places import LIVE_STATES, UNFINISHED, TaskFilter
from nonet.tasks.handles import Handle, TaskStatus
from nonet.tasks.secrecy import mask_names, masked_arguments, masked_result

if TYPE_CHECKING:
    from nonet.client.client import Client
    from nonet.operate.task_details import TaskReport
    from nonet.stores.stores import Stores

LiveState = Literal["queued", "delayed", "waiting", "running", "dying"]
Label = Annotated[
    str, StringConstraints(max_length=1000, pattern=r"^[^\x00-\x1f\x7f=]+=[^\x00-\x1f\x7f]+$")
]
TaskId = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,128}$")]
# How many tasks a list examines, so that it takes less than 0.3 s. Labels are in the messages of
# tasks, which are read one by one.
_BUDGET, _LABELLED = 5000, 1000
# How many tasks the preview of a mass cancellation shows, and how long one call cancels: a browser
# or a proxy does not wait for a million tasks.
_SAMPLE, _SECONDS = 10, 20.0


class AnyTaskQuery(ListQuery):
    """What can be asked of live and of ended tasks."""

    task_id: tuple[TaskId, ...] = Field(
        default=(), max_length=200, description="Only the tasks with these ids. Repeatable."
    )
    task: Text = Field(
        default="",
        description="Only this task class: its full name `category:Class`, or its bare name.",
    )
    label: tuple[Label, ...] = Field(
        default=(),
        max_length=20,
        description="Only tasks with this label, `NAME=VALUE`. Repeatable.",
    )
    worker: Text = Field(
        default="", description="Only tasks that this worker has, or ended: `pid@host` or its id."
    )
    error: Text = Field(default="", description="Only tasks whose last error contains this text.")
    since: Age = Field(
        default="", description="Only tasks that were submitted, or ended, since then: `1h`."
    )
    search: int | None = Field(
        default=None,
        ge=1,
        le=10**6,
        description="Examine at most this many tasks in each place; by default 22000 ended tasks, "
        "or 5000 live ones, or 1000 if a label is given.",
    )

    @property
    def labels(self) -> dict[str, str]:
        """The labels by name."""
        return {name: value for name, _, value in (pair.partition("=") for pair in self.label)}

    @property
    def budget(self) -> int:
        """How many tasks to examine."""
        return self.search or (_LABELLED if self.label else _BUDGET)

    def asked(self, **more: Any) -> TaskQuery:
        """Return the query for the stores."""
        return TaskQuery(
            ids=self.task_id,
            task=self.task or None,
            labels=self.labels,
            worker=self.worker or None,
            error=self.error,
            since=datetime.now(UTC) - age_of(self.since) if self.since else None,
            **more,
        )


class LiveQuery(AnyTaskQuery):
    """Which live tasks are listed."""

    state: LiveState | None = Field(default=None, description="Only tasks in this state.")
    lock: Text = Field(
        default="", description="Only tasks that hold this lock or limiter, or wait for it."
    )
    tenant: Text = Field(default="", description="Only tasks of this tenant.")

    async def filter(self, stores: Stores) -> TaskFilter:
        """Return the filter for the stores."""
        states = (self.state,) if self.state else ()
        return await self.asked(tenant=self.tenant).live(stores.broker, stores.results, states)

    async def cancellable(self, stores: Stores) -> TaskFilter:
        """Return the filter for the tasks of the list that can be cancelled.

        Raises:
            ValueError: it selects by lock, or dying tasks.
        """
        if self.lock or self.state == "dying":
            raise ValueError("tasks are not cancelled by lock, nor while they are dying")
        found = await self.filter(stores)
        return found if self.state else replace(found, states=UNFINISHED)


async def find(stores: Stores, query: LiveQuery) -> Searched[TaskStatus]:
    """Return live tasks: running ones first, then waiting, dying, queued and delayed ones.

    A page with a filter can have fewer items than `limit`, even none, although more follow. The
    list of a lock has one page.

    Raises:
        InvalidArgumentsError: `lock` is not the name of a lock.
    """
    selection = await query.filter(stores)
    if query.lock:
        page = page_of_lock(stores.results, stores.locks, query.lock, selection, query.limit)
        return searched(await page)
    found = await stores.results.page(
        selection, limit=query.limit, budget=query.budget, cursor=opened(query.cursor)
    )
    return searched(found)


async def details(client: Client, id: str) -> TaskReport:
    """Return everything that is known of a task, for its page.

    Raises:
        NotFoundError: nothing is known of it.
    """
    from nonet.operate.task_details import read  # `--help` goes without what it imports

    return await read(client, id)


async def get(client: Client, id: str) -> TaskStatus:
    """Return the status of a task, live or ended.

    Raises:
        NotFoundError: it is unknown, or the id of a workflow or a group.
    """
    with suppress(NotFoundError):
        found = await client.status(id)
        if found.name:
            return found
    if await client.stores.workflows.exists(id):
        raise NotFoundError(not_a_task(id))
    try:
        return (await details(client, id)).status
    except NotFoundError as error:
        problem = str(error)
    with suppress(NotFoundError):
        await client.stores.groups.status(id)
        show = remedies.of("task-run groups", id)
        problem = f"{id} is a group, not a task: '{show}' shows it"
    raise NotFoundError(problem)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended, or that it has not.

    Attributes:
        id: of the task.
        task: full name of its class.
        state: as in the status of a task.
        has_result: whether it is done and its result is kept.
        result: what ``execute`` returned; in the API with secrets masked.
        error: error of the last attempt, or who cancelled it and why.
        reason: why it is dead: ``retries``, ``crash`` …
        traceback: of the error.
        note: why the result was not kept; else empty.
    """

    id: str
    task: str
    state: str
    has_result: bool
    result: Any
    error: str
    reason: str
    traceback: str
    note: str

    @property
    def is_live(self) -> bool:
        """Whether the task has not ended."""
        return self.state in LIVE_STATES

    @property
    def sentence(self) -> str:
        """Why there is no result."""
        task = f"task {self.id} ({self.task})" if self.task else f"task {self.id}"
        if self.is_live:
            show = remedies.of_task("explain", self.id)
            return f"{task} has not ended, it is {self.state}: '{show}' shows why"
        why = f" ({self.reason})" if self.reason else ""
        return f"{task} is {self.state}{why}: {self.note or self.error}"


async def outcome(client: Client, id: str, wait: float = 0.0, *, is_masked: bool = True) -> Outcome:
    """Return how a task ended; wait some seconds for its end.

    Args:
        is_masked: hide secrets of the result; all of it if its class is not loaded.

    Raises:
        NotFoundError: the task is unknown.
    """
    status = await get(client, id)
    if status.state in LIVE_STATES and wait:
        with suppress(TimeoutError):
            await client.ended(id, wait)
        status = await get(client, id)
    ended = await client.ended(id, 0.0) if status.state == "done" else None
    document = ended.document if ended else None
    value, note = None, status.note
    if document is None and status.state == "done":
        note = "its result is not kept any more (NONET_RESULT_TTL)"
    if document is not None and not note:
        task_class = client.registry.find(status.name)
        cls = task_class.cls if task_class else None
        value = masked_result(document.value, cls) if is_masked else document.value
    return Outcome(
        id=id,
        task=status.name,
        state=status.state,
        has_result=document is not None and not note,
        result=value,
        error=status.error,
        reason=status.reason,
        traceback=status.traceback,
        note=note,
    )


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a task was submitted with.

    Attributes:
        id: of the task.
        task: full name of its class.
        arguments: by name, with secrets masked.
        is_masked: whether any of them is masked.
        labels: of the task.
    """

    id: str
    task: str
    arguments: Mapping[str, Any]
    is_masked: bool
    labels: Mapping[str, Any]


@audited(Action.REVEAL, "arguments of task {id}")
async def arguments(client: Client, id: str) -> Arguments:
    """Return the arguments of a live task, or of a failed one as long as they are kept.

    Raises:
        NotFoundError: they are unknown.
    """
    report = await details(client, id)
    envelope, task = report.envelope, report.status.name
    if envelope is None:
        raise NotFoundError(f"the arguments of task {id} are unknown: {report.problem}")
    task_class = client.registry.find(envelope.name)
    shown = masked_arguments(envelope.args, task_class.cls if task_class else None)
    return Arguments(id, task, shown, shown != envelope.args, mask_names(envelope.labels))


@audited(Action.REVEAL, "arguments of tasks {ids} with {text!r}")
async def arguments_of(client: Client, ids: Sequence[str], text: str = "") -> dict[str, Arguments]:
    """Return the arguments of some tasks, as far as they are known, if they contain a text.

    Args:
        text: part of their JSON, in any case of letters.
    """
    found = dict[str, Arguments]()
    for id in ids:
        with suppress(NotFoundError):
            shown = await arguments(client, id)
            if text.lower() in json.dumps(plain(shown.arguments), ensure_ascii=False).lower():
                found[id] = shown
    return found


@audited(Action.CANCEL, "task {id}: cancel: {reason}")
async def cancel(client: Client, id: str, reason: str = "") -> Cancelled:
    """Cancel a task in whatever state it is; it does not run any further.

    Raises:
        ConflictError: it has ended, or is unknown.
    """
    state = (await client.cancel([id], reason=reason))[id]
    if state not in ("cancelled", "cancelling"):
        raise ConflictError(f"task {id} is {state or 'gone'} and can no longer be cancelled")
    return Cancelled(id, state)


@dataclass(frozen=True, slots=True)
class CancelledMany:
    """The tasks that were cancelled; in a preview, those that would be.

    Attributes:
        dry_run: it is a preview.
        number: how many tasks were cancelled, or would be. A preview leaves out durable tasks that
            are still in SQL only.
        is_exact: false if the number of a preview is an estimate.
        is_complete: false if there are more: send the request again with the same moment.
        moment: send it with the real call, which leaves alone what is submitted later.
        sample: in a preview, some of the tasks.
        running: ids of the tasks that their workers still have to end.
    """

    dry_run: bool
    number: int
    is_exact: bool
    is_complete: bool
    moment: datetime
    sample: Sequence[TaskStatus] = ()
    running: Sequence[str] = ()


async def preview_cancel(client: Client, selection: TaskFilter) -> CancelledMany:
    """Estimate how many tasks match, at a cost that does not depend on their number.

    Args:
        selection: its states are some of `nonet.stores.queue.places.UNFINISHED`.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    moment = await client.stores.broker.logical_now()
    page = await client.stores.results.page(selection, limit=_SAMPLE, budget=_BUDGET)
    is_exact = page.searched >= page.total
    number = page.matched
    if not is_exact and selection.is_narrow and page.searched:
        number = round(page.matched * page.total / page.searched)
    return CancelledMany(True, number, is_exact, True, moment, page.rows)


@audited(Action.CANCEL, "all tasks: {selection}, submitted until {moment:%F %T}: {reason}")
async def cancel_many(
    client: Client, selection: TaskFilter, moment: datetime, reason: str = ""
) -> CancelledMany:
    """Cancel the tasks of a selection that existed at a moment, for some seconds.

    If the result is not complete, call it again with the same moment: it continues.

    Args:
        moment: of `preview_cancel`.

    Raises:
        ServerUnreachableError: Redis or SQL does not answer. Some tasks may be cancelled; call it
            again.
    """
    done = await client.cancellation.cancel_all(
        replace(selection, until=moment), who(), reason, seconds=_SECONDS
    )
    return CancelledMany(False, done.number, True, done.is_complete, moment, running=done.running)


@audited(Action.RESUBMIT, "task {id}: submit a copy: {changes}")
async def copy(
    client: Client, id: str, request: str, changes: Mapping[str, Any] | None = None
) -> Handle[Any]:
    """Submit a task that has not ended once more, with the same labels.

    Args:
        request: identifies the request: a second call with it submits nothing.
        changes: arguments by name that replace those of the task.

    Raises:
        ConflictError: its arguments are unknown.
        UnknownTaskError: its class is not registered.
        InvalidArgumentsError: its class rejects the arguments.
    """
    report = await details(client, id)
    envelope = report.envelope
    if envelope is None:
        raise ConflictError(f"task {id} cannot be submitted again: {report.problem}")
    await client.live_config.refresh()
    repeat = repeat_of_live(client.settings.namespace, id, request)
    submission = client.envelopes.prepare_again(
        envelope.name,
        envelope.args,
        repeat,
        labels=envelope.labels,
        changes=changes,
        callback_of=envelope.group,
    )
    durable = client.registry.get(envelope.name).cls.durable
    return await client.send(submission, durable=durable)
