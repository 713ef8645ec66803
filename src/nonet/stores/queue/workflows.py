"""Workflows in Redis: submit their steps, read their state, cancel and resume them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, get_args

from nonet.base.errors import ConflictError, NotConfirmedError, NotFoundError
from nonet.base.messages.encryption import NO_KEYS, Cipher
from nonet.base.messages.terms import predecessors
from nonet.stores.connection.unreadable import readable, sound
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.results import Ended, parse_ended
from nonet.stores.queue.submissions import Submission
from nonet.tasks.runs import State, WorkflowStatus

# Steps and edges in one call of a script: 5 ms.
_MOST = 500
# The edges of a step are sent apart if its predecessors have more characters, see
# workflow_stage.lua.
_LONGEST = 500
_MOST_BYTES = 1024 * 1024
_PAGE = 200
# Steps that one call creates again: 5 ms.
_CREATED = 100
# Workflows in one call: 1 ms.
_LISTED = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

STATES: tuple[State, ...] = get_args(State)


class WorkflowPage(NamedTuple):
    """Some workflows, and the cursor of the next page; empty: there is none."""

    rows: list[WorkflowStatus]
    cursor: str


class NewWorkflow(NamedTuple):
    """A workflow to submit.

    Attributes:
        parent: id of the task that submits it, or empty.
        is_used: whether an earlier workflow may have had its id.
    """

    id: str
    title: str
    parent: str
    steps: Sequence[Submission]
    is_used: bool


class _Part(NamedTuple):
    """The part of a workflow that one call sends; a long workflow has several."""

    number: int
    steps: Sequence[Submission]
    edges: Sequence[tuple[str, str, str]]
    is_last: bool
    weight: int
    size: int


_Answer = tuple[bytes, int]
_BUILDING: _Answer = (b"building", 0)


class Workflows:
    """The workflows of one namespace.

    Its scripts wait for replicas as submissions do.
    """

    def __init__(self, broker: Broker, cipher: Cipher = NO_KEYS) -> None:
        self._cipher = cipher
        self._client = broker.client
        self._scripts = broker.scripts
        self._prefix = broker.prefix
        self._keeping = broker.keeping

    async def submit(self, workflows: Sequence[NewWorkflow], failed_ttl: float) -> list[bool]:
        """Submit workflows, each with all of its steps; return for each whether it was started now.

        An id that was submitted before changes nothing.

        Args:
            failed_ttl: seconds to keep a failed workflow; others are kept as long as results.

        Raises:
            ConflictError: another task has the id of a workflow or of a step. The workflows before
                it were submitted.
            NotConfirmedError: workflows have started, but too few replicas confirm that.
        """
        result_ttl, dedup_ttl, _ = (int(part) for part in self._keeping.split("|"))
        ttls = (max(result_ttl, dedup_ttl), round(failed_ttl * 1000))
        answers: dict[int, _Answer] = {}
        batch: list[_Part] = []
        weight = size = 0
        for part in _parts(workflows):
            if batch and (weight + part.weight > _MOST or size + part.size > _MOST_BYTES):
                await self._stage(workflows, batch, ttls, answers)
                batch, weight, size = [], 0, 0
            if answers.get(part.number, _BUILDING) == _BUILDING:  # else it was known
                batch.append(part)
                weight, size = weight + part.weight, size + part.size
        await self._stage(workflows, batch, ttls, answers)
        return [answers[number][1] == 1 for number in range(len(workflows))]

    async def _stage(
        self,
        workflows: Sequence[NewWorkflow],
        batch: Sequence[_Part],
        ttls: tuple[int, int],
        answers: dict[int, _Answer],
    ) -> None:
        """Send some parts of workflows, and note what Redis answers for each workflow."""
        args: list[Any] = []
        for part in batch:
            new, edges = workflows[part.number], part.edges
            about = (new.id, new.title, new.parent, len(new.steps), *ttls, int(new.is_used))
            args += (*about, int(part.is_last), len(part.steps), len(edges))
            args += [word for step in part.steps for word in step.arguments()]
            args += [word for edge in edges for word in edge]
        if not batch:
            return
        found, is_safe = await self._scripts.run_confirmed("workflow_stage", self._keeping, *args)
        for part, answer in zip(batch, found, strict=False):
            if answer[0] == b"TAKEN":
                raise ConflictError(
                    f"workflow {workflows[part.number].id} was not submitted: another task has the "
                    f"id {answer[1].decode()}; choose another id for the workflow"
                )
            answers[part.number] = (answer[0], answer[1])
        started = [workflows[part.number].id for part in batch if part.is_last]
        if started and not is_safe:
            what = "the workflow" if len(started) == 1 else f"{len(started)} workflows"
            raise NotConfirmedError(what, self._scripts.replicas, started)

    async def status(self, workflow: str) -> WorkflowStatus:
        """Read one workflow.

        Raises:
            NotFoundError: no workflow has this id, or it is not kept any more.
            MalformedMessageError: another program damaged it.
        """
        key = f"{self._prefix}f:{workflow}"
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(key).hlen(f"{key}:graph").scard(f"{key}:live")
            fields, total, left = await pipe.execute()
        if b"state" not in fields:
            raise NotFoundError(
                f"workflow {workflow!r} is unknown: never submitted here, not kept any more, or "
                "Redis has lost it"
            )
        return sound(f"f:{workflow}", lambda: _status(workflow, fields, total, left))

    async def page(
        self, states: Sequence[str] = (), *, limit: int = 100, cursor: str = ""
    ) -> WorkflowPage:
        """Read workflows, those whose state changed last first.

        Args:
            states: some of `STATES`; empty: all.
            cursor: of the page before; empty: begin with the first.

        Raises:
            ValueError: there is no such state, or `limit` is less than 1.
        """
        if unknown := {*states} - {*STATES}:
            raise ValueError(f"workflows: state={unknown.pop()!r} must be one of {STATES}")
        if limit < 1:
            raise ValueError(f"workflows: limit={limit!r} must be at least 1")
        rows: list[WorkflowStatus] = []
        while True:
            most = min(limit - len(rows), _LISTED)
            end, *found = await self._scripts.run("workflow_list", most, cursor, *states or STATES)
            for id, total, left, *flat in found:
                row = (id, dict(zip(flat[::2], flat[1::2], strict=True)), total, left)
                rows += readable(f"f:{id.decode(errors='replace')}", "DEL", [row], _listed)
            cursor = end.decode(errors="replace")
            if not cursor or len(rows) >= limit:
                return WorkflowPage(rows, cursor)

    async def workflow_of(self, task: str) -> str:
        """Return the id of the workflow whose step a task is or was; empty if it is none."""
        workflow, _, place = task.rpartition(":")
        is_step = await self._client.hexists(f"{self._prefix}f:{workflow}:graph", place)
        return workflow if is_step else ""

    async def exists(self, workflow: str) -> bool:
        """Return whether a workflow has this id and is still kept."""
        return bool(await self._client.exists(f"{self._prefix}f:{workflow}"))

    async def states(self, workflow: str, places: Sequence[str]) -> list[str]:
        """Read how far steps are.

        Returns:
            For each of them how it ended, the state of its task, ``blocked`` if it waits for its
            predecessors, or ``lost``.
        """
        found: list[str] = []
        for start in range(0, len(places), _MOST):
            some = places[start : start + _MOST]
            answer = await self._scripts.run("workflow_steps", workflow, *some)
            found += [state.decode() for state in answer]
        return found

    async def graph(self, workflow: str) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Read the class name and the predecessors (letter and place) of each step, by place."""
        found = await self._client.hgetall(f"{self._prefix}f:{workflow}:graph")
        steps = readable(f"f:{workflow}:graph", "HDEL", found.items(), _step)
        return {place: (name, before) for _, place, name, before in sorted(steps)}

    async def predecessors(self, workflow: str, place: str) -> list[str]:
        """Read the places of the predecessors of a step, in the order of its edges."""
        text = await self._scripts.read("HGET", f"{self._prefix}f:{workflow}:graph", place)
        return [item[1:] for item in (text or b"").decode().split()[1:]]

    async def added(self, workflow: str, place: str) -> list[str]:
        """Read the places of the steps that a step added itself, in their order."""
        graph = await self.graph(workflow)
        return [one for one in graph if one.rpartition(".")[0] == place]

    async def results(self, workflow: str, places: Sequence[str]) -> list[Ended | None]:
        """Read how steps ended; None: a step has not ended."""
        if not places:
            return []
        values = await self._scripts.read("HMGET", f"{self._prefix}f:{workflow}:results", *places)
        return [
            parse_ended(step_id(workflow, place), value, self._cipher) if value else None
            for place, value in zip(places, values, strict=True)
        ]

    async def live(self, workflow: str) -> AsyncIterator[list[str]]:
        """Yield the places of steps that have not ended, page by page."""
        cursor = 0
        while True:
            cursor, page = await self._client.sscan(
                f"{self._prefix}f:{workflow}:live", cursor, count=_PAGE
            )
            if page:
                yield [place.decode() for place in page]
            if not cursor:
                return

    async def failed(self, workflow: str) -> list[str]:
        """Read the places of steps that failed and have no edge on failure."""
        found = await self._client.smembers(f"{self._prefix}f:{workflow}:failed")
        return sorted(place.decode() for place in found)

    async def forget_failed(self, workflow: str) -> None:
        """Delete what was kept to run failed steps again: the workflow was cancelled."""
        places = await self.failed(workflow)
        for start in range(0, len(places), _PAGE):
            some = places[start : start + _PAGE]
            kept = [f"{self._prefix}{k}:{step_id(workflow, one)}" for one in some for k in "skn"]
            await self._client.delete(*kept)
            await self._client.srem(f"{self._prefix}f:{workflow}:failed", *some)

    async def mark_cancelled(self, workflow: str, why: str) -> str:
        """Release no further step; return the state, or an empty one if it is unknown."""
        answer = await self._scripts.run("workflow_cancel", self._keeping, workflow, why)
        return str(answer.decode())

    async def signal(
        self, workflow: str, place: str, by: str, document: bytes
    ) -> tuple[str, datetime, bytes]:
        """Let an event come that a step waits for.

        Args:
            document: the result of the step.

        Returns:
            Who sent it first, when, and with which document.

        Raises:
            ConflictError: its step, or the workflow, has ended without it.
            NotConfirmedError: it has come, but too few replicas confirm that.
        """
        args = (self._keeping, workflow, place, by, document)
        answer, is_safe = await self._scripts.run_confirmed("workflow_signal", *args)
        id = step_id(workflow, place)
        if len(answer) < 3:
            state, ended = (part.decode() for part in answer)
            why = f"step {id} is {ended}" if ended else f"the workflow is {state or 'gone'}"
            raise ConflictError(f"workflow {workflow} no longer waits for this event: {why}")
        if not is_safe:
            raise NotConfirmedError("the event", self._scripts.replicas, [id])
        author, at, first = answer
        return author.decode(errors="replace"), _EPOCH + timedelta(microseconds=int(at)), first

    async def begin_to_resume(self, workflow: str, taken_over: Sequence[str]) -> str:
        """Let a failed workflow resume; return its state before, or an empty one.

        Args:
            taken_over: places of `failed` that do not run again.
        """
        for start in range(0, len(taken_over), _PAGE):
            await self._resume(workflow, "spare", *taken_over[start : start + _PAGE])
        return await self._resume(workflow, "begin")

    async def resume(self, workflow: str) -> None:
        """Create the failed steps again and start them; a repetition continues."""
        places = await self.failed(workflow)
        for place in places:  # in turn, so that it also runs without an event loop
            await self._link(workflow, place)
        for start in range(0, len(places), _CREATED):
            await self._resume(workflow, "create", *places[start : start + _CREATED])
        await self._resume(workflow, "start")

    async def lost(self, workflow: str, places: Sequence[str]) -> list[str]:
        """Return the failed steps that cannot run again, because too little of them is kept."""
        found: list[str] = []
        for start in range(0, len(places), _PAGE):
            some = places[start : start + _PAGE]
            async with self._client.pipeline(transaction=False) as pipe:
                for place in some:
                    pipe.hmget(f"{self._prefix}s:{step_id(workflow, place)}", "name", "stream")
                kept = await pipe.execute()
            found += [place for place, parts in zip(some, kept, strict=True) if not all(parts)]
        return found

    async def _link(self, workflow: str, place: str) -> None:
        first: Any = 0
        while isinstance(first, int) and first >= 0:
            first = await self._scripts.run(
                "workflow_resume", self._keeping, workflow, "link", place, first
            )

    async def _resume(self, workflow: str, verb: str, *args: Any) -> str:
        answer = await self._scripts.run("workflow_resume", self._keeping, workflow, verb, *args)
        return str(answer.decode())

    async def unfinished(self) -> list[str]:
        """Read the workflows that are being cancelled or resumed."""
        found = await self._client.smembers(f"{self._prefix}workflows:work")
        return readable("workflows:work", "SREM", zip(found), bytes.decode)

    async def finished(self, workflow: str) -> None:
        """Record that a workflow has been cancelled or resumed."""
        await self._client.srem(f"{self._prefix}workflows:work", workflow)


def step_id(workflow: str, place: str) -> str:
    """Return the id of a step.

    >>> step_id("nightly", "3.0")
    'nightly:3.0'
    """
    return f"{workflow}:{place}"


def _parts(workflows: Sequence[NewWorkflow]) -> Iterator[_Part]:
    """Yield parts of workflows, none larger than a call; most have one, large ones several."""
    for number, new in enumerate(workflows):
        for steps, edges, is_last in _calls(new.steps):
            size = sum(len(one.envelope) + len(one.locks) + len(one.terms) for one in steps)
            weight = sum(2 + predecessors(one.terms).count(" ") for one in steps) + len(edges)
            yield _Part(number, steps, edges, is_last, weight, size)


def _calls(
    steps: Sequence[Submission],
) -> Iterator[tuple[list[Submission], Sequence[tuple[str, str, str]], bool]]:
    """Yield the parts of a workflow: steps, edges apart from them, and whether it is the last.

    An edge is its letter, the place of its predecessor and the place of its successor.
    """
    rows: list[Submission] = []
    apart: list[tuple[str, str, str]] = []
    number = size = 0
    for step in steps:
        if number >= _MOST or size > _MOST_BYTES:
            yield rows, (), False
            rows, number, size = [], 0, 0
        rows.append(step)
        size += len(step.envelope) + len(step.locks) + len(step.terms)
        before = predecessors(step.terms)
        if len(before) > _LONGEST:
            place = step.id.rpartition(":")[2]
            apart += ((word[0], word[1:], place) for word in before.split())
            number += 1
        else:
            number += 2 + before.count(" ")
    yield rows, (), not apart
    for start in range(0, len(apart), _MOST):
        yield [], apart[start : start + _MOST], start + _MOST >= len(apart)


def _step(place: bytes, text: bytes) -> tuple[list[int], str, str, tuple[str, ...]]:
    """A step of a graph: its order, its place, its class and its predecessors."""
    at, (name, *before) = place.decode(), text.decode().split()
    return [int(part) for part in at.split(".")], at, name, tuple(before)


def _listed(id: bytes, fields: dict[bytes, bytes], total: int, left: int) -> WorkflowStatus:
    return _status(id.decode(), fields, total, left)


def _status(id: str, fields: dict[bytes, bytes], total: int, left: int) -> WorkflowStatus:
    text = {name.decode(): value.decode() for name, value in fields.items()}
    ended = text.get("ended")
    return WorkflowStatus(
        id=id,
        title=text["title"],
        state=text["state"],
        total=max(total, int(text["total"])),
        left=left,
        failed=step_id(id, text.get("first", "*")) if text["state"] == "failed" else "",
        reason=text.get("cancel", ""),
        runs=int(text.get("runs", 0)),
        parent=text["parent"],
        opened=_instant(text["opened"]),
        changed=_instant(text["since"]),
        ended=_instant(ended) if ended else None,
    )


def _instant(us: str) -> datetime:
    return _EPOCH + timedelta(microseconds=int(us))
