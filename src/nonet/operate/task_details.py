"""Everything that is known of one task: its state, attempts, locks, family and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nonet.base.errors import MalformedMessageError, NonetError, NotFoundError
from nonet.base.messages.documents import are_encrypted
from nonet.base.messages.formats import FORMAT, format_problem
from nonet.base.messages.message import Envelope, ResultDocument, decode
from nonet.client.client import Client
from nonet.operate.resubmission import why_closed
from nonet.rules.findings.timeline import Timeline, timeline
from nonet.stores.namespace.history import FAILED, Kept
from nonet.stores.namespace.lock_board import LockStatus
from nonet.stores.queue.details import TaskDetails, read_details
from nonet.stores.queue.places import LIVE_STATES
from nonet.stores.queue.results import error_line
from nonet.stores.stores import Stores
from nonet.tasks.handles import EndedTask, TaskStatus
from nonet.tasks.locks import added_limiters
from nonet.tasks.registry import Registry

if TYPE_CHECKING:
    from nonet.rules.letters import DeadLetter

_NAMED = 20


@dataclass(frozen=True, slots=True)
class LockUse:
    """A lock or limiter of a live task.

    Attributes:
        lock: its name.
        role: ``holds``, ``waits`` or ``needs`` (it does neither now).
        ttl_seconds: until the lock expires unless it is renewed; None: not held, or unknown.
        ahead: how many waiters are served before a waiting task; None: more than are read.
        status: the lock.
    """

    lock: str
    role: str
    ttl_seconds: float | None
    ahead: int | None
    status: LockStatus


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What is known of a task.

    Attributes:
        status: its status; of a task that only the history or a dead letter knows, made of that.
        is_live: it has not ended.
        timeline: its life.
        locks: its locks, while it is live.
        fence: fence of its running attempt, or empty.
        tenant: to whom it belongs while it is live, or empty.
        owner: incarnation of `status.worker`, while that is registered.
        groups: ids of the groups that it opened.
        envelope: its message, as far as it is kept.
        problem: why `envelope` is None.
        result: the document of its end, while it is kept.
        letter: its dead letter, if it has one.
    """

    status: TaskStatus
    is_live: bool
    timeline: Timeline
    locks: Sequence[LockUse]
    fence: str
    tenant: str
    owner: str
    groups: Sequence[str]
    envelope: Envelope | None
    problem: str
    result: ResultDocument | None
    letter: DeadLetter | None

    def why_not_again(self, registry: Registry) -> str:
        """Return why the task cannot be submitted again from here; empty if it can."""
        if not self.is_live and self.status.state not in FAILED:
            return f"it is {self.status.state}: its arguments are not kept"
        if self.letter is not None and self.letter.status != "PENDING":
            return f"dead letter {self.letter.id} was submitted again: {self.letter.resubmitted_as}"
        if self.envelope is None:
            return self.problem
        if registry.find(self.status.name) is None:
            return f"this task-web does not know {self.status.name}: start it with --tasks MODULE"
        return ""


async def read(client: Client, id: str) -> TaskReport:
    """Read everything that is known of a task.

    Raises:
        NotFoundError: nothing is known of it.
        ServerUnreachableError: Redis does not answer.
    """
    stores = client.stores
    # The status comes first: a task that ends in between is live with a result, and not done
    # without one.
    status, kept = await _status(id, client, stores)
    details = await read_details(stores.broker.scripts, id, stores.cipher)
    is_live = status is not None and status.state in LIVE_STATES
    letter = None
    if client.settings.may_have_sql() and (status is None or status.state == "dead"):
        letter = await _letter(id, stores)
    if letter is not None and status is not None and not _is_of(letter, status, kept):
        letter = None  # it belongs to an earlier task with the same id
    if status is None and letter is not None:
        status = _of_letter(letter)
    if status is None:
        raise NotFoundError(
            f"nothing is known of task {id}: it was never submitted here, or it ended long ago. "
            "Search the dead letters and the logs for it"
        )
    envelope, problem = _envelope(id, status.name, details, kept, letter, client)
    return TaskReport(
        status=status,
        is_live=is_live,
        timeline=timeline(
            status,
            details.failures,
            letter.history if letter else (),
            started=kept.task.started if kept else None,
        ),
        locks=await _locks(status, details, stores) if is_live else (),
        fence=details.record.get("fence", "") if status.state == "running" else "",
        tenant=details.record.get("tenant", ""),
        owner=_owner(status, details, kept),
        groups=await stores.groups.opened_by(id),
        envelope=envelope,
        problem=problem,
        result=details.ended.document if details.ended else None,
        letter=letter,
    )


def _owner(status: TaskStatus, details: TaskDetails, kept: Kept | None) -> str:
    if not status.worker:
        return ""
    owner = kept.task.worker if kept else details.record.get("owner", "")
    return owner if owner != status.worker else ""  # a forgotten worker has no name


async def _status(id: str, client: Client, stores: Stores) -> tuple[TaskStatus | None, Kept | None]:
    """Return the status, and what the history keeps of an ended task."""
    try:
        status = await client.status(id)
    except NotFoundError:
        status = None
    if status is not None and status.state in LIVE_STATES:
        return status, None
    kept = await stores.history.find(id)
    if kept is None or not _is_end_of(kept.task, status):
        return status, None
    known = status or _of_history(kept.task)
    found = await stores.history.with_end(known, kept.task)
    return replace(found, finished=kept.task.ended), kept


def _is_end_of(task: EndedTask, status: TaskStatus | None) -> bool:
    """Whether an end in the history is that of this task, not of an earlier one with its id."""
    if status is None:
        return True
    return task.state == status.state and status.name in ("", task.name)


def _is_of(letter: DeadLetter, status: TaskStatus, kept: Kept | None) -> bool:
    """Whether a letter is of this task. Without the history, compare reason and error."""
    if kept is not None:
        return kept.has_letter(letter.task_class, letter.generation)
    ends = ((one.reason, one.error) for one in (_of_letter(letter), status))
    return letter.task_class in ("", status.name) and len({*ends}) == 1


def _of_history(task: EndedTask) -> TaskStatus:
    return TaskStatus(
        id=task.id,
        name=task.name,
        state=task.state,
        attempt=task.attempt,
        reason=task.reason,
        error=error_line(task.error_type, task.error),
        traceback=task.traceback,
    )


def _of_letter(letter: DeadLetter) -> TaskStatus:
    return TaskStatus(
        id=letter.task_id,
        name=letter.task_class,
        state="dead",
        attempt=letter.retry_count + 1,
        submitted=letter.submitted_at,
        finished=letter.created_at,
        reason=letter.reason,
        error=letter.last_error,
        traceback=letter.traceback,
    )


async def _letter(id: str, stores: Stores) -> DeadLetter | None:
    try:
        letters = await stores.dead_letters()
        rows = await letters.list(limit=1, task_id=id)
        return await letters.get(rows[0].id) if rows else None
    except NonetError:  # no database, or it does not answer: the page shows what Redis has
        return None


def _envelope(
    id: str,
    name: str,
    details: TaskDetails,
    kept: Kept | None,
    letter: DeadLetter | None,
    client: Client,
) -> tuple[Envelope | None, str]:
    """Return the message of a task, or why there is none."""
    if letter is not None and letter.task_class:
        try:
            args = decode(letter.task_args)
        except MalformedMessageError as error:
            return None, str(error)
        if are_encrypted(args):
            return None, f"they are {why_closed(args, client.cipher)}"
        at = letter.submitted_at.timestamp()
        parent = letter.parent_id or ""
        return Envelope(FORMAT, id, letter.task_class, args, dict(letter.labels), at, parent), ""
    data = details.envelope or (kept.envelope if kept else b"")
    if not data:
        return None, _no_envelope(details, kept)
    try:
        envelope = client.envelopes.read_again(id, data)
    except MalformedMessageError as error:
        return None, str(error)
    if name not in ("", envelope.name):
        return None, f"its message belongs to a task of another class, {envelope.name}"
    if problem := format_problem(envelope.version):
        return None, f"another release wrote it ({problem})"
    return envelope, ""


def _no_envelope(details: TaskDetails, kept: Kept | None) -> str:
    if details.record:
        return "its message is missing in Redis"
    if kept is None:
        return "its arguments are not kept"
    if kept.task.reason == "quarantined":
        return "it was quarantined: the quarantine has its message"
    if kept.task.state in FAILED:
        return "its arguments were not kept, because they are large"
    return f"it is {kept.task.state}: the history keeps the arguments of failures only"


async def _locks(status: TaskStatus, details: TaskDetails, stores: Stores) -> list[LockUse]:
    own = added_limiters(status.name.rpartition(":")[2], details.record.get("tenant", ""))
    names = list(dict.fromkeys((*details.locks, *own)))
    uses = []
    for found in await stores.locks.named(names, show=_NAMED):
        use = _use(status, found)
        # The limiters of a class and a tenant are usually off.
        if found.lock in details.locks or use.role == "waits" or found.limit is not None:
            uses.append(use)
    return uses


def _use(status: TaskStatus, lock: LockStatus) -> LockUse:
    holders = {item.id: item for item in lock.holders}
    waiters = [item.id for item in lock.waiters]
    if status.id in holders:
        return LockUse(lock.lock, "holds", holders[status.id].ttl_seconds, None, lock)
    if status.id in waiters:
        return LockUse(lock.lock, "waits", None, waiters.index(status.id), lock)
    if status.state == "running" and not lock.kind.startswith("rate"):
        return LockUse(lock.lock, "holds", None, None, lock)
    role = "waits" if status.state == "waiting" and lock.waiting > len(waiters) else "needs"
    return LockUse(lock.lock, role, None, None, lock)
