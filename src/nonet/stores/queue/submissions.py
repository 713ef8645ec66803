"""Send submissions to Redis, merged with those of other callers in the same process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from nonet.base.errors import (
    NEXT_STEP_IMPOSSIBLE,
    OF_THE_SERVER,
    AdmissionRejected,
    ConflictError,
    LimitImpossible,
    NotConfirmedError,
)
from nonet.stores.connection.redis import Scripts

# Limits of one call of the submit script, so that it never blocks Redis for long.
_CHUNK_TASKS = 500
_CHUNK_BYTES = 1024 * 1024
# A larger submission gains nothing from being merged with others.
_MERGED_TASKS = 100
_CLOSE_SECONDS = 1.0


class Submission(msgspec.Struct, frozen=True):
    """A task as the submit script takes it.

    Attributes:
        stream: ``priority:size``.
        due_us: earliest start in Unix microseconds; 0: now; below 0: the delay from the time of the
            submission, negated, which counts by the clock of Redis.
        group: id of the group whose child this is, or empty.
        envelope: opaque bytes.
        locks: lines of `nonet.tasks.locks.encode_locks`.
        terms: further conditions, lines ``name|value|…``, see `nonet.base.messages.terms`.
    """

    id: str
    name: str
    stream: str
    envelope: bytes
    locks: str = ""
    due_us: int = 0
    group: str = ""
    terms: str = ""

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments for a script that submits it now."""
        return (
            *(self.id, self.name, self.stream, self.due_us),
            *(self.group, self.envelope, self.locks, self.terms),
        )

    def admitted(self) -> Submission:
        """Return a copy that no ceiling refuses, because it was accepted before."""
        terms = "\n".join(filter(None, (self.terms, "admitted|1")))
        return msgspec.structs.replace(self, terms=terms)

    def as_step(self, term: str) -> Submission:
        """Return a copy that a workflow releases.

        Args:
            term: the line of `nonet.base.messages.terms.step_term`.
        """
        terms = "\n".join(filter(None, (term, self.terms)))
        return msgspec.structs.replace(self, terms=terms)

    def spec(self) -> tuple[Any, ...]:
        """Return the fields by which a script submits it later, for example as a callback."""
        return (self.id, self.name, self.stream, self.envelope, self.locks, self.terms)


class Accepted(msgspec.Struct, frozen=True):
    """The outcome of a submission.

    Attributes:
        id: id of the task, or of the other task that holds its unique key.
        created: False if the task was known before.
        namespace: where it is; empty: in the namespace of the store that was asked.
    """

    id: str
    created: bool
    namespace: str = ""


class Submissions:
    """Submit to one namespace, chunk by chunk.

    Args:
        scripts: run the scripts.
        keeping: see `Broker`.
    """

    def __init__(self, scripts: Scripts, keeping: str) -> None:
        self._scripts = scripts
        self._keeping = keeping

    def accept(self, submissions: Sequence[Submission]) -> Coroutine[Any, Any, list[Accepted]]:
        """See `nonet.stores.queue.broker.Broker.accept`."""
        accept = self._accept if len(submissions) == 1 else self._accept_in_chunks
        return accept(submissions)

    async def _accept_in_chunks(self, submissions: Sequence[Submission]) -> list[Accepted]:
        accepted: list[Accepted] = []
        for chunk in chunks(submissions):
            try:
                accepted += await self._accept(chunk)
            except AdmissionRejected as error:
                raise error.after(len(accepted)) from None
        return accepted

    async def check_room(self, submissions: Sequence[Submission]) -> None:
        """See `nonet.stores.queue.broker.Broker.check_room`."""
        checked = 0
        for chunk in chunks(submissions):
            args = [part for item in chunk for part in item.arguments()]
            answer = await self._scripts.run("room", *args)
            if answer != 1:
                _raise_refusal(answer, checked)
            checked += len(chunk)

    async def aclose(self) -> None:
        """Wait for calls under way."""

    def _accept(self, chunk: Sequence[Submission]) -> Coroutine[Any, Any, list[Accepted]]:
        return self._ask(chunk)

    def _unconfirmed(self, chunk: Sequence[Submission]) -> NotConfirmedError:
        what = "a submitted task" if len(chunk) == 1 else f"{len(chunk)} submitted tasks"
        return NotConfirmedError(what, self._scripts.replicas, [item.id for item in chunk])

    async def _ask(self, chunk: Sequence[Submission]) -> list[Accepted]:
        if not chunk:
            return []
        scripts = self._scripts
        answer, is_safe = await scripts.run_confirmed(
            "submit", self._keeping, *submit_arguments(chunk)
        )
        if not is_safe:
            raise self._unconfirmed(chunk)
        if answer == 1:
            return [Accepted(item.id, True) for item in chunk]
        _raise_refusal(answer, 0)
        return [_accepted(item, new) for item, new in zip(chunk, answer, strict=True)]


class MergedSubmissions(Submissions):
    """Submit to one namespace, and merge concurrent submissions of an event loop into one call.

    The first submission is sent at once. Those made while it is under way are sent together when
    it is answered; nothing waits for a timer. Each caller gets its own answer or error, and its
    chunk is accepted as a whole or not at all.
    """

    def __init__(self, scripts: Scripts, keeping: str) -> None:
        super().__init__(scripts, keeping)
        self._waiting: deque[_Step] = deque()
        self._is_busy = False
        self._is_crowded = False
        self._sender: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """Wait briefly for calls under way: Redis may not answer."""
        if self._sender is not None and not self._sender.done():
            await asyncio.wait({self._sender}, timeout=_CLOSE_SECONDS)
            self._sender.cancel()
            await asyncio.wait({self._sender})

    async def _accept(self, chunk: Sequence[Submission]) -> list[Accepted]:
        self._scripts.lane.check_loop()
        if len(chunk) > _MERGED_TASKS:
            return await self._ask(chunk)
        if self._is_busy or self._is_crowded:
            step = _Step(chunk, asyncio.get_running_loop().create_future())
            self._waiting.append(step)
            if not self._is_busy:
                self._go_on()
            return await step.answer
        self._is_busy = True
        try:
            return await self._ask(chunk)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        self._is_busy = bool(self._waiting)
        if self._is_busy:
            self._sender = asyncio.create_task(self._send(), name="merged submissions")

    async def _send(self) -> None:
        steps: list[_Step] = []
        try:
            while self._waiting:
                steps = self._next_steps()
                self._is_crowded = len(steps) > 1
                await self._answer(steps)
                if self._is_crowded:
                    await asyncio.sleep(0)  # answered callers may submit again, together
        except BaseException:
            for step in (*steps, *self._waiting):
                step.answer.cancel()
            self._waiting.clear()
            raise
        finally:
            self._is_busy = False

    def _next_steps(self) -> list[_Step]:
        """Take the steps of the next call, without those whose callers have gone."""
        steps: list[_Step] = []
        tasks = size = 0
        while self._waiting:
            step = self._waiting[0]
            if step.answer.done():
                self._waiting.popleft()
                continue
            tasks += len(step.chunk)
            size += sum(len(item.envelope) + len(item.locks) for item in step.chunk)
            if steps and (tasks > _CHUNK_TASKS or size > _CHUNK_BYTES):
                break
            steps.append(self._waiting.popleft())
        return steps

    async def _answer(self, steps: Sequence[_Step]) -> None:
        try:
            accepted = await self._ask([item for step in steps for item in step.chunk])
        except Exception as error:
            if len(steps) == 1 or type(error) in OF_THE_SERVER:
                for step in steps:
                    step.fail(error)
                return
            if isinstance(error, NotConfirmedError):
                for step in steps:
                    step.fail(self._unconfirmed(step.chunk))
                return
            # Redis refused the whole call. Send each step alone to find the one that it refuses.
            await asyncio.gather(*(self._answer([step]) for step in steps))
            return
        at = 0
        for step in steps:
            step.succeed(accepted[at : at + len(step.chunk)])
            at += len(step.chunk)


class _Step:
    """One chunk of one caller, and the answer for it."""

    __slots__ = ("answer", "chunk")

    def __init__(self, chunk: Sequence[Submission], answer: asyncio.Future[list[Accepted]]) -> None:
        self.chunk = chunk
        self.answer = answer

    def succeed(self, accepted: list[Accepted]) -> None:
        if not self.answer.done():
            self.answer.set_result(accepted)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


def chunks(submissions: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    """Split submissions into chunks of at most 500 tasks or 1 MiB, each created as a whole."""
    chunk: list[Submission] = []
    size = 0
    for item in submissions:
        length = len(item.envelope) + len(item.locks)
        if chunk and (len(chunk) == _CHUNK_TASKS or size + length > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += length
    if chunk:
        yield chunk


def submit_arguments(submissions: Iterable[Submission]) -> list[Any]:
    """Return the arguments of the submit script; similar tasks share a group of arguments."""
    args: list[Any] = []
    head: Submission | None = None
    at = 0
    for item in submissions:
        if (
            head is not None
            and item.name == head.name
            and item.locks == head.locks
            and item.stream == head.stream
            and item.terms == head.terms
            and item.due_us == head.due_us
            and item.group == head.group
        ):
            args[at] += 1
        else:
            head, at = item, len(args)
            args += (1, item.name, item.stream, item.due_us, item.group, item.locks, item.terms)
        args += (item.id, item.envelope)
    return args


def _accepted(item: Submission, answer: Any) -> Accepted:
    """Parse the answer for one task."""
    if isinstance(answer, list):
        return Accepted(answer[0].decode(), False)
    return Accepted(item.id, answer == 1)


def _raise_refusal(answer: Any, accepted: int) -> None:
    """Raise the refusal of a script that has submitted nothing.

    Args:
        accepted: tasks of the same call that were submitted before.
    """
    if not isinstance(answer[0], bytes):
        return
    if answer[0] == b"IMPOSSIBLE":
        id, why = answer[1].decode(), answer[2].decode()
        raise LimitImpossible(f"task {id} was not submitted: {why}; {NEXT_STEP_IMPOSSIBLE}")
    if answer[0] == b"TAKEN":
        id, workflow = answer[1].decode(), answer[2].decode()
        who = "a workflow" if workflow == id else f"a step of workflow {workflow}"
        raise ConflictError(f"task {id} was not submitted: {who} has this id; choose another")
    _, scope, active, ceiling, seconds, wanted, is_too_large = answer
    raise AdmissionRejected(
        active,
        ceiling,
        seconds,
        scope=scope.decode(),
        wanted=wanted,
        accepted=accepted,
        is_too_large=bool(is_too_large),
    )
