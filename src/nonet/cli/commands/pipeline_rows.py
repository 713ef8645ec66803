"""What ``task-run pipelines`` does with the rows of a pipeline that this program knows."""

from __future__ import annotations

from typing import Any

from nonet.base.errors import NotFoundError
from nonet.cli.target import CodeTarget
from nonet.pipelines.figures import look
from nonet.pipelines.loading import load_pipelines
from nonet.pipelines.rows import Rows
from nonet.pipelines.table_keys import key_from_text, table_of
from nonet.rules.pipelines import PipelineStatus, explain_row


async def explain(target: CodeTarget, name: str, key: str) -> dict[str, Any]:
    """Explain why a row waits, as JSON.

    Raises:
        NotFoundError: the pipeline or the row does not exist.
    """
    async with target.application() as nonet:
        known = load_pipelines(nonet.settings)
        leasing = known.leasing(known.find(name))
        async with leasing.database.used_once(name):
            found = await look(leasing, key_from_text(leasing.table, key))
        if found is None:
            raise NotFoundError(f"pipeline {name}: table {leasing.table.name} has no row {key}")
        reported = {item.name: item for item in await nonet.stores.pipelines.read()}
        why = explain_row(found, key, reported.get(name, PipelineStatus(name)))
    return {"pipeline": name, "key": key, "cause": why, "attempts": abs(found.attempts)}


async def hint(target: CodeTarget, name: str) -> int:
    """Let the processes of a pipeline look for due rows; return their number.

    Raises:
        NotFoundError: the pipeline is unknown.
    """
    async with target.application() as nonet:
        table = table_of(load_pipelines(nonet.settings).find(name).model).name
        return await nonet.client.hints.send({table})


async def touch(target: CodeTarget, name: str, key: str) -> None:
    """Make a row due now, and hint its processes.

    Raises:
        NotFoundError: the pipeline or the row does not exist.
    """
    async with target.application() as nonet:
        cls = load_pipelines(nonet.settings).find(name)
        rows = Rows(cls.model)
        async with cls.database.used_once(name), cls.database.transaction() as session:
            found = await rows.touch(session, [key_from_text(rows.table, key)])
        if not found:
            raise NotFoundError(f"pipeline {name}: table {rows.table.name} has no row {key}")
        await nonet.client.hints.send({rows.table.name})
