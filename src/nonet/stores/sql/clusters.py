"""Group dead letters of the same cause by their fingerprints."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from nonet.rules.letters import Cluster, LetterFilter, Status
from nonet.stores.sql.database import Database, pages
from nonet.stores.sql.letters import clauses, dlq_tasks

_ROW = dlq_tasks.c
_AGES = (timedelta(hours=1), timedelta(days=1), timedelta(days=7))
_SHOWN_CHARACTERS = 500


async def clusters(database: Database, namespace: str, selection: LetterFilter) -> list[Cluster]:
    """See `DeadLetters.clusters`."""
    # Letters of a cluster have the same class and exception, so its newest letter shows them.
    counted = dataclasses.replace(selection, task_class=None, error=None)
    groups: dict[str, list[Any]] = defaultdict(list)
    query = _counting(datetime.now(UTC)).where(_ROW.namespace == namespace, *clauses(counted))
    for group in await database.rows(query):
        groups[group.fingerprint].append(group)
    found = []
    for some in pages(list(groups.values())):
        samples = await _samples(database, [max(part.newest for part in parts) for parts in some])
        # Without a sample, the letters have been deleted meanwhile.
        found += [
            _cluster(parts, sample)
            for parts in some
            if (sample := samples.get(max(part.newest for part in parts))) is not None
            and _fits(sample, selection)
        ]
    return sorted(found, key=lambda item: (item.last, item.fingerprint), reverse=True)


def _counting(now: datetime) -> sa.Select[Any]:
    died = _ROW.created_at
    younger = [sa.func.sum(sa.case((died > now - age, 1), else_=0)) for age in _AGES]
    return sa.select(
        _ROW.fingerprint,
        _ROW.status,
        sa.func.count().label("number"),
        sa.func.min(died).label("first"),
        sa.func.max(died).label("last"),
        sa.func.max(_ROW.id).label("newest"),
        younger[0].label("hour"),
        younger[1].label("day"),
        younger[2].label("week"),
    ).group_by(_ROW.fingerprint, _ROW.status)


async def _samples(database: Database, rows: Sequence[int]) -> dict[int, Any]:
    text = sa.func.substr(_ROW.last_error, 1, _SHOWN_CHARACTERS).label("last_error")
    query = sa.select(_ROW.id, _ROW.task_class, _ROW.error_type, _ROW.reason, _ROW.location, text)
    found = await database.rows(query.where(_ROW.id.in_(rows)))
    return {row.id: row for row in found}


def _fits(sample: Any, selection: LetterFilter) -> bool:
    task_class, error = selection.task_class, selection.error
    names = (None, sample.task_class, sample.task_class.rpartition(":")[2])
    return task_class in names and (
        error is None or error.casefold() in sample.error_type.casefold()
    )


def _cluster(parts: Sequence[Any], sample: Any) -> Cluster:
    statuses = {part.status: part.number for part in parts}
    return Cluster(
        fingerprint=parts[0].fingerprint,
        newest=sample.id,
        task_class=sample.task_class,
        error_type=sample.error_type,
        reason=sample.reason,
        location=sample.location,
        last_error=sample.last_error,
        count=sum(statuses.values()),
        statuses={status: statuses.get(status, 0) for status in Status},
        first=min(part.first for part in parts),
        last=max(part.last for part in parts),
        last_hour=int(sum(part.hour for part in parts)),
        last_day=int(sum(part.day for part in parts)),
        last_week=int(sum(part.week for part in parts)),
    )
