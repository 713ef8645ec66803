"""What only tests do to a namespace: move its clock, see what is left to do, find leaked keys.

Synchronous, on a connection of its own: each call takes well below a millisecond, and what it says
is true before anything else happens in the event loop.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from nonet.base.keys import STRUCTURE, prefix
from nonet.stores.connection.redis import connect_sync, literal, run_sync

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Of a task that has not ended, and so owned by it: a key of its own, ``t:ID``.
_OF_A_TASK = ("t", "b", "l", "h", "c", "e", "open", "awaits", "waiters")
# There while some task waits, has a deadline or a unique key, or a group is open.
_OF_TASKS = ("queue:*", "writers:*", "deadlines", "u:*", "g:*")


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A task that has not ended.

    Attributes:
        state: as `nonet.TaskStatus.state`.
        has_run: whether an attempt has failed, or its worker has died.
    """

    id: str
    name: str
    state: str
    has_run: bool = False


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is still to do at one instant.

    Attributes:
        unfinished: every task that has not ended.
        next_due: until a delayed task, a deadline to start or the look at a contended lock is due;
            zero: now; None: there is none.
    """

    unfinished: Sequence[Unfinished]
    next_due: timedelta | None


class Sandbox:
    """One namespace, as a test sees it.

    Args:
        lock_ttl: seconds, of locks that name none.
    """

    def __init__(self, url: str, namespace: str, lock_ttl: float) -> None:
        self._prefix = prefix(namespace)
        self._client = connect_sync(url, self._prefix)
        self._lock_ttl_ms = round(lock_ttl * 1000)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def begin(self, moved: timedelta) -> None:
        """Let it be a namespace that has been in use: nobody waits for who held locks before.

        Args:
            moved: what is added to the clock by which schedules go.
        """
        seconds, microseconds = self._client.time()
        since = seconds * 1_000_000 + microseconds  # start-up hooks are told
        self._client.hset(f"{self._prefix}epoch", mapping={"since": since, "seq": 1, "calm": 0})
        self._client.set(f"{self._prefix}clock:moved", moved // timedelta(microseconds=1))

    def advance(self, by: timedelta) -> datetime:
        """Move logical time; what live workers and holds have locked stays theirs. The new time."""
        microseconds = by // timedelta(microseconds=1)
        answer = run_sync(self._client, self._prefix, "advance", microseconds, self._lock_ttl_ms)
        return _EPOCH + timedelta(microseconds=int(answer))

    def survey(self) -> Survey:
        """What there is still to do."""
        due, *parts = [part.decode() for part in run_sync(self._client, self._prefix, "survey")]
        rows = zip(*(parts[column::4] for column in range(4)), strict=True)
        found = [Unfinished(id, name, state, has_run == "1") for id, name, state, has_run in rows]
        next_due = None if int(due) < 0 else timedelta(microseconds=int(due))
        return Survey(sorted(found, key=lambda item: item.id), next_due)

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those tasks that Redis knows: they were submitted, whatever became of them since."""
        with self._client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.exists(f"{self._prefix}t:{id}", f"{self._prefix}r:{id}")
            return {id for id, found in zip(ids, pipe.execute(), strict=True) if found}

    def leaked(self) -> list[str]:
        """Keys that neither expire nor belong to anything: no structure, no unfinished task."""
        live = {item.id for item in self.survey().unfinished}
        return leaked_keys(self._client, literal(self._prefix) + "*", live=live)

    def erase(self) -> None:
        """Delete every key of the namespace."""
        keys = list(self._client.scan_iter(literal(self._prefix) + "*", count=1000))
        if keys:
            self._client.unlink(*keys)


def leaked_keys(
    client: Any,
    pattern: str = "*",
    *,
    allowed: Iterable[str] = STRUCTURE,
    live: Collection[str] = (),
) -> list[str]:
    """Keys without a TTL that have no owner, sorted.

    Args:
        client: a synchronous client of redis-py, whether it decodes or not.
        pattern: of the keys to look at.
        allowed: patterns without ``{namespace}:`` of what may stay for good.
        live: ids of tasks that have not ended: what is theirs is owned.
    """
    owned = (*allowed, *(_OF_TASKS if live else ()))
    leaked = []
    for found in client.scan_iter(pattern, count=1000):
        key = found.decode(errors="replace") if isinstance(found, bytes) else found
        name = key.partition(":")[2]
        kind, _, rest = name.partition(":")
        if (
            not any(fnmatch.fnmatchcase(name, one) for one in owned)
            and not (kind in _OF_A_TASK and rest in live)
            and client.ttl(found) == -1
            and not _is_of_a_worker(client, key)
        ):
            leaked.append(key)
    return sorted(leaked)


def _is_of_a_worker(client: Any, key: str) -> bool:
    """Whether a key wakes a worker that is registered, maybe dead: they are forgotten together."""
    namespace, _, name = key.partition(":")
    kind, _, worker = name.partition(":")
    return kind == "wake" and client.zscore(f"{namespace}:workers", worker) is not None
