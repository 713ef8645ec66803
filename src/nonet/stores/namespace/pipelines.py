"""What the processes that run pipelines report to operators."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from nonet.base.keys import prefix
from nonet.rules.pipelines import PipelineStatus, Replica, RowFigures
from nonet.stores.connection.redis import AsyncRedis
from nonet.stores.connection.unreadable import readable_hash

# A report counts for this long.
REPORT_SECONDS = 30.0
# One process counts the rows once in this time.
COUNT_SECONDS = 15
_KEEP_SECONDS = 86_400
_FIGURES, _REPLICAS = "pipelines", "pipelines:replicas"


class _Report(Struct):
    """The report of a process; fields of a newer version are dropped."""

    until: float = 0.0
    pipelines: dict[str, Replica] = {}


class PipelineReports:
    """The reports of one namespace, over a broker's connection.

    HASH ``pipelines`` has the figures of each pipeline, HASH ``pipelines:replicas`` what each
    process reports. Every method raises `ServerUnreachableError` if Redis does not answer.
    """

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._client = client
        self._figures = f"{prefix(namespace)}{_FIGURES}"
        self._replicas = f"{prefix(namespace)}{_REPLICAS}"

    async def may_count(self, name: str) -> bool:
        """Whether it is the turn of the caller to count the rows of a pipeline."""
        turn = f"{self._figures}:turn:{name}"
        return bool(await self._client.set(turn, 1, nx=True, ex=COUNT_SECONDS))

    async def report_rows(self, name: str, rows: RowFigures) -> None:
        """Publish the figures of the rows of a pipeline."""
        found = dataclasses.asdict(rows) | {"at": (rows.at or datetime.now(UTC)).timestamp()}
        await self._write(self._figures, name, found)
        await self._forget_dead()

    async def report(self, replica: str, pipelines: Mapping[str, Replica]) -> None:
        """Publish what a process does, for `REPORT_SECONDS`."""
        until = await self._now() + REPORT_SECONDS
        found = {name: dataclasses.asdict(item) for name, item in pipelines.items()}
        await self._write(self._replicas, replica, {"until": until, "pipelines": found})

    async def leave(self, replica: str) -> None:
        """Remove a process that ends."""
        await self._client.hdel(self._replicas, replica)

    async def read(self) -> Sequence[PipelineStatus]:
        """Return the pipelines by name; those that no process runs are kept for a day."""
        figures = await self._client.hgetall(self._figures)
        replicas = await self._client.hgetall(self._replicas)
        now = await self._now()
        running: defaultdict[str, list[Replica]] = defaultdict(list)
        for report in readable_hash(_REPLICAS, replicas, _report).values():
            if report.until >= now:
                for name, item in report.pipelines.items():
                    running[name].append(item)
        rows = {}
        for name, found in readable_hash(_FIGURES, figures, _rows).items():
            if running[name] or not _is_old(found, now):
                # No process counts any more, but the rows still wait.
                rows[name] = found if running[name] else _later(found, now)
        return [
            PipelineStatus(name, rows.get(name, RowFigures()), _sorted(running[name]))
            for name in sorted({*rows, *(name for name, found in running.items() if found)})
        ]

    async def _forget_dead(self) -> None:
        """Remove processes that ended without leaving, and pipelines that none runs any more."""
        now = await self._now()
        figures = await self._client.hgetall(self._figures)
        rows = readable_hash(_FIGURES, figures, _rows)
        if old := [name for name, found in rows.items() if _is_old(found, now)]:
            await self._client.hdel(self._figures, *old)
        replicas = await self._client.hgetall(self._replicas)
        reports = readable_hash(_REPLICAS, replicas, _report)
        if dead := [id for id, report in reports.items() if report.until < now]:
            await self._client.hdel(self._replicas, *dead)

    async def _write(self, key: str, field: str, value: Any) -> None:
        await self._client.hset(key, field, json.dumps(value))
        await self._client.pexpire(key, _KEEP_SECONDS * 1000)

    async def _now(self) -> float:
        seconds, microseconds = await self._client.time()
        return float(int(seconds) + int(microseconds) / 1e6)


def _sorted(replicas: Sequence[Replica]) -> Sequence[Replica]:
    return tuple(sorted(replicas, key=lambda replica: replica.name))


def _report(value: str) -> _Report:
    return msgspec.json.decode(value, type=_Report)


def _is_old(figures: RowFigures, now: float) -> bool:
    """Whether rows were counted so long ago that the pipeline is probably gone or renamed."""
    return figures.at is None or figures.at.timestamp() < now - _KEEP_SECONDS


def _rows(value: str) -> RowFigures:
    found = json.loads(value)
    found["at"] = datetime.fromtimestamp(float(found.get("at", 0.0)), UTC)
    return msgspec.convert(found, RowFigures)


def _later(rows: RowFigures, now: float) -> RowFigures:
    """Return the last counts, with the waits extended to now."""
    if rows.at is None or not rows.due:
        return rows
    passed = max(0.0, now - rows.at.timestamp())
    return dataclasses.replace(rows, oldest=rows.oldest + passed)
