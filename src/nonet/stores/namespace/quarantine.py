"""The quarantine: messages that are not valid tasks, kept until an operator handles them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from nonet.base.errors import NEXT_STEP_IMPOSSIBLE, ConflictError, LimitImpossible, NotFoundError
from nonet.rules.findings import remedies
from nonet.stores.connection.clock import instant
from nonet.stores.connection.redis import RedisStore
from nonet.stores.connection.unreadable import readable
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission

# States of a known task after which its entry must stay in the quarantine.
FAILED_STATES = frozenset({"dying", "dead", "cancelled", "expired"})
_ENTRY = re.compile(r"\d{1,19}-\d{1,19}", re.ASCII)  # 64 bits have all of these
# Entries in one call: each may hold as much as a whole message.
_PAGE = 50
_DISCARDED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One entry of the quarantine.

    Attributes:
        entry: its id.
        at: when it was quarantined, by the clock of Redis.
        reason: why it is not a valid task.
        task_id: id of the task whose record was found with it, or empty.
        stream: key of the stream from which it was read.
        stream_entry: entry of that stream.
        size: original length in bytes.
        data: the envelope, or the packed fields of an entry that is not a pointer. Data longer
            than 256 KiB is cut to its first 64 KiB.
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
        """Whether the data is complete."""
        return len(self.data) >= self.size

    @property
    def is_pointer(self) -> bool:
        """Whether `data` is the packed fields of a stream entry. Packing adds to their `size`."""
        return len(self.data) > self.size


class Quarantine(RedisStore):
    """The quarantine of one namespace, over a broker's connection; scripts write it."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        super().__init__(broker.client, namespace)
        self._keeping = broker.keeping
        self.namespace = namespace
        self._key = f"{self._prefix}quarantine"

    async def newest(self, limit: int, *, before: str = "") -> AsyncIterator[Quarantined]:
        """Yield at most `limit` entries, the newest first.

        Args:
            before: only entries that are older than this one; empty: all.

        Raises:
            NotFoundError: the id `before` is malformed.
        """
        if before:
            _check(before)
        before = f"({before}" if before else "+"
        while limit > 0:
            page = await self._client.xrevrange(self._key, before, count=min(limit, _PAGE))
            for entry in readable("quarantine", "XDEL", page, _entry):
                yield entry
            if len(page) < _PAGE:
                return
            limit -= len(page)
            before = f"({page[-1][0].decode()}"

    async def get(self, entry: str) -> Quarantined:
        """Return one entry.

        Raises:
            NotFoundError: there is no such entry, or the id is malformed.
        """
        _check(entry)
        found = await self._client.xrange(self._key, entry, entry)
        if not found:
            raise NotFoundError(_unknown(entry))
        return _entry(*found[0])

    async def discard(self, entries: Sequence[str], who: str, why: str = "") -> list[bool]:
        """Delete entries. Return False for each that did not exist.

        Args:
            who: the operator, for the event stream.
            why: for the event stream.

        Raises:
            NotFoundError: an id is malformed; no entry was deleted.
        """
        for entry in entries:
            _check(entry)
        gone: list[bool] = []
        for start in range(0, len(entries), _DISCARDED_AT_ONCE):
            chunk = entries[start : start + _DISCARDED_AT_ONCE]
            answer = await self._scripts.run("discard_quarantined", who, why, *chunk)
            gone += [one == 1 for one in answer]
        return gone

    async def retry(self, entry: str, submission: Submission, who: str) -> str:
        """Submit an entry as a task and remove it from the quarantine, atomically.

        The entry stays if its task is known and has failed.

        Args:
            submission: the task, with an id derived from the entry.
            who: the operator, for the event stream.

        Returns:
            Empty if it was submitted; otherwise the state of the task, which is known already.

        Raises:
            NotFoundError: there is no such entry.
            LimitImpossible: it asks a limiter for more than its current limit.
            ConflictError: another task has its id or its unique key.
        """
        answer = await self._scripts.run(
            "retry_quarantined", self._keeping, entry, who, *submission.spec()
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
        """Return how many entries were ever quarantined since Redis was last empty."""
        found = await self._client.hget(f"{self._prefix}counters", "quarantined")
        return int(found or 0)


def _entry(id: bytes, fields: dict[bytes, bytes]) -> Quarantined:
    return Quarantined(
        entry=id.decode(),
        at=instant(fields[b"at"]),
        reason=_text(fields, b"reason"),
        task_id=_text(fields, b"task"),
        stream=_text(fields, b"stream"),
        stream_entry=_text(fields, b"entry"),
        size=int(fields[b"size"]),
        data=fields[b"bytes"],
    )


def _text(fields: dict[bytes, bytes], name: bytes) -> str:
    return fields[name].decode(errors="backslashreplace")


def _check(entry: str) -> None:
    if not _ENTRY.fullmatch(entry):
        raise NotFoundError(
            f"the quarantine has no entry {entry:.100}: an id looks like 1767225600000-0; take it "
            "from 'task-run quarantine list'"
        )


def other_task(entry: str, id: str, state: str) -> ConflictError:
    """The error for an entry whose task id belongs to another task."""
    show = remedies.of_task("status", id)
    return ConflictError(
        f"entry {entry} was not submitted: its id {id} belongs to another task, which is {state} "
        f"('{show}'); retry the entry after Redis has forgotten that task"
    )


def _unknown(entry: str) -> str:
    return (
        f"the quarantine has no entry {entry}: discarded, submitted again, or the oldest when "
        "it was full; see 'task-run quarantine list' and 'task-run events'"
    )
