"""Dead letters: find them and what they have in common; submit them again, discard, note."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import Field

from nonet.base.actor import who
from nonet.base.durations import moment
from nonet.base.errors import MalformedMessageError, NonetError, NotFoundError
from nonet.base.messages.documents import are_encrypted
from nonet.base.messages.encryption import Cipher
from nonet.base.messages.message import decode
from nonet.base.plain import counted, few
from nonet.operate.audited import audited
from nonet.operate.lists import (
    Age,
    ListQuery,
    Page,
    Selection,
    Text,
    cut,
    number_in,
    sealed,
    view_of,
)
from nonet.operate.resubmission import (
    Outcome,
    Pages,
    resubmit as resubmit_one,
    submit_many,
    why_closed,
)
from nonet.rules.letters import Cluster, LetterFilter, Status
from nonet.rules.permissions import Action
from nonet.tasks.secrecy import mask_names, masked_arguments

if TYPE_CHECKING:
    from nonet.client.client import Client
    from nonet.stores.sql.dead_letters import DeadLetters
    from nonet.tasks.handles import Handle
    from nonet.tasks.registry import Registry

LARGEST_ROW = 2**63 - 1
Log: TypeAlias = Callable[[str, str], Awaitable[None]]
"""Records a change of SQL in the event stream: its kind and its text."""


class LetterSelection(Selection):
    """Selects letters by what is given; what is left out selects any."""

    status: Status | None = Field(
        default=None,
        description="Only letters in this state: PENDING (not resubmitted), DISPATCHED "
        "(resubmitted), FAILED (the resubmitted task died too).",
    )
    task: Text = Field(
        default="", description="Only letters of this class: its full or its bare name."
    )
    reason: Text = Field(
        default="", description="Only letters with this reason: retries, arguments, worker-lost …"
    )
    error: Text = Field(
        default="", description="Only letters whose exception has this in its name."
    )
    cluster: Text = Field(
        default="", description="Only letters of this cluster: its `fingerprint`."
    )
    task_id: Text = Field(default="", description="Only letters of the task with this id.")
    older_than: Age = Field(
        default="", description="Only letters that died before: 30d, 12h, 90m ago, or an instant."
    )
    newer_than: Age = Field(
        default="", description="Only letters that died after: 30d, 12h, 90m ago, or an instant."
    )

    letter: tuple[Annotated[int, Field(ge=0, le=LARGEST_ROW)], ...] = Field(
        default=(), max_length=200, description="Only the letters in these rows. Repeatable."
    )

    @property
    def given(self) -> dict[str, Any]:
        """The filters that are set."""
        names = set(LetterSelection.model_fields)
        return self.model_dump(include=names, exclude_defaults=True)

    @property
    def in_words(self) -> str:
        """The selection for people."""
        given = {name: few(v) if name == "letter" else v for name, v in self.given.items()}
        return ", ".join(f"{name} {value}" for name, value in given.items()) or "all"

    def fields(self, registry: Callable[[], Registry]) -> dict[str, Any]:
        """Return the fields of a `LetterFilter`.

        Args:
            registry: finds the full name of a class that is given by its bare name.

        Raises:
            UnknownTaskError: no class has this bare name.
        """
        name = self.task
        if name and ":" not in name:
            name = registry().get(name).name
        found = {
            "status": self.status,
            "task_class": name,
            "reason": self.reason,
            "error": self.error,
            "fingerprints": (self.cluster,) if self.cluster else None,
            "task_id": self.task_id.strip(),
            "died_before": moment(self.older_than) if self.older_than else None,
            "died_after": moment(self.newer_than) if self.newer_than else None,
            "rows": self.letter or None,
        }
        return {name: value for name, value in found.items() if value}

    def filter(self, registry: Callable[[], Registry], **more: Any) -> LetterFilter:
        """Return the filter; `more` are further fields of it. See `fields`."""
        return LetterFilter(**{**self.fields(registry), **more})


class LetterQuery(LetterSelection, ListQuery):
    """Which letters or clusters are listed."""


@dataclass(frozen=True, kw_only=True)
class LetterView:
    """A dead letter in a list. A viewer sees the type of its error only.

    Attributes:
        id: number of the row.
        namespace: of the task.
        status: ``PENDING``, ``DISPATCHED`` (submitted again) or ``FAILED`` (that task died, too).
        task_class: full name of the class; empty: its bytes could not be decoded.
        task_id: id of the task that died.
        pipeline: for a row of a pipeline; null for a task.
        row_key: primary key of the row; null for a task.
        reason: why it is dead: ``retries``, ``crash`` …
        error_type: class name of the last exception.
        last_error: the last error.
        location: where in the user's code it was raised, ``module:function``; or empty.
        fingerprint: of its cluster.
        note: what an operator wrote about it.
        created_at: when the task died.
        retry_count, max_retries: retries used and allowed.
        resubmitted_from: row of the letter that this task repeated.
        resubmitted_as: the task that repeats it, or is about to.
        resubmissions: how many repeats there were before that task.
    """

    id: int
    namespace: str
    status: str
    task_class: str
    task_id: str
    pipeline: str | None
    row_key: str | None
    reason: str
    error_type: str
    last_error: str
    location: str
    fingerprint: str
    note: str
    submitted_at: datetime
    last_attempted_at: datetime | None
    created_at: datetime
    retry_count: int
    max_retries: int | None
    vo: str | None
    parent_id: str | None
    resubmitted_from: int | None
    resubmitted_as: str | None
    resubmissions: int

    @property
    def shown_class(self) -> str:
        """The class for people."""
        return self.task_class or "(not decodable)"

    @property
    def first_line(self) -> str:
        """The beginning of the error."""
        return self.last_error.partition("\n")[0][:200]


@dataclass(frozen=True)
class ClusterPage(Page[Cluster]):
    """Some of the clusters.

    Attributes:
        letters: how many dead letters match, in all clusters.
        statuses: how many of them are in each status.
    """

    letters: int = 0
    statuses: Mapping[Status, int] = field(default_factory=dict)


@dataclass(frozen=True)
class AttemptView:
    """A failed attempt.

    Attributes:
        wall, cpu: seconds that it took and computed.
        rss: the most memory that its process used, in bytes.
        log: the last lines that its code has logged, up to 4,000 bytes.
    """

    attempt: int | None
    at: datetime | None
    error: str
    wall: float | None = None
    cpu: float | None = None
    rss: int | None = None
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class LetterDetails(LetterView):
    """All that is kept of a dead letter; its arguments are shown only when asked for.

    Attributes:
        labels: of the submission, secret ones masked.
        history: the failed attempts, oldest first.
        traceback: of the last one.
    """

    labels: Mapping[str, Any]
    history: Sequence[AttemptView]
    traceback: str


async def find(
    store: DeadLetters,
    query: LetterQuery,
    registry: Callable[[], Registry],
    *,
    every_namespace: bool = False,
) -> Page[LetterView]:
    """Return dead letters, the newest first.

    Args:
        every_namespace: also those of other namespaces in the database.
    """
    found = await store.list(
        **query.fields(registry),
        limit=query.limit + 1,
        before=number_in(query.cursor) or None,
        every_namespace=every_namespace,
    )
    some = found[: query.limit]
    cursor = sealed(str(some[-1].id) if len(found) > query.limit else "")
    return Page([view_of(LetterView, letter) for letter in some], cursor)


async def clusters(
    store: DeadLetters, query: LetterQuery, registry: Callable[[], Registry]
) -> ClusterPage:
    """Group dead letters by class, exception and location; newest first."""
    found = await store.clusters(query.filter(registry))
    some = cut(found, query)
    numbers = {status: sum(item.statuses[status] for item in found) for status in Status}
    return ClusterPage(some.items, some.cursor, sum(numbers.values()), numbers)


async def measure(store: DeadLetters, selection: LetterFilter) -> tuple[int, LetterFilter]:
    """Return how many letters a change would concern, and a filter for those that exist now."""
    number, last = await store.measure(selection)
    return number, replace(selection, up_to=last if selection.up_to is None else selection.up_to)


async def get(store: DeadLetters, row: int) -> LetterDetails:
    """Return a dead letter.

    Raises:
        NotFoundError: no such row.
    """
    letter = await store.get(row)
    more = {"labels": mask_names(letter.labels), "history": [*map(_attempt, letter.history)]}
    return view_of(LetterDetails, letter, **more)


@audited(Action.REVEAL, "arguments of dead letter {row}")
async def reveal(
    store: DeadLetters, row: int, registry: Registry, cipher: Cipher
) -> dict[str, Any]:
    """Return the arguments of a letter by name, with secret ones masked.

    All of them are masked if the class is not registered here; the key of a row is not.

    Raises:
        NotFoundError: no such row; or its arguments cannot be read.
    """
    letter = await store.get(row)
    if letter.row_key is not None:
        return {"key": letter.row_key}
    why = "they cannot be decoded"
    with suppress(MalformedMessageError):
        args = decode(letter.task_args)
        if not are_encrypted(args) and letter.task_class:
            found = registry.find(letter.task_class)
            return masked_arguments(args, found.cls if found else None)
        if are_encrypted(args):
            why = f"they are {why_closed(args, cipher)}"
    raise NotFoundError(f"the arguments of dead letter {row} are not shown: {why}")


@audited(Action.RESUBMIT, "dead letter {row}: {changes}", thing="row {row}")
async def resubmit(
    client: Client, row: int, *, again: bool = False, changes: Mapping[str, Any] | None = None
) -> Handle[Any]:
    """Submit a letter again as a new task, once; see `nonet.operate.resubmission.resubmit`."""
    stores = client.stores
    letters = await stores.dead_letters()
    handle = await resubmit_one(row, client, letters, again=again, changes=changes)
    if handle.created:
        with suppress(NonetError):  # the audit has it
            await stores.events.log("dlq-resubmit", who(), _rows(1, row))
    return handle


@audited(Action.DISCARD, "dead letter {row}: {why}", thing="row {row}")
async def discard(store: DeadLetters, log: Log, row: int, why: str = "") -> None:
    """Delete a letter."""
    await store.discard(row)
    await log("dlq-discard", _rows(1, row, why))


@audited(Action.RESUBMIT, "note on dead letter {row}: {note}")
async def annotate(store: DeadLetters, row: int, note: str) -> None:
    """Write a note on a letter, in place of an earlier one."""
    await store.annotate(row, note)


async def resubmit_many(
    store: DeadLetters,
    client: Client,
    log: Log,
    pages: Pages,
    *,
    rate: float | None = None,
    again: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> AsyncGenerator[list[Outcome], None]:
    """Submit letters again at a rate; see `nonet.operate.resubmission.submit_many`."""
    rows: list[int] = []
    try:
        outcomes = submit_many(store, client, pages, rate=rate, again=again, changes=changes)
        async for some in outcomes:
            rows += [item.row for item in some if item.error is None and item.created]
            yield some
    finally:
        if rows:
            await log("dlq-resubmit", _rows(len(rows), rows[-1]))


async def discard_many(
    store: DeadLetters, log: Log, selection: LetterFilter, words: str
) -> AsyncGenerator[int, None]:
    """Delete letters in batches, and yield the number of each batch.

    Args:
        words: which letters, for the event stream.
    """
    gone = 0
    try:
        async for number in store.purge(selection):
            gone += number
            yield number
    finally:
        if gone:
            await log("dlq-discard", f"{counted(gone, 'row')}, {words}")


def _rows(number: int, last: int, why: str = "") -> str:
    text = f"row {last}" if number == 1 else f"{number} rows, the last {last}"
    return f"{text}: {why}" if why else text


def _attempt(entry: Mapping[str, Any]) -> AttemptView:
    at = entry.get("at")
    return AttemptView(
        attempt=entry.get("attempt"),
        at=datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) and at else None,
        error=str(entry.get("error", "")),
        wall=entry.get("wall"),
        cpu=entry.get("cpu"),
        rss=entry.get("rss"),
        log=str(entry.get("log", "")),
    )
