"""``/api/v1/pipelines``: rows of SQL tables that are processed continuously."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, Field

from nonet.rules.pipelines import PipelineStatus
from nonet.web import shown
from nonet.web.api.routing import Listed, resource
from nonet.web.site import SiteOf, Viewer

router = resource("pipelines")


class PipelineItem(BaseModel):
    """A pipeline: its due rows, how fast they are processed, and what keeps them waiting."""

    pipeline: str = Field(description="Its name.")
    counted_at: datetime | None = Field(description="When the rows were counted; null: never.")
    due: int = Field(description="Due rows, those in process included; 10,001: more than 10,000.")
    leased: int = Field(description="Of these, how many a process has.")
    stale: int = Field(description="Of these, how many a dead process has left.")
    waiting: int = Field(description="Of these, how many wait for related rows.")
    dying: int = Field(description="Of these, how many wait for their dead letter to be written.")
    oldest_seconds: float = Field(
        description="Longest wait of a due row that no process has leased."
    )
    rate: int = Field(description="Rows done within the last minute.")
    wait_seconds: float = Field(
        description="Mean wait of these, from their due time to their start."
    )
    paused: str = Field(description="Why no process fetches rows; empty: it is not paused.")
    cause: str = Field(description="The first thing that keeps rows waiting; may be empty.")


class PipelineProcess(BaseModel, from_attributes=True):
    """A process that runs a pipeline."""

    name: str = Field(description="`pid@host`.")
    workers: int = Field(description="How many rows it processes at once.")
    running: int = Field(description="Rows in process.")
    queued: int = Field(description="Leased rows that wait for a worker.")
    rate: int = Field(description="Rows done within the last minute.")
    problem: str = Field(description="Why its database does not work, or empty.")
    letters: str = Field(description="Why it cannot write dead letters, or empty.")


class PipelineInFull(PipelineItem):
    """A pipeline with its processes."""

    processes: Sequence[PipelineProcess]


@router.get("/pipelines")
async def list_pipelines(site: SiteOf, who: Viewer) -> Listed[PipelineItem]:
    """List the pipelines that a process runs, or ran within a day."""
    found = await shown.pipelines(site)
    return Listed(items=[PipelineItem(**item.document()) for item in found])


@router.get("/pipelines/{name}")
async def get_pipeline(
    name: Annotated[str, Path(pattern=r"^[!-~]{1,60}$", description="Name of the pipeline.")],
    site: SiteOf,
    who: Viewer,
) -> PipelineInFull:
    """Return a pipeline with the processes that run it. `POST /api/v1/pauses` pauses it."""
    found: PipelineStatus = await shown.pipeline(site, name)
    processes = [PipelineProcess.model_validate(one) for one in found.replicas]
    return PipelineInFull(**found.document(), processes=processes)
