"""Read the status and results of tasks, and list tasks."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from nonet.base.errors import DeadlockError, MalformedMessageError, NonetError
from nonet.base.messages.documents import revealed
from nonet.base.messages.encryption import NO_KEYS, Cipher
from nonet.base.messages.message import (
    HARD_LIMIT_BYTES,
    ErrorDocument,
    ResultDocument,
    decode_error,
    decode_result,
)
from nonet.base.messages.repetition import Known
from nonet.base.synchronous import timeout
from nonet.stores.connection.clock import correction
from nonet.stores.connection.redis import Scripts
from nonet.stores.connection.unreadable import readable, sound
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.listing import Listing
from nonet.stores.queue.places import BUDGET, LIVE_STATES, PAGE, Places, TaskFilter, entry_of
from nonet.stores.queue.records import Record, as_record, in_text, read_records
from nonet.stores.queue.wakes import Wakes
from nonet.stores.queue.workers import (
    WorkerStatus,
    drain,
    incarnations,
    known_classes,
    registered,
    worker_names,
)
from nonet.tasks.handles import Progress, TaskPage, TaskStatus
from nonet.tasks.progress import read as read_progress

if TYPE_CHECKING:
    from nonet.stores.queue.stream_tasks import StreamTasks

# A waiting client asks again after this time, because Redis may have lost its registration.
_RECHECK_SECONDS = 5.0
# How many failed attempts Redis keeps of a task.
_KEPT_FAILURES = 20
# Check at least once, even with `timeout=0`.
_LOOK_SECONDS = 0.5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TIME = timedelta(0)
# Bytes of an ended task that are read for its state.
_LONGEST_STATE = 15


class Ended(Struct, frozen=True):
    """A terminal state. `document` is None when results are not kept or are unreadable."""

    state: str
    document: ResultDocument | None


class Kept(Struct, frozen=True):
    """All that Redis keeps of a task, see the script ``show_task``."""

    record: Record
    due: float | None
    dying: bytes | None
    failures: list[bytes]
    end: bytes | None


class Results:
    """Reads one namespace over a broker's connections; waits over a connection of its own."""

    def __init__(self, broker: Broker, cipher: Cipher = NO_KEYS) -> None:
        self._client = broker.client
        self._cipher = cipher
        self._prefix = broker.prefix
        self._scripts = broker.scripts
        self._places = Places(broker.scripts)
        self._wakes: Wakes = broker.transport.wakes(broker.url, broker.prefix)

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
                    answer = await self._look(id, left, wake.client, holders)
                    if answer[0] == b"ended":
                        return parse_ended(id, answer[1], self._cipher)
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
            async with timeout(_LOOK_SECONDS):
                for holder in holders:
                    await self._client.zrem(f"{self._prefix}awaits:{holder}", id)

    async def _look(
        self, id: str, seconds: float, client: str, holders: Sequence[str]
    ) -> Sequence[bytes]:
        # Without this limit, an unavailable Redis would fail only after all retries.
        async with timeout(None if seconds == math.inf else max(seconds, _LOOK_SECONDS)):
            answer: Sequence[bytes] = await self._scripts.run("wait", id, client, *holders)
        return answer

    async def status(self, id: str) -> TaskStatus | None:
        """Read one task; None if it is unknown.

        Raises:
            MalformedMessageError: another program damaged its record.
        """
        kept = await read_kept(self._scripts, id)
        if _is_task(kept.record):
            due = kept.due
            set_by = _NO_TIME if due is None else await correction(self._client, self._prefix)
            failed = kept.failures[0] if kept.failures else None
            row = (id, kept.record, _wall(due, set_by), kept.dying, failed)
            found = sound(f"t:{id}", lambda: _live_status(self._cipher, *row))
            return (await self._with_names([found]))[0]
        return ended_status(id, parse_ended(id, kept.end, self._cipher)) if kept.end else None

    async def progress(self, id: str) -> tuple[bool, Progress | None]:
        """Return whether a task is live, and the progress of its running attempt."""
        (record,) = await read_records(self._scripts, [id])
        return _is_task(record), _progress(id, in_text(record), self._cipher)

    async def recognise(self, id: str) -> Known | None:
        """Read the state of a task and the mark of the letter that it repeats; None if unknown."""
        answer = await self._scripts.run("recognise", id)
        return Known(answer[0].decode(), answer[1].decode()) if answer else None

    async def page(
        self, selection: TaskFilter, *, limit: int = 100, budget: int = BUDGET, cursor: str = ""
    ) -> TaskPage:
        """Read one page of the live tasks; see `nonet.stores.queue.listing`.

        Raises:
            ValueError: `cursor` is not one of an earlier page.
        """
        if selection.ids:
            rows = await self.chosen(selection.ids, selection)
            number = len(selection.ids)
            return TaskPage(rows[:limit], len(rows), number, number)
        found = await Listing(self._places, selection, limit, budget, cursor).read()
        # Some may have moved since they were found.
        states = selection.states or LIVE_STATES
        rows = [row for row in await self.statuses(found.ids) if row.state in states]
        return TaskPage(rows, found.matched, found.searched, found.total, found.cursor)

    async def stream_tasks(self, name: str, limit: int) -> StreamTasks:
        """Read the next and the running tasks of a stream ``PRIORITY:SIZE``, and who has them."""
        from nonet.stores.queue.stream_tasks import stream_tasks  # workers show no streams

        return await stream_tasks(self._scripts, name, limit)

    async def live(
        self, *, state: str | None = None, task: str | None = None
    ) -> AsyncIterator[TaskStatus]:
        """Yield every live task once, in no order."""
        states = (state,) if state else ()
        async for found in self._each("records", TaskFilter(task or "", states=states)):
            yield found

    async def _each(self, place: str, selection: TaskFilter) -> AsyncIterator[TaskStatus]:
        """Yield the selected tasks of a place, each once."""
        met = set[str]()
        async for page in self._places.walk(place, selection):
            ids = [id for id in dict.fromkeys(item.id for item in page.found) if id not in met]
            met.update(ids)
            for found in await self.statuses(ids):
                if not selection.states or found.state in selection.states:
                    yield found

    async def chosen(self, ids: Sequence[str], selection: TaskFilter) -> list[TaskStatus]:
        """Read the named tasks that are live and selected, in the given order."""
        found = list[TaskStatus]()
        async for page in self._places.named(ids, selection):
            found += await self.statuses([item.id for item in page.found])
        return found

    async def classes(self, selection: TaskFilter, budget: int) -> Counter[str]:
        """Count the classes of selected tasks, among at least `budget` records."""
        found, examined = Counter[str](), 0
        async for page in self._places.walk("records", selection):
            found.update(item.name for item in page.found)
            examined += page.examined
            if examined >= budget:
                break
        return found

    async def incarnations(self, worker: str) -> list[str]:
        """Return the incarnations of registered workers with a name; else the name."""
        return await incarnations(self._client, self._prefix, worker)

    async def statuses(self, ids: Sequence[str]) -> list[TaskStatus]:
        """Read live tasks in a few round trips; leave out those that have ended."""
        found: list[TaskStatus] = []
        set_by = await correction(self._client, self._prefix) if ids else _NO_TIME
        for start in range(0, len(ids), PAGE):
            some = ids[start : start + PAGE]
            records = dict(zip(some, await read_records(self._scripts, some), strict=True))
            dues, errors = await self._set_aside(records)
            for id, record in records.items():
                if _is_task(record):
                    row = (id, record, _wall(dues.get(id), set_by), errors.get(id))
                    found += readable(f"t:{id}", "DEL", [row], partial(_live_status, self._cipher))
        return await self._with_names(found)

    async def _set_aside(
        self, records: Mapping[str, Record]
    ) -> tuple[dict[str, float | None], dict[str, bytes | None]]:
        """Read when delayed and dying tasks are due, and the errors of dying ones."""
        states = {id: record.get("state") for id, record in records.items()}
        delayed = [id for id, state in states.items() if state in (b"delayed", b"dying")]
        dying = [id for id in delayed if states[id] == b"dying"]
        if not delayed:
            return {}, {}
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.zmscore(f"{self._prefix}tasks:delayed", delayed)
            pipe.mget([f"{self._prefix}e:{id}" for id in dying or delayed[:1]])
            dues, errors = await pipe.execute()
        return dict(zip(delayed, dues, strict=True)), dict(zip(dying, errors, strict=False))

    async def ends(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the final state of each task that has ended and is remembered."""
        async with self._client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.getrange(f"{self._prefix}r:{id}", 0, _LONGEST_STATE)
            answers = await pipe.execute()
        states = {
            id: value.partition(b"|")[0].decode(errors="replace")
            for id, value in zip(ids, answers, strict=True)
        }
        return {id: state for id, state in states.items() if state}

    async def _with_names(self, found: list[TaskStatus]) -> list[TaskStatus]:
        """Name the workers of tasks as ``task-run workers`` does: ``pid@host``."""
        names = await worker_names(self._client, self._prefix, (item.worker for item in found))
        return [replace(item, worker=names[item.worker]) if item.worker else item for item in found]

    async def workers(self) -> list[WorkerStatus]:
        """Read the registered workers, by size and name."""
        return await registered(self._scripts)

    async def known_classes(self, worker: str) -> dict[str, str]:
        """Return the classes that a worker knows, each with the version of its distribution."""
        return await known_classes(self._scripts, worker)

    async def drain(self, workers: Sequence[str], who: str) -> int:
        """Ask workers, by their ids, to finish their tasks and end; return how many are new.

        A worker reads this within a second. It exits as after SIGTERM. Repeating the call changes
        nothing.
        """
        return await drain(self._scripts, workers, who)


async def read_kept(scripts: Scripts, id: str, *, whole: bool = False) -> Kept:
    """Read all that Redis keeps of one task, at one instant.

    Args:
        whole: also read its message and all of its failed attempts.
    """
    bounds = (HARD_LIMIT_BYTES, _KEPT_FAILURES) if whole else (0, 1)
    flat, due, *others = await scripts.run("show_task", id, *bounds)
    return Kept(as_record(flat), None if due is None else float(due), *others)


def parse_ended(id: str, value: bytes, cipher: Cipher) -> Ended:
    """Parse and decrypt the stored end of task `id`: ``state|fence|document``."""
    state, _, rest = value.partition(b"|")
    document = rest.partition(b"|")[2]
    try:
        found = revealed(decode_result(document), id, cipher) if document else None
        return Ended(state.decode(), found)
    except MalformedMessageError:
        return Ended(state.decode(), None)


def _deadlock(id: str, lock: str) -> DeadlockError:
    return DeadlockError(
        f"task {id} can never end while this code waits for it: in the queue of {lock} it waits, "
        "directly or behind other tasks, for a lock that this code holds. Do not wait for its "
        "result, make it a callback (spawn_with_callback), or take the lock in only one of the two"
    )


def _number(text: str | None) -> int:
    """Parse a counter of a record; 0 if it is missing."""
    return int(text or 0)


def _instant(text: str | None) -> datetime | None:
    return _EPOCH + timedelta(microseconds=int(text)) if text else None


def _wall(due: float | None, set_by: timedelta) -> datetime | None:
    """Convert a time of the delayed set to the wall clock."""
    return None if due is None else _EPOCH + timedelta(microseconds=int(due)) - set_by


def _is_task(record: Record) -> bool:
    """Whether there is a record of a task, not of a hold."""
    return bool(record) and record.get("stream") != b"hold"


def _live_status(
    cipher: Cipher,
    id: str,
    record: Record,
    due: datetime | None,
    dying: bytes | None,
    failed: bytes | None = None,
) -> TaskStatus:
    """Return the status of a live task.

    Args:
        dying: error document of a dying task.
        failed: error document of the last failed attempt; None: use the line in the record.
    """
    text = in_text(record)
    state, used = text.get("state", ""), _number(text.get("attempt"))
    running = state == "running"
    waits_for_sql = state == "dying" and due is not None
    blocker = _blocker(text) if state == "waiting" or waits_for_sql else ""
    last = read_error(id, dying or failed, cipher)
    return TaskStatus(
        id=id,
        name=text.get("name", ""),
        state=state,
        stream=text.get("stream", ""),
        # The record of a dying task does not count its last attempt.
        attempt=last.attempt if dying and last else used + running,
        submitted=_instant(text.get("ticket") or text.get("gen")),
        due=due if state in ("delayed", "dying") else None,
        started=_instant(text.get("started")) if running else None,
        waits_since=_waits_since(text) if state in ("queued", "waiting") else None,
        worker=text.get("owner", "") if state in ("running", "dying") else "",
        worker_deaths=_number(text.get("deaths")),
        blocker=blocker,
        reason=text.get("reason", ""),
        error=error_line(last.error_type, last.error) if last else text.get("error", ""),
        group=text.get("group", ""),
        workflow=text.get("workflow", ""),
        crashes=_number(text.get("crashes")),
        usage=last.usage if last else None,
        traceback=last.traceback if last else "",
        progress=_progress(id, text, cipher),
    )


def _blocker(record: Mapping[str, str]) -> str:
    blocker = record.get("blocker", "")
    if not record.get("blocked"):
        return blocker
    from nonet.rules.workflows import blocker_in_words  # few tasks are steps of workflows

    return blocker_in_words(blocker)


def _progress(id: str, record: Mapping[str, str], cipher: Cipher) -> Progress | None:
    """Return the progress of the running attempt; ignore an earlier attempt's."""
    fence, _, rest = record.get("progress", "").partition("|")
    fraction, _, at = rest.partition("|")
    moment = _instant(at)
    if record.get("state") != "running" or fence != record.get("fence") or moment is None:
        return None
    share = float(fraction) if fraction else None
    text, data = read_progress(cipher.decrypt_text(record.get("doing", ""), id, "doing"))
    return Progress(share, text, moment, data)


def _waits_since(record: Mapping[str, str]) -> datetime | None:
    """Since when a queued or waiting task waits; `record` has the text of its fields."""
    if record.get("since"):  # it waits for a lock, or was woken
        return _instant(record["since"])
    if record.get("blocked"):
        return _instant(record.get("ticket"))
    if record.get("state") == "waiting":  # a worker handed it back
        return _instant(record.get("put"))
    milliseconds, _ = entry_of(record.get("pointer", "").rpartition(" ")[2])
    return _instant(f"{milliseconds}000" if milliseconds else record.get("gen"))


def read_error(id: str, document: bytes | None, cipher: Cipher) -> ErrorDocument | None:
    """Parse and decrypt an error document of task `id`; None if it is missing or unreadable."""
    try:
        return revealed(decode_error(document), id, cipher) if document else None
    except MalformedMessageError:
        return None


def error_line(kind: str, text: str) -> str:
    """Return an error as one line: its class and its text."""
    return f"{kind}: {text}" if kind else text


def ended_status(id: str, ended: Ended) -> TaskStatus:
    document = ended.document
    if document is None:
        return TaskStatus(id=id, name="", state=ended.state)
    finished, progress = _EPOCH + timedelta(seconds=document.finished), None
    if document.progress is not None or document.doing:
        text, data = read_progress(document.doing)
        progress = Progress(document.progress, text, finished, data)
    return TaskStatus(
        id=id,
        name=document.name,
        state=ended.state,
        attempt=document.attempt,
        finished=finished,
        reason=document.reason,
        error=error_line(document.error_type, document.error),
        worker_deaths=document.deaths,
        crashes=document.crashes,
        usage=document.usage,
        note=document.note,
        traceback=document.traceback,
        progress=progress,
    )
