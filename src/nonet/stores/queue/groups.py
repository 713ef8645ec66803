"""Callback groups: open and seal them, read their status and the results of children."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from nonet.base.errors import NotFoundError
from nonet.base.messages.encryption import NO_KEYS, Cipher
from nonet.stores.connection.clock import instant
from nonet.stores.connection.redis import AsyncRedis, RedisStore
from nonet.stores.connection.unreadable import readable, sound
from nonet.stores.queue.results import Ended, ended_status, parse_ended
from nonet.stores.queue.submissions import Submission
from nonet.tasks.handles import TaskStatus


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group as operators see it.

    Attributes:
        state: ``building``, ``sealed`` or ``fired``.
        outcome: how a fired group ended; empty before. ``done``: all children are done;
            ``failed``: the policy failed the group, or no child is done; ``partial``: some
            children failed under the policy ``all_done``.
        total: number of children.
        pending: children that have not ended.
        failed: children that ended in another state than ``done``.
        callback, callback_id: name and id of the task that the group submits: the callback or, if
            the group failed, ``on_failure``; empty if there is none.
    """

    id: str
    state: str
    outcome: str
    total: int
    pending: int
    failed: int
    policy: str
    callback: str
    callback_id: str
    parent: str
    opened: datetime
    error: str

    @property
    def condition(self) -> str:
        """The state in a word, which shows a failure even if a callback was submitted."""
        return self.outcome if self.outcome in ("failed", "partial") else self.state


class Groups(RedisStore):
    """The groups of one namespace, over a broker's connection."""

    def __init__(self, client: AsyncRedis, namespace: str, cipher: Cipher = NO_KEYS) -> None:
        super().__init__(client, namespace)
        self._cipher = cipher

    async def open(
        self,
        group: str,
        parent: str,
        *,
        policy: str,
        ttl_seconds: float,
        total: int,
        callback: Submission,
        on_failure: Submission | None,
    ) -> str:
        """Open a group, unless an earlier attempt of the parent opened it; return its state."""
        failure = on_failure.arguments() if on_failure else ("", "", "", 0, "", b"", "", "")
        state = await self._scripts.run(
            "group_open",
            group,
            parent,
            policy,
            round(ttl_seconds * 1000),
            total,
            *callback.arguments(),
            *failure,
        )
        return str(state.decode())

    async def seal(self, group: str, parent: str) -> str:
        """Record that all children are submitted; the group fires if none is pending."""
        return str((await self._scripts.run("group_seal", group, parent)).decode())

    async def results(self, group: str) -> list[tuple[str, Ended | None]]:
        """Read how each child ended (None: no result), in the order of spawning."""
        key = f"{self._prefix}g:{group}"
        total = await self._scripts.read("HGET", key, "total")
        found = await self._scripts.read("HGETALL", f"{key}:results")
        if total is None:
            raise NotFoundError(f"group {group!r} is unknown, or its results have expired")
        pairs = zip(map(bytes.decode, found[::2]), found[1::2], strict=True)
        ended = {id: parse_ended(id, value, self._cipher) for id, value in pairs}
        ids = [child_id(group, index) for index in range(int(total))]
        return [(id, ended.get(id)) for id in ids]

    async def children(
        self, group: GroupStatus, offset: int, most: int
    ) -> tuple[list[str], dict[str, TaskStatus]]:
        """Return the ids of some children in the order of spawning, and those that have ended."""
        last = min(group.total, offset + most)
        ids = [child_id(group.id, index) for index in range(offset, last)]
        values = []
        if ids:
            values = await self._client.hmget(f"{self._prefix}g:{group.id}:results", ids)
        pairs = zip(ids, values, strict=True)
        return ids, {
            id: ended_status(id, parse_ended(id, value, self._cipher))
            for id, value in pairs
            if value
        }

    async def pending(self, group: str) -> list[str]:
        """Read the ids of children that have not ended, in no order.

        Raises:
            NotFoundError: no group has this id, or it has expired.
        """
        key = f"{self._prefix}g:{group}"
        is_known = await self._client.hexists(key, "state")
        ids = await self._client.smembers(f"{key}:pending")
        if not is_known:
            raise NotFoundError(f"group {group!r} is unknown, or has expired")
        return [id.decode() for id in ids]

    async def status(self, group: str) -> GroupStatus:
        """Read one group.

        Raises:
            NotFoundError: no group has this id, or it has expired.
            MalformedMessageError: another program damaged it.
        """
        row = await self._row(group)
        if b"state" not in row[1]:
            raise NotFoundError(f"group {group!r} is unknown, or has expired")
        return sound(f"g:{group}", lambda: _status(*row))

    async def _row(self, group: str) -> tuple[str, dict[bytes, bytes], int, list[bytes | None]]:
        """Read the arguments of `_status`; the fields of an unknown group have no state."""
        key = f"{self._prefix}g:{group}"
        found = await self._client.hgetall(key)
        pending = await self._client.scard(f"{key}:pending")
        which = "on_failure" if found.get(b"outcome") == b"failed" else "callback"
        spec = await self._client.hmget(f"{key}:{which}", "name", "id")
        return group, found, pending, spec

    async def opened_by(self, parent: str) -> Sequence[str]:
        """Return the ids of the first ten groups that a task has opened and that are still kept."""
        ids = [group_id(parent, number) for number in range(1, 11)]
        keys = [f"{self._prefix}g:{id}" for id in ids]
        if not await self._client.exists(*keys):
            return []
        async with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.exists(key)
            known = await pipe.execute()
        return [id for id, is_known in zip(ids, known, strict=True) if is_known]

    async def list(self, limit: int) -> Sequence[GroupStatus]:
        """Read the groups opened last, newest first."""
        found = []
        for id in await self._newest(limit):
            row = await self._row(id)
            if b"state" in row[1]:
                found += readable(f"g:{id}", "DEL", [row], _status)
        return found

    async def _newest(self, limit: int) -> Sequence[str]:
        newest: list[tuple[int, str]] = []
        cursor, more = 0, True
        while more:
            cursor, page = await self._client.zscan(f"{self._prefix}groups", cursor, count=1000)
            ids = readable("groups", "ZREM", page, lambda id, _: id.decode())
            async with self._client.pipeline(transaction=False) as pipe:
                for id in ids:
                    pipe.hget(f"{self._prefix}g:{id}", "opened")
                opened = await pipe.execute()
            pairs = ((id, at) for id, at in zip(ids, opened, strict=True) if at)
            known = readable("groups", "ZREM", pairs, lambda id, at: (int(at), id))
            newest = heapq.nlargest(limit, {*known, *newest})
            more = cursor != 0
        return [id for _, id in newest]


def _status(
    group: str, found: dict[bytes, bytes], pending: int, spec: Sequence[bytes | None]
) -> GroupStatus:
    text = {name.decode(): value.decode() for name, value in found.items()}
    callback, callback_id = ((part or b"").decode() for part in spec)
    total, failed = int(text["total"]), int(text["failed"])
    return GroupStatus(
        id=group,
        state=text["state"],
        outcome=outcome_of(text.get("outcome", ""), total, failed),
        total=total,
        pending=pending,
        failed=failed,
        policy=text["policy"],
        callback=callback,
        callback_id=callback_id,
        parent=text["parent"],
        opened=instant(text["opened"]),
        error=text.get("error", ""),
    )


def outcome_of(fired: str, total: int, failed: int) -> str:
    """Return how a group ended; the policy ``all_done`` submits the callback despite failures.

    >>> [outcome_of("done", 2, failed) for failed in (0, 1, 2)], outcome_of("", 2, 1)
    (['done', 'partial', 'failed'], '')
    """
    if fired != "done" or not failed:
        return fired
    return "failed" if failed == total else "partial"


def problem_of(group: GroupStatus, *, is_parent_live: bool) -> str:
    """Return why a group cannot end by itself, or why it failed; empty if all is well."""
    if group.error:
        return group.error
    if group.state == "building" and group.parent and not is_parent_live:
        return (
            "its parent has ended or is unknown, but has not submitted all children: the group "
            "fails when Nonet notices that, at the next walk over all records"
        )
    if group.state == "building" and not group.parent:
        return (
            "a program is submitting its children. If that program is dead, the group never fires "
            "and is forgotten after its time: submit it again"
        )
    if group.state == "sealed" and not group.pending:
        return "all children have ended, but it has not fired: 'task-run doctor' checks the keys"
    return ""


def group_id(parent: str, number: int) -> str:
    """Return the id of a group that a task opens, the same in each attempt: a retry finds it.

    Args:
        number: 1 for the first group of the task.
    """
    return hashlib.sha256(f"{parent}/{number}".encode()).hexdigest()[:32]


def callback_id(group: str) -> str:
    """Return the id of a group's callback."""
    return f"{group}.callback"


def failure_id(group: str) -> str:
    """Return the id of the task that is submitted when a child has failed."""
    return f"{group}.failure"


def child_id(group: str, index: int) -> str:
    """Return the id of a child, the same in each attempt of the parent: it is spawned once."""
    return f"{group}.{index}"
