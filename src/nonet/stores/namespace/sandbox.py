"""Operations for tests: move the clock of a namespace, survey its tasks, find leaked keys.

The calls are synchronous, on their own connection. Each takes well below a millisecond, and its
answer stays true until the event loop runs again.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from nonet.base.keys import LAYOUT, STRUCTURE, prefix
from nonet.stores.connection.clock import instant
from nonet.stores.connection.redis import connect_sync, literal, run_sync

# Keys KIND:ID that belong to a task until it ends.
_OF_A_TASK = ("t", "b", "l", "h", "c", "e", "open", "awaits", "waiters")
# Keys that exist while a task waits, has a deadline or a unique key, or a group is open.
_OF_TASKS = ("queue:*", "writers:*", "line:*", "deadlines", "u:*", "g:*", "f:*", "[mj]:*", "edges")
# Keys KIND:STEP that a workflow keeps until it is forgotten, so that it can be resumed.
_OF_A_WORKFLOW = ("n", "k", "s")


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
    """The unfinished work at one instant.

    Attributes:
        unfinished: every task that has not ended.
        next_due: time until a delayed task, a deadline to start or the check of a contended lock
            is due; zero: now; None: nothing is due.
    """

    unfinished: Sequence[Unfinished]
    next_due: timedelta | None


class Sandbox:
    """Controls one namespace for a test.

    Args:
        lock_ttl: TTL in seconds of locks that declare none.
    """

    def __init__(self, url: str, namespace: str, lock_ttl: float) -> None:
        self._prefix = prefix(namespace)
        self._client = connect_sync(url, self._prefix)
        self._lock_ttl_ms = round(lock_ttl * 1000)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def begin(self, moved: timedelta) -> None:
        """Initialize the namespace, without the grace period for locks after a loss of data.

        Args:
            moved: offset of the clock of schedules.
        """
        seconds, microseconds = self._client.time()
        since = seconds * 1_000_000 + microseconds  # start-up hooks are told
        # A lower sequence than that of an epoch that this process has seen looks like a loss.
        epoch = {
            "since": since,
            "seq": since,
            "withheld": 0,
            "lost": "",
            "first": "",
            "layout": LAYOUT,
        }
        self._client.hset(f"{self._prefix}epoch", mapping=epoch)
        self._client.set(f"{self._prefix}clock:moved", moved // timedelta(microseconds=1))

    def advance(self, by: timedelta) -> datetime:
        """Advance logical time, keep the locks of live workers and holds, return the new time."""
        microseconds = by // timedelta(microseconds=1)
        answer = run_sync(self._client, self._prefix, "advance", microseconds, self._lock_ttl_ms)
        return instant(answer)

    def survey(self) -> Survey:
        """Return the unfinished work."""
        due, *parts = [part.decode() for part in run_sync(self._client, self._prefix, "survey")]
        rows = zip(*(parts[column::4] for column in range(4)), strict=True)
        found = [Unfinished(id, name, state, has_run == "1") for id, name, state, has_run in rows]
        next_due = None if int(due) < 0 else timedelta(microseconds=int(due))
        return Survey(sorted(found, key=lambda item: item.id), next_due)

    def known(self, ids: Sequence[str]) -> set[str]:
        """Return the ids that Redis knows, of live and of ended tasks."""
        with self._client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.exists(f"{self._prefix}t:{id}", f"{self._prefix}r:{id}")
            return {id for id, found in zip(ids, pipe.execute(), strict=True) if found}

    def leaked(self) -> list[str]:
        """Return keys that neither expire nor belong to a structure or an unfinished task."""
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
    """Return the keys without a TTL that have no owner, sorted.

    Args:
        client: a synchronous client of redis-py, decoding or not.
        pattern: keys to check.
        allowed: patterns, without ``{namespace}:``, of permanent keys.
        live: ids of unfinished tasks, which own their keys.
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
            and not (kind in _OF_A_WORKFLOW and client.exists(_workflow_of(key)))
            and client.ttl(found) == -1
            and not _is_of_a_worker(client, key)
        ):
            leaked.append(key)
    return sorted(leaked)


def _workflow_of(key: str) -> str:
    """The key of the workflow to which the key of a step belongs."""
    namespace, _, name = key.partition(":")
    return f"{namespace}:f:{name.partition(':')[2].rpartition(':')[0]}"


def _is_of_a_worker(client: Any, key: str) -> bool:
    """Whether a key is the wake list of a registered worker, which is deleted with the worker."""
    namespace, _, name = key.partition(":")
    kind, _, worker = name.partition(":")
    return kind == "wake" and client.zscore(f"{namespace}:workers", worker) is not None
