"""Pipelines: rows of a SQL table, processed continuously, each by one worker at a time.

    class ProvisionVolumes(Pipeline[Volume]):
        model = Volume
        database = database

        async def process(self, row: Volume) -> Changes:
            return Changes(status="active").finish()

A row in one pass (`runner`): fetch → load → process → apply or fail → forget. `leasing` has all
statements, and explains who may take a row.

    columns, related, changes, pipeline, rows   what authors write
    leasing, clock, database                    SQL
    heartbeat                                   the thread that renews leases
    runner, backoff, host                       one pipeline in a process, and all of them
"""

from __future__ import annotations

from nonet.base.errors import RowsBusy
from nonet.pipelines.changes import NOW, Changes
from nonet.pipelines.columns import LeaseMixin
from nonet.pipelines.database import RowDatabase
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.related import Children, Shared
from nonet.pipelines.rows import Rows

__all__ = [
    "NOW",
    "Changes",
    "Children",
    "LeaseMixin",
    "Pipeline",
    "RowDatabase",
    "Rows",
    "RowsBusy",
    "Shared",
]
