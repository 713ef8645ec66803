"""Adds to refusals who changed the limit, and how long the holders usually run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from nonet.rules.findings.refusal import Refusal
from nonet.rules.limit_changes import SHOWN, override_of
from nonet.stores.connection.redis import AsyncRedis
from nonet.stores.namespace.counts import Counts
from nonet.stores.namespace.limits import Limits
from nonet.stores.namespace.lock_board import LockBoard
from nonet.tasks.locks import KINDS

# A stuck lock stops its class, which then has no figures of the last hour.
_LATELY = timedelta(days=2)


async def known(client: AsyncRedis, namespace: str, refusals: Sequence[Refusal]) -> list[Refusal]:
    """Return refusals with `Refusal.override` and `LockHolder.usual_seconds`.

    Args:
        client: of the broker.
    """
    found = await _with_usual_times(client, namespace, refusals)
    limiters = [item.lock for item in found if KINDS[item.kind].limiter]
    limits = await Limits(client, namespace).all() if limiters else []
    by_address = {item.address: item for item in limits}
    by_hand = [name for name in limiters if override_of(name, by_address)]
    board = await LockBoard(client, namespace).some(by_hand, show=SHOWN)
    declared = {item.lock: item.declared for item in board}
    return [
        replace(item, override=override_of(item.lock, by_address, declared.get(item.lock)))
        for item in found
    ]


async def _with_usual_times(
    client: AsyncRedis, namespace: str, refusals: Sequence[Refusal]
) -> Sequence[Refusal]:
    holders = [holder for item in refusals for holder in item.holders]
    if not any(holder.is_live and holder.held_seconds for holder in holders):
        return refusals
    counts, usual = Counts(client, namespace), dict[str, float | None]()
    for name in {holder.task for holder in holders if holder.task}:
        for item in await counts.figures(since=_LATELY, name=name):
            usual[item.name] = item.total.run.p99
    return [
        replace(
            item,
            holders=tuple(
                replace(holder, usual_seconds=usual.get(holder.task)) for holder in item.holders
            ),
        )
        for item in refusals
    ]
