"""Read the status and results of tasks, and list tasks."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from nonet.base.errors import DeadlockError, MalformedMessageError, NonetError
from nonet.base.keys import prefix
from nonet.messages.message import ErrorDocument, ResultDocument, decode_error, decode_result
from nonet.messages.repetition import Known
from nonet.stores.connection.clock import correction
from nonet.stores.connection.redis import (
    AsyncRedis,
    Scripts,
    literal,
    server_errors,
)
from nonet.stores.queue.wakes import Wakes
from nonet.stores.queue.workers import WorkerStatus, registered, worker_name
from nonet.tasks.handles import Progress, TaskStatus

# A waiting client asks again after this time, because Redis may have lost its registration.
_RECHECK_SECONDS = 5.0
# Check at least once, even with `timeout=0`.
_LOOK_SECONDS = 0.5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAGE = 500
_LIVE_STATES = ("queued", "delayed", "waiting", "running", "dying")
_NO_RECORD = "its record is not a hash: a worker will quarantine it"
#: State of a task whose record cannot be read; a worker will quarantine it.
DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Ended:
    """A terminal state. `document` is None when results are not kept or are unreadable."""

    state: str
    document: ResultDocument | None


class Results:
    """Reads one namespace over a broker's connections; waits over a connection of its own."""

    def __init__(self, client: AsyncRedis, scripts: Scripts, url: str, namespace: str) -> None:
        self._client = client
        self._prefix = prefix(namespace)
        self._scripts = scripts
        self._wakes = Wakes(url, self._prefix)

    async def aclose(self) -> None:
        """Stop listening and close the connection."""
        await self._wakes.aclose()

    async def wait(
        self, id: str, timeout_seconds: float | None, holders: Sequence[str] = ()
    ) -> Ended | None:
        """Wait for the end of a task.

        Args:
            holders: tasks and holds inside which the caller waits. They keep their locks meanwhile.

        Returns:
            None if the task is unknown, or Redis lost it during the wait.

        Raises:
            TimeoutError: the task has not ended in time.
            DeadlockError: the task needs a lock that one of `holders` keeps.
        """
        try:
            return await self._wait(id, timeout_seconds, holders)
        finally:
            if holders:
                await self._await_no_more(id, holders)

    async def _wait(
        self, id: str, timeout_seconds: float | None, holders: Sequence[str]
    ) -> Ended | None:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        try:
            with self._wakes.expecting(id) as wake:
                while True:
                    left = math.inf if deadline is None else deadline - time.monotonic()
                    answer = await self._look(id, left, holders)
                    if answer[0] == b"ended":
                        return parse_ended(answer[1])
                    if answer[0] == b"unknown":
                        return None
                    if answer[0] == b"deadlock":
                        raise _deadlock(id, answer[1].decode())
                    left = math.inf if deadline is None else deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError
                    await wake.wait(min(left, _RECHECK_SECONDS))
        except TimeoutError:
            raise TimeoutError(f"task {id} has not ended after {timeout_seconds:g} s") from None

    async def _await_no_more(self, id: str, holders: Sequence[str]) -> None:
        """Remove the entry of a wait that is over, so that it does not look like a deadlock."""
        with suppress(NonetError, TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS), server_errors(self._client):
                for holder in holders:
                    await self._client.zrem(f"{self._prefix}awaits:{holder}", id)

    async def _look(self, id: str, seconds: float, holders: Sequence[str]) -> Sequence[bytes]:
        # Without this limit, an unavailable Redis would fail only after all retries.
        async with asyncio.timeout(None if seconds == math.inf else max(seconds, _LOOK_SECONDS)):
            answer: Sequence[bytes] = await self._scripts.run(
                "wait", id, self._wakes.client, *holders
            )
        return answer

    async def status(self, id: str) -> TaskStatus | None:
        """Read one task; None if it is unknown."""
        async with server_errors(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.hgetall(f"{self._prefix}t:{id}").zscore(f"{self._prefix}tasks:delayed", id)
            pipe.get(f"{self._prefix}e:{id}").lindex(f"{self._prefix}h:{id}", -1)
            record, due, dying, failed, value = _readable(
                await pipe.get(f"{self._prefix}r:{id}").execute(raise_on_error=False)
            )
        if record is None:
            return TaskStatus(id=id, name="", state=DAMAGED, blocker=_NO_RECORD)
        if _is_task(record):
            found = _live_status(id, record, await self._wall_due(due), dying, failed)
            return await self._with_name(found)
        return _ended_status(id, parse_ended(value)) if value else None

    async def progress(self, id: str) -> tuple[bool, Progress | None]:
        """Return whether a task is live, and the progress of its running attempt."""
        names = ("state", "stream", "fence", "progress", "doing")
        async with server_errors(self._client):
            values = await self._client.hmget(f"{self._prefix}t:{id}", names)
        record = {
            name: value.decode(errors="replace")
            for name, value in zip(names, values, strict=True)
            if value is not None
        }
        return bool(record) and record.get("stream") != "hold", _progress(record)

    async def recognise(self, id: str) -> Known | None:
        """Read the state of a task and the mark of the letter that it repeats; None if unknown."""
        answer = await self._scripts.run("recognise", id)
        return Known(answer[0].decode(), answer[1].decode()) if answer else None

    async def live(
        self, *, state: str | None = None, task: str | None = None
    ) -> AsyncIterator[TaskStatus]:
        """Yield every live task, unordered, by a scan that never blocks Redis."""
        async with server_errors(self._client):
            pattern = f"{literal(self._prefix)}t:*"
            async for key in self._client.scan_iter(match=pattern, count=1000, _type="HASH"):
                id = key.decode().removeprefix(f"{self._prefix}t:")
                async with self._client.pipeline(transaction=False) as pipe:
                    pipe.hgetall(key).zscore(f"{self._prefix}tasks:delayed", id)
                    pipe.get(f"{self._prefix}e:{id}")
                    record, due, error = _readable(await pipe.execute(raise_on_error=False))
                if not record or not _is_task(record):
                    continue
                error = error if record.get(b"state") == b"dying" else None
                found = _live_status(id, record, await self._wall_due(due), error)
                named = task is None or task in (found.name, found.name.rpartition(":")[2])
                if named and state in (None, found.state):
                    yield await self._with_name(found)

    async def _with_name(self, found: TaskStatus) -> TaskStatus:
        """Name the worker of a task as ``task-run workers`` does: ``pid@host``."""
        if not found.worker:
            return found
        async with server_errors(self._client):
            info = await self._client.hget(f"{self._prefix}w:{found.worker}", "info")
        return replace(found, worker=worker_name(found.worker.encode(), info or b""))

    async def delayed_tasks(self, *, task: str | None = None) -> AsyncIterator[TaskStatus]:
        """Yield delayed tasks, also those that wait for a retry, the soonest first.

        Args:
            task: full or bare name of a class; None: all.
        """
        key, last, seen = f"{self._prefix}tasks:delayed", b"-inf", 0
        set_by = await correction(self._client, self._prefix)
        while True:
            async with server_errors(self._client):
                # Continue by time, not by rank: promoted tasks leave the set meanwhile.
                page = await self._client.execute_command(
                    "ZRANGEBYSCORE", key, last, "+inf", "WITHSCORES", "LIMIT", seen, _PAGE
                )
                rows = [(id.decode(), due) for id, due in zip(page[::2], page[1::2], strict=True)]
                async with self._client.pipeline(transaction=False) as pipe:
                    for id, _ in rows:
                        pipe.hgetall(f"{self._prefix}t:{id}")
                    records = _readable(await pipe.execute(raise_on_error=False))
            for (id, due), record in zip(rows, records, strict=True):
                if record and _is_task(record) and record.get(b"state") == b"delayed":
                    at = _EPOCH + timedelta(microseconds=int(float(due))) - set_by
                    found = _live_status(id, record, at, None)
                    if task in (None, found.name, found.name.rpartition(":")[2]):
                        yield found
            if len(rows) < _PAGE:
                return
            same = [due for _, due in rows if due == rows[-1][1]]
            seen = (seen if last == rows[-1][1] else 0) + len(same)
            last = rows[-1][1]

    async def _wall_due(self, due: float | None) -> datetime | None:
        if due is None:
            return None
        logical = _EPOCH + timedelta(microseconds=int(due))
        return logical - await correction(self._client, self._prefix)

    async def workers(self) -> list[WorkerStatus]:
        """Read the registered workers, by size and name."""
        return await registered(self._scripts)


def parse_ended(value: bytes) -> Ended:
    """Parse a stored ``state|fence|document``."""
    state, _, rest = value.partition(b"|")
    document = rest.partition(b"|")[2]
    try:
        return Ended(state.decode(), decode_result(document) if document else None)
    except MalformedMessageError:
        return Ended(state.decode(), None)


def _deadlock(id: str, lock: str) -> DeadlockError:
    return DeadlockError(
        f"task {id} can never end while this code waits for it: in the queue of {lock} it waits, "
        "directly or behind other tasks, for a lock that this code holds. Do not wait for its "
        "result, make it a callback (spawn_with_callback), or take the lock in only one of the two"
    )


def _readable(answers: Sequence[Any]) -> list[Any]:
    """Return the answers of a pipeline, with None for each key of a wrong type.

    Raises:
        ResponseError: for any other error.
    """
    for answer in answers:
        if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):
            raise answer
    return [None if isinstance(answer, Exception) else answer for answer in answers]


def _number(text: str | None) -> int:
    """Parse a counter of a record; 0 if it is missing or damaged."""
    return int(text) if text and text.isascii() and text.isdigit() else 0


def _instant(text: str | None) -> datetime | None:
    try:
        return _EPOCH + timedelta(microseconds=_number(text)) if _number(text) else None
    except (OverflowError, ValueError):
        return None


def _is_task(record: Mapping[bytes, bytes]) -> bool:
    """Whether there is a record of a task, not of a hold."""
    return bool(record) and record.get(b"stream") != b"hold"


def _live_status(
    id: str,
    record: dict[bytes, bytes],
    due: datetime | None,
    dying: bytes | None,
    failed: bytes | None = None,
) -> TaskStatus:
    """Return the status of a live task.

    Args:
        dying: error document of a dying task.
        failed: error document of the last failed attempt; None: use the line in the record.
    """
    text = {key.decode(): value.decode(errors="replace") for key, value in record.items()}
    state, used = text.get("state", ""), _number(text.get("attempt"))
    running = state == "running"
    waits_for_sql = state == "dying" and due is not None
    last = read_error(dying or failed)
    return TaskStatus(
        id=id,
        name=text.get("name", ""),
        state=state if state in _LIVE_STATES else DAMAGED,
        stream=text.get("stream", ""),
        # The record of a dying task does not count its last attempt.
        attempt=last.attempt if dying and last else used + running,
        submitted=_instant(text.get("ticket") or text.get("gen")),
        due=due,
        worker=text.get("owner", "") if state in ("running", "dying") else "",
        worker_deaths=_number(text.get("deaths")),
        blocker=text.get("blocker", "") if state == "waiting" or waits_for_sql else "",
        reason=text.get("reason", ""),
        error=error_line(last.error_type, last.error) if last else text.get("error", ""),
        group=text.get("group", ""),
        crashes=_number(text.get("crashes")),
        usage=last.usage if last else None,
        traceback=last.traceback if last else "",
        progress=_progress(text),
    )


def _progress(record: Mapping[str, str]) -> Progress | None:
    """Return the progress of the running attempt, but not that of an earlier one."""
    fence, _, rest = record.get("progress", "").partition("|")
    fraction, _, at = rest.partition("|")
    moment = _instant(at)
    if record.get("state") != "running" or fence != record.get("fence") or moment is None:
        return None
    try:
        share = float(fraction) if fraction else None
    except ValueError:  # a damaged record
        return None
    return Progress(share, record.get("doing", ""), moment)


def read_error(document: bytes | None) -> ErrorDocument | None:
    """Parse a stored error document; None if it is missing or unreadable."""
    try:
        return decode_error(document) if document else None
    except MalformedMessageError:
        return None


def error_line(kind: str, text: str) -> str:
    """Return an error as one line: its class and its text."""
    return f"{kind}: {text}" if kind else text


def _ended_status(id: str, ended: Ended) -> TaskStatus:
    document = ended.document
    if document is None:
        return TaskStatus(id=id, name="", state=ended.state)
    return TaskStatus(
        id=id,
        name=document.name,
        state=ended.state,
        attempt=document.attempt,
        finished=_EPOCH + timedelta(seconds=document.finished),
        reason=document.reason,
        error=error_line(document.error_type, document.error),
        worker_deaths=document.deaths,
        crashes=document.crashes,
        usage=document.usage,
        note=document.note,
        traceback=document.traceback,
    )
