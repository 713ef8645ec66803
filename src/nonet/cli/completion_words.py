"""Find the words that complete a line, in the task modules and in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from nonet.cli.target import CodeTarget, Target
from nonet.cli.task_classes import loaded, names_of
from nonet.rules.periodic import EntryStatus
from nonet.stores.stores import Stores

# Longest wait for Redis after TAB was pressed.
_REDIS_SECONDS = 0.5
# As many ids fit on a screen.
_FEW = 50


def classes(given: Mapping[str, Any]) -> list[str]:
    """Return the full names of the task classes.

    Args:
        given: options on the line.
    """
    return [item.name for item in loaded(CodeTarget(**given).settings())]


def workflow_ids(given: Mapping[str, Any]) -> list[str]:
    """Return the ids of the workflows whose state changed last."""

    async def newest(stores: Stores) -> list[str]:
        return [item.id for item in (await stores.workflows.page(limit=_FEW)).rows]

    return asyncio.run(_read(given, newest))


def entries(given: Mapping[str, Any], task: str | None) -> list[EntryStatus]:
    """Return the periodic entries of a class; None: of all."""
    found = asyncio.run(_read(given, lambda stores: stores.periodic.statuses()))
    return [item for item in found if not task or task in names_of(item.task)]


async def _read(
    given: Mapping[str, Any], read: Callable[[Stores], Coroutine[Any, Any, list[Any]]]
) -> list[Any]:
    target = Target(**given)
    if target.settings().redis_url.get_secret_value().startswith("embedded:"):
        return []  # a press of TAB starts no server
    async with asyncio.timeout(_REDIS_SECONDS), target.stores() as stores:
        return await read(stores)
