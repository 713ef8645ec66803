"""The quarantine: bytes that are no task, kept as evidence until somebody looks at them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from nonet.base.errors import (
    NEXT_STEP_IMPOSSIBLE,
    ConflictError,
    LimitImpossible,
    NotFoundError,
)
from nonet.base.keys import prefix
from nonet.stores.connection.redis import Scripts, server_errors
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A task in one of these was not what its entry in the quarantine was kept for.
FAILED_STATES = frozenset({"dying", "dead", "cancelled", "expired"})
_ENTRY = re.compile(r"\d{1,20}-\d{1,20}")
# Entries in one call: each may hold as much as a whole message.
_PAGE = 50
_DISCARDED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One entry of the quarantine.

    Attributes:
        entry: its id.
        at: when it was put there, by the clock of Redis.
        reason: why it is no task.
        task_id: of the task whose record was found with it, or empty.
        stream: key of the stream where the pointer to it was read.
        stream_entry: entry of that stream.
        size: length of all that there was, in bytes.
        data: the envelope, or the packed fields of an entry that is no pointer; the first 64 KiB
            of what is longer than 256 KiB.
    """

    entry: str
    at: datetime
    reason: str
    task_id: str
    stream: str
    stream_entry: str
    size: int
    data: bytes = field(repr=False)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was cut off."""
        return len(self.data) >= self.size

    @property
    def is_pointer(self) -> bool:
        """Whether it is the packed fields of an entry of a stream: longer than these alone."""
        return len(self.data) > self.size


class Quarantine:
    """The quarantine of one namespace, over a broker's connection; scripts write it."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._client = broker.client
        self._ttls = broker.ttls
        self.namespace = namespace
        self._prefix = prefix(namespace)
        self._key = f"{self._prefix}quarantine"
        self._scripts = Scripts(broker.client, self._prefix)

    async def newest(self, limit: int) -> AsyncIterator[Quarantined]:
        """At most `limit` entries, the newest first."""
        before = "+"
        while limit > 0:
            async with server_errors(self._client):
                page = await self._client.xrevrange(self._key, before, count=min(limit, _PAGE))
            for id, fields in page:
                yield _entry(id, fields)
            if len(page) < _PAGE:
                return
            limit -= len(page)
            before = f"({page[-1][0].decode()}"

    async def get(self, entry: str) -> Quarantined:
        """One entry.

        Raises:
            NotFoundError: there is no such entry, or this is no id of one.
        """
        _check(entry)
        async with server_errors(self._client):
            found = await self._client.xrange(self._key, entry, entry)
        if not found:
            raise NotFoundError(_unknown(entry))
        return _entry(*found[0])

    async def discard(self, entries: Sequence[str], who: str) -> list[bool]:
        """Delete entries; False for each that is not there.

        Args:
            who: deletes them, for the event stream.

        Raises:
            NotFoundError: one is no id of an entry; then none is deleted.
        """
        for entry in entries:
            _check(entry)
        gone: list[bool] = []
        for start in range(0, len(entries), _DISCARDED_AT_ONCE):
            chunk = entries[start : start + _DISCARDED_AT_ONCE]
            answer = await self._scripts.run("discard_quarantined", who, *chunk)
            gone += [one == 1 for one in answer]
        return gone

    async def retry(self, entry: str, submission: Submission, who: str) -> str:
        """Submit what an entry holds and take it out of the quarantine, in one step.

        If its task is known and has failed, the entry stays.

        Args:
            submission: what it is as a task, with an id made of the entry.
            who: does this, for the event stream.

        Returns:
            Empty if it was submitted; else the task is known, and this is its state.

        Raises:
            NotFoundError: there is no such entry.
            LimitImpossible: it counts for more than a limiter allows now.
            ConflictError: another task has its id or its unique key.
        """
        answer = await self._scripts.run(
            "retry_quarantined", entry, who, *self._ttls, *submission.spec()
        )
        if isinstance(answer, list) and answer[0] == b"OTHER":
            raise other_task(entry, submission.id, answer[1].decode())
        if isinstance(answer, list) and answer[0] == b"UNIQUE":
            raise ConflictError(
                f"entry {entry} was not submitted: task {answer[1].decode()} has its unique key"
            )
        if isinstance(answer, list):
            why = f"entry {entry} was not submitted: {answer[2].decode()}; {NEXT_STEP_IMPOSSIBLE}"
            raise LimitImpossible(why)
        if answer == -1:
            raise NotFoundError(_unknown(entry))
        return "" if answer == 1 else bytes(answer).decode()

    async def count_since_loss(self) -> int:
        """How many entries were put there since Redis was last empty, whatever became of them."""
        async with server_errors(self._client):
            found = await self._client.hget(f"{self._prefix}counters", "quarantined")
        return _number(found, 0)


def _entry(id: bytes, fields: dict[bytes, bytes]) -> Quarantined:
    """An entry, whoever wrote it: what is missing is empty."""
    data = fields.get(b"bytes", b"")
    milliseconds = int(id.split(b"-")[0])
    at = _number(fields.get(b"at"), milliseconds * 1000)
    return Quarantined(
        entry=id.decode(),
        at=_instant(at),
        reason=_text(fields, b"reason"),
        task_id=_text(fields, b"task"),
        stream=_text(fields, b"stream"),
        stream_entry=_text(fields, b"entry"),
        size=_number(fields.get(b"size"), len(data)),
        data=data,
    )


def _text(fields: dict[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode(errors="backslashreplace")


def _number(value: bytes | None, default: int) -> int:
    return int(value) if value and re.fullmatch(rb"\d{1,18}", value) else default


def _instant(microseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return _EPOCH


def _check(entry: str) -> None:
    if not _ENTRY.fullmatch(entry):
        raise NotFoundError(
            f"the quarantine has no entry {entry:.100}: an id looks like 1767225600000-0; take it "
            "from 'task-run quarantine list'"
        )


def other_task(entry: str, id: str, state: str) -> ConflictError:
    """What to raise where another task has the id of the one that an entry becomes."""
    return ConflictError(
        f"entry {entry} was not submitted: its id {id} belongs to another task, which is {state} "
        f"('task-run status {id}'); retry the entry when nothing is known of that task any longer"
    )


def _unknown(entry: str) -> str:
    return (
        f"the quarantine has no entry {entry}: discarded, submitted again, or the oldest when "
        "it was full; see 'task-run quarantine list' and 'task-run events'"
    )
