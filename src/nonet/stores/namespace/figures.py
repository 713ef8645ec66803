"""The figures of a namespace, read in one script: for metrics and for ``task-run queues``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from nonet.base.errors import NonetError
from nonet.base.messages.encryption import LACKS
from nonet.base.streams import Size
from nonet.stores.connection.redis import AsyncRedis, RedisStore
from nonet.stores.connection.unreadable import readable, readable_value, whole
from nonet.stores.queue.records import read_records

# Tasks of the delayed set whose state is read; 1000 take about 1 ms. The others are estimated.
_LOOKS = 1000
_WATCHED_MS = 86_400_000
_SUBMITTED = "submitted:"


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One priority and size: its streams of all kinds.

    Attributes:
        depth: queued and running tasks.
        in_flight: tasks that workers have fetched.
        oldest: age in seconds of the oldest task that no worker has fetched; with fair shares, of
            the tenants whose turns come next.
    """

    depth: int
    in_flight: int
    oldest: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One namespace at one instant; times are Unix seconds, 0 if there is none.

    Attributes:
        streams: by priority and size.
        submitted: tasks accepted since they were first counted, by priority and size; None: nothing
            counts them now.
        active: tasks that have not ended, by class name, priority and size.
        delayed: tasks that wait for their due time.
        overdue: entries of the delayed set whose time passed more than a second ago.
        waiting, dying: tasks that wait for locks, a resume or other steps of their workflow; tasks
            that wait for SQL.
        blocked: waiting tasks that wait for other steps; never estimated.
        is_estimate: `delayed`, `waiting` and `dying` are estimated from a sample, because more than
            a thousand tasks are due or checked soon.
        counters: name of an incident → how often it happened.
        workers: registered ones, by size.
        desired: by size, as the leader publishes it; empty if none has led for a minute.
        leader: owner of the lease, or empty.
        term: the last term that was assigned, or 0.
        config: the published version, or empty.
        config_problem: why the current source is not applied, or empty.
        epoch: since when Redis has these data.
        paused: number of pauses.
        quarantined: entries of the quarantine.
        workflows: number of those that have not ended or have failed, by state.
    """

    streams: Mapping[tuple[str, str], StreamFigures]
    submitted: Mapping[tuple[str, str], int] | None
    active: Mapping[tuple[str, str, str], int]
    delayed: int
    overdue: int
    waiting: int
    dying: int
    blocked: int
    is_estimate: bool
    counters: Mapping[str, int]
    workers: Mapping[str, int]
    desired: Mapping[str, int]
    leader: str
    term: int
    config: str
    config_since: float
    config_problem: str
    epoch: float
    paused: int
    quarantined: int
    workflows: Mapping[str, int]


# Tasks that were handed on: size, name of the group (lib/record.lua), and class with size.
_Group = tuple[Size, str, tuple[str, str]]


class Measures(RedisStore):
    """The figures of one namespace, over a broker's connection.

    Args:
        ahead: seconds after which a task that waits for locks is checked again at the latest.
    """

    def __init__(self, client: AsyncRedis, namespace: str, ahead: float) -> None:
        super().__init__(client, namespace)
        self._ahead_us = round(ahead * 1e6)

    async def figures(self, *, count_accepted: bool = False) -> Figures:
        """Read all figures at one instant.

        Args:
            count_accepted: count accepted tasks from now on, for a day. It makes each submission
                slower.

        Raises:
            NonetError: Redis does not answer, or denies the command.
        """
        if count_accepted:
            with suppress(NonetError):  # Redis may refuse writes and still answer reads
                await self._client.set(f"{self._prefix}watched", "", px=_WATCHED_MS)
        return _figures(await self._scripts.run("measure", self._ahead_us, _LOOKS))

    async def handed_on(
        self, workers: Sequence[str] = ()
    ) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], str]]:
        """Count the tasks that wait for a worker that can run them, by class and size.

        Args:
            workers: ids of live workers; the tasks that one of them may run are not counted.

        Returns:
            The numbers; and why a worker could not decrypt the oldest, where that is the reason.
        """
        key = self._scripts.prefix
        async with self._client.pipeline(transaction=False) as pipe:
            for size in Size:
                pipe.smembers(f"{key}handed:{size}")
            groups = [
                (size, group, place)
                for size, members in zip(Size, await pipe.execute(), strict=True)
                for group, place in readable(
                    f"handed:{size}", "SREM", zip(members), partial(_handed, size)
                )
            ]
            groups = await self._unfit(groups, workers) if groups else []
            for size, group, _ in groups:
                pipe.zcard(f"{key}unfit:{size}:{group}")
                pipe.zrange(f"{key}unfit:{size}:{group}", 0, 0)
            answers = await pipe.execute()
        firsts = [first[0].decode(errors="replace") if first else "" for first in answers[1::2]]
        records = await read_records(self._scripts, firsts)
        blockers = [record.get("blocker", b"").decode(errors="replace") for record in records]
        found: Counter[tuple[str, str]] = Counter()
        locked = dict[tuple[str, str], str]()
        for (*_, place), number, blocker in zip(groups, answers[::2], blockers, strict=True):
            found[place] += number
            if blocker.startswith(LACKS):
                locked[place] = blocker
        return dict(+found), locked

    async def _unfit(self, groups: list[_Group], workers: Sequence[str]) -> list[_Group]:
        """Leave out the groups whose tasks a worker may run; see does_fit in lib/fitting.lua."""
        key = self._scripts.prefix
        async with self._client.pipeline(transaction=False) as pipe:
            sizes = [worker.partition("-")[0] for worker in workers]
            for worker in workers:
                pipe.hget(f"{key}w:{worker}", "knows")
            known = {
                (size, knows.decode(errors="replace"))
                for size, knows in zip(sizes, await pipe.execute(), strict=True)
                if knows
            }
            asked = [(one, knows) for one in groups for size, knows in known if size == one[0]]
            for (_, _, (name, _)), knows in asked:
                pipe.hget(f"{key}names:{knows}", name)
            versions = await pipe.execute()
        fit = {
            group
            for (group, knows), version in zip(asked, versions, strict=True)
            if version is not None
            and f"{knows.partition('-')[0]} {version.decode(errors='replace')}"
            not in group[1].rpartition("|")[2].split(",")
        }
        return [group for group in groups if group not in fit]

    async def memory(self) -> tuple[int | None, int | None]:
        """Return the bytes that Redis uses and may use (0: unlimited); None if INFO is refused."""
        try:
            info: Mapping[str, Any] = await self._client.info("memory")
        except NonetError:
            return None, None
        used, most = info.get("used_memory"), info.get("maxmemory")
        return used if isinstance(used, int) else None, most if isinstance(most, int) else None


def complete(desired: Mapping[str, int]) -> dict[str, int]:
    """Add the missing sizes with 0 workers.

    >>> complete({"small": 3})
    {'small': 3, 'medium': 0, 'large': 0}
    """
    return {size.value: desired.get(size, 0) for size in Size}


def _figures(answer: Sequence[Any]) -> Figures:
    """Parse the answer of the script ``measure``."""
    now, streams, (size, overdue, *states, is_estimate, blocked), *hashes = answer[:9]
    waiting, dying, woken, buried = states
    workers, term, paused, quarantined, workflows, counts_submitted = answer[9:]
    epoch, leader, config, counters, active, desired = map(_texts, hashes)
    counts = _numbers("counters", counters)
    leads = leader["owner"] and _number("leader", "expiry", leader["expiry"]) > int(now)
    return Figures(
        streams={
            _pair(name): StreamFigures(depth, in_flight, int(age) / 1e6)
            for name, depth, in_flight, age in streams
        },
        submitted={
            _split(name.removeprefix(_SUBMITTED)): number
            for name, number in counts.items()
            if name.startswith(_SUBMITTED)
        }
        if counts_submitted
        else None,
        active=_by_class(_numbers("active", active)),
        delayed=max(0, size - waiting - dying - woken - blocked),
        overdue=overdue,
        waiting=waiting + blocked,
        dying=dying + buried,
        blocked=blocked,
        is_estimate=is_estimate == 1,
        counters=counts,
        workers=Counter(name.decode(errors="replace").partition("-")[0] for name in workers),
        desired=_numbers("desired", desired),
        leader=leader["owner"] if leads else "",
        term=_number("term", "term", term.decode(errors="replace")),
        config=config["version"],
        config_since=_number("config", "at", config["at"]) / 1e6,
        config_problem=config["problem"],
        epoch=_number("epoch", "since", epoch["since"]) / 1e6,
        paused=paused,
        quarantined=quarantined,
        workflows={
            state.decode(): number
            for state, number in zip(workflows[::2], workflows[1::2], strict=True)
        },
    )


def _texts(flat: Sequence[bytes]) -> dict[str, str]:
    texts = [part.decode(errors="replace") for part in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _number(key: str, field: str, text: str) -> int:
    return readable_value(key, "HDEL", field, lambda: whole(text or "0"), 0)


def _numbers(key: str, found: Mapping[str, str]) -> dict[str, int]:
    return dict(readable(key, "HDEL", found.items(), lambda name, text: (name, whole(text or "0"))))


def _handed(size: str, group: bytes) -> tuple[str, tuple[str, str]]:
    """Parse a group of tasks that were handed on into class and size; see lib/record.lua."""
    name = group.decode()  # KIND:PRIORITY:NAME|UNFIT
    return name, (name.split(":", 2)[2].partition("|")[0], str(size))


def _split(name: str) -> tuple[str, str]:
    priority, _, size = name.partition(":")
    return priority, size


def _pair(name: bytes) -> tuple[str, str]:
    return _split(name.decode())


def _by_class(active: Mapping[str, int]) -> dict[tuple[str, str, str], int]:
    found = {}
    for field, number in active.items():
        stream, _, name = field.partition("|")
        found[(name, *_split(stream))] = number
    return found
