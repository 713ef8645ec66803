"""Pipelines: rows of a SQL table, processed continuously, each by one worker at a time.

    class ProvisionVolumes(Pipeline[Volume]):
        model = Volume
        database = database

        async def process(self, row: Volume) -> Changes:
            return Changes(status="active").finish()

A row in one pass (`pipeline_runner`): fetch → load → process → apply or fail → forget. `leasing`
has the statements, and `eligibility` explains which process may take a row.

    columns, related, changes, pipeline, rows   what authors write
    leasing, eligibility, clock, database       SQL
    heartbeat                                   the thread that renews leases
    processing                                  what happens to one leased row
    runner, backoff, host                       one pipeline in a process, and all of them
    row_task                                    rows that are processed by tasks
"""

from __future__ import annotations

from nonet.base.errors import RowsBusy
from nonet.pipelines.changes import NOW, Changes
from nonet.pipelines.columns import LeaseMixin
from nonet.pipelines.database import RowDatabase
from nonet.pipelines.migration import add_lease_columns, drop_lease_columns
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.related import Children, Shared
from nonet.pipelines.row_task import RowTask
from nonet.pipelines.rows import Rows

__all__ = [
    "NOW",
    "Changes",
    "Children",
    "LeaseMixin",
    "Pipeline",
    "RowDatabase",
    "RowTask",
    "Rows",
    "RowsBusy",
    "Shared",
    "add_lease_columns",
    "drop_lease_columns",
]
