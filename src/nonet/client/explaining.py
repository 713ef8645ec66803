"""Explain why a task does not run, from what Redis and SQL know about it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nonet.base.errors import NotFoundError
from nonet.client.namespace import OpenNamespace
from nonet.rules.findings.explanation import Explanation, Facts, explain, explain_kept
from nonet.stores.namespace.explaining import TaskFacts

if TYPE_CHECKING:
    from nonet.stores.sql.outbox import Kept


async def explain_by_facts(home: OpenNamespace, id: str) -> tuple[Explanation, Facts | None]:
    """Explain a task, and return the facts; None: SQL alone knows the task."""
    return await home.routing.find(lambda home: _explain(home, id))


async def _explain(home: OpenNamespace, id: str) -> tuple[Explanation, Facts | None]:
    stores, limit = home.stores, home.settings.crash_limit
    source = TaskFacts(stores.client, home.namespace, limit, stores.lock_ttl_ms, cipher=home.cipher)
    try:
        facts = await source.read(id)
    except NotFoundError:
        kept = await home.kept(id)
        if kept is not None:
            return await _explain_kept(home, id, kept), None
        # The relay may have moved it from SQL to Redis in between.
        facts = await source.read(id)
    return explain(facts), facts


async def _explain_kept(home: OpenNamespace, id: str, kept: Kept) -> Explanation:
    return explain_kept(
        id,
        seconds=(datetime.now(UTC) - kept.created).total_seconds(),
        is_led=await home.stores.leader() is not None,
        due=kept.due,
    )
