"""Submit dead letters again: one, or many at a rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from nonet.base.errors import ConflictError, NonetError, NotFoundError, ServerUnreachableError
from nonet.base.messages.documents import are_encrypted, key_of
from nonet.base.messages.encryption import NO_KEY, UNREADABLE, Cipher
from nonet.base.messages.message import decode
from nonet.base.messages.repetition import Known, Progress, Repeat, Step, next_step
from nonet.rules.findings import remedies
from nonet.tasks.handles import Handle

if TYPE_CHECKING:
    from nonet.client.client import Client
    from nonet.rules.letters import DeadLetter
    from nonet.stores.queue.submissions import Submission
    from nonet.stores.sql.dead_letters import DeadLetters

# Letters that are resubmitted at the same time; each takes one connection to SQL.
_AT_ONCE = 4


async def resubmit(
    row_id: int,
    client: Client,
    letters: DeadLetters,
    *,
    again: bool = False,
    changes: Mapping[str, Any] | None = None,
    at_time: datetime | None = None,
) -> Handle[Any]:
    """Submit a dead letter again as a new task; concurrent calls submit one task only.

    The row becomes ``DISPATCHED`` once Redis, or SQL for a durable class, has the task. After a
    crash before that, the row is still ``PENDING``, but already has the id of the new task, which
    may have been submitted.

    Args:
        row_id: number of the row.
        again: submit it even if it was resubmitted before, unless the new task is live or done;
            or if another task has its new id.
        changes: arguments by name that replace those of the letter; not of a row.
        at_time: when the new task starts; None: now. The `start_by` of its class counts from then.

    Raises:
        NotFoundError: the namespace has no such row.
        ConflictError: it was resubmitted already, another task has its id, its bytes are not a
            task, or they are encrypted and this process has no key for them. This and the following
            errors leave the row unchanged.
        UnknownTaskError: the class is not registered.
        InvalidArgumentsError: the class rejects the arguments.
    """
    letter = await letters.get(row_id)
    if (pipeline := letter.pipeline) is not None:
        if changes:
            raise ConflictError(f"dead letter {row_id} is of a row: change the row in its table")
        return await _resume(letter, pipeline, client, letters, again=again, at_time=at_time)
    args = _readable_arguments(letter, client)
    await client.live_config.refresh()
    repeat, step, known = await _look(letter, client, again)
    if step.is_refusal:
        raise _refusal(letter, repeat, step, known)
    submission = client.envelopes.prepare_again(
        letter.task_class, args, repeat, labels=letter.labels, changes=changes, at_time=at_time
    )
    await letters.claim(letter, repeat.id, repeat.resubmissions)
    created = False
    if step is Step.SUBMIT:
        try:
            created = await _submit(letter, repeat, submission, client)
        except (ServerUnreachableError, _UnsureError):
            raise  # the task may have been submitted, so keep its id in the row
        except NonetError:
            with suppress(NonetError):  # report the first error
                await letters.release(letter, repeat.id)
            raise
    # Another operator may have changed the row; the task is submitted.
    with suppress(NotFoundError, ConflictError):
        await letters.dispatch(letter.id, repeat.id)
    return Handle(repeat.id, client, created=created)


def _readable_arguments(letter: DeadLetter, client: Client) -> Any:
    """Return the arguments of a letter.

    Raises:
        ConflictError: it is no task, or this process has no key for it.
    """
    if not letter.task_class:
        raise ConflictError(
            f"dead letter {letter.id} holds bytes that could not be decoded, not a task: "
            "it can only be discarded"
        )
    args = decode(letter.task_args)
    if are_encrypted(args):
        raise ConflictError(
            f"dead letter {letter.id} was not submitted: it is {why_closed(args, client.cipher)}"
        )
    return args


def why_closed(args: dict[str, Any], cipher: Cipher) -> str:
    """Return why this process cannot read encrypted arguments."""
    return UNREADABLE if key_of(args) in cipher.keys else NO_KEY


async def _resume(
    letter: DeadLetter,
    pipeline: str,
    client: Client,
    letters: DeadLetters,
    *,
    again: bool,
    at_time: datetime | None,
) -> Handle[Any]:
    """Make the row of a letter due again. Repeating it after a crash is harmless."""
    if letter.status != "PENDING" and not again:
        raise ConflictError(
            f"dead letter {letter.id}: the row was made due again already; "
            f"'task-run dlq resubmit --again {letter.id}' does it once more"
        )
    await letters.claim(letter, letter.task_id, letter.resubmissions + 1)
    try:
        await client.resume_row(pipeline, letter.row_key or "", at_time)
    except NonetError:
        with suppress(NonetError):  # report the first error
            await letters.release(letter, letter.task_id)
        raise
    with suppress(NotFoundError, ConflictError):  # another operator changed the letter
        await letters.dispatch(letter.id, letter.task_id)
    return Handle(letter.task_id, client)


async def _look(
    letter: DeadLetter, client: Client, again: bool
) -> tuple[Repeat, Step, Known | None]:
    """Find the next repeat of a letter, and the step that its resubmission needs."""
    repeat = letter.identity.repeat(letter.resubmissions, row=letter.id)
    progress = Progress(letter.status, letter.resubmitted_as or "")
    known = await client.recognise(repeat.id)
    step = next_step(progress, repeat, known, again=again)
    while step is Step.RAISE:
        repeat = letter.identity.repeat(repeat.resubmissions + 1, row=letter.id)
        known = await client.recognise(repeat.id)
        step = next_step(Progress("PENDING", ""), repeat, known, again=again)
    return repeat, step, known


async def _submit(
    letter: DeadLetter, repeat: Repeat, submission: Submission, client: Client
) -> bool:
    """Submit a repeat; return False if another process has submitted it."""
    durable = client.registry.get(letter.task_class).cls.durable
    handle = await client.send(submission, durable=durable)
    if handle != repeat.id:
        raise ConflictError(
            f"dead letter {letter.id} was not submitted: task {handle} has its unique key"
        )
    if handle.created:
        return True
    known = await client.recognise(repeat.id)
    step = next_step(Progress("PENDING", repeat.id), repeat, known, again=False)
    if step is not Step.RECORD:
        raise _refusal(letter, repeat, step, known)
    return False


class _UnsureError(ConflictError):
    """It is unknown whether the repeat was submitted."""


def _refusal(letter: DeadLetter, repeat: Repeat, step: Step, known: Known | None) -> ConflictError:
    """Return the error for a letter that is not resubmitted, with the next step."""
    id, state = repeat.id, known.state if known else ""
    again = f"'task-run dlq resubmit --again {letter.id}'"
    before = f"dead letter {letter.id} was submitted again already"
    match step:
        case Step.LIVE | Step.DONE:
            return ConflictError(f"{before}: task {id} is {state}")
        case Step.ENDED:
            return ConflictError(f"{before}: task {id} is {state}; {again} submits it once more")
        case Step.FORGOTTEN:
            return ConflictError(
                f"{before}, as task {id}, which is unknown by now; if it never ran, {again} "
                "submits it"
            )
        case Step.UNSURE:
            return _UnsureError(
                f"dead letter {letter.id} was about to be submitted again as task {id}, which is "
                "unknown: another process is submitting it now, or failed to; if it never ran, "
                f"{again} submits it"
            )
        case Step.FOREIGN:
            show = remedies.of_task("status", id)
            return ConflictError(
                f"dead letter {letter.id} was not submitted: its id {id} belongs to another task, "
                f"which is {state} ('{show}'); {again} submits it under another id"
            )
    return ConflictError(
        f"dead letter {letter.id} is {letter.status}: its resubmitted task {id} died as well, and "
        "has a row of its own; resubmit that one"
    )


Pages: TypeAlias = AsyncIterator[Sequence[int]]
"""The numbers of rows, some at a time; see `DeadLetters.pages`."""


class Pace:
    """The start times of tasks that run at a rate.

    All of them can be submitted at once: those after the first wait in the delayed set, so no
    process has to stay until the last one starts.

    Args:
        rate: tasks per second; None: all start at once.
        start: when the first one starts.

    Example:
        >>> pace = Pace(2, datetime(2026, 1, 2, tzinfo=UTC))
        >>> [at and at.isoformat()[17:] for at in (pace.next(), pace.next(), pace.next())]
        [None, '00.500000+00:00', '01+00:00']
    """

    def __init__(self, rate: float | None, start: datetime | None = None) -> None:
        self._rate = rate
        self._start = start or datetime.now(UTC)
        self._number = 0

    def next(self) -> datetime | None:
        """Return when the next task starts; None: at once."""
        number, self._number = self._number, self._number + 1
        if self._rate is None or not number:
            return None
        return self._start + timedelta(seconds=number / self._rate)

    def give_back(self) -> None:
        """Use the last time again: its task was not submitted."""
        self._number = max(0, self._number - 1)


class Outcome(NamedTuple):
    """What became of one letter.

    Attributes:
        row: its number.
        id: the task that repeats it; empty on an error, or if the letter was deleted.
        created: whether this call submitted that task.
        error: why nothing was done.
    """

    row: int
    id: str = ""
    created: bool = True
    error: NonetError | None = None


async def submit_many(
    letters: DeadLetters,
    client: Client,
    pages: Pages,
    *,
    rate: float | None = None,
    again: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> AsyncIterator[list[Outcome]]:
    """Submit letters again, in about the order of their rows, and yield what became of some.

    A caller that ends between two steps leaves no letter half done.

    A caller that dies leaves the rest of them ``PENDING``; a second call with the same selection
    continues. See `resubmit` for what happens to the letter in between.

    Args:
        pages: the rows, from `DeadLetters.pages`.
        rate: how many of them start in a second; None: as fast as workers take them.
        again, changes: see `resubmit`.

    Raises:
        ServerUnreachableError: Redis or SQL does not answer; other errors concern one letter.
    """
    pace = Pace(rate)

    async def one(row: int) -> Outcome:
        at_time = pace.next()
        try:
            handle = await resubmit(
                row, client, letters, again=again, changes=changes, at_time=at_time
            )
        except ServerUnreachableError:
            raise
        except NonetError as error:
            pace.give_back()
            return Outcome(row, error=error)
        return Outcome(row, str(handle), handle.created)

    async for outcomes in some_at_once(pages, one):
        yield outcomes


async def some_at_once(
    pages: Pages, act: Callable[[int], Awaitable[Outcome]]
) -> AsyncIterator[list[Outcome]]:
    """Act on rows, and yield the outcomes, even if an error ends the whole."""
    async for page in pages:
        rows = iter(page)
        while some := list(islice(rows, _AT_ONCE)):
            found = await asyncio.gather(*map(act, some), return_exceptions=True)
            yield [item for item in found if isinstance(item, Outcome)]
            for item in found:
                if isinstance(item, BaseException):
                    raise item
