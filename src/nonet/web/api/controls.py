"""``/api/v1/pauses``: keep tasks and rows from starting, and let them start again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, StringConstraints

from nonet.base.actor import who as actor
from nonet.base.errors import NotFoundError
from nonet.rules.pauses import (
    EVERYTHING,
    Pause,
    in_words,
    pipeline as pipeline_pause,
    streams,
    task as task_pause,
)
from nonet.rules.permissions import Action
from nonet.web.api.routing import Body, ClassName, Listed, Reason, resource
from nonet.web.site import Pauser, SiteOf, Viewer

router = resource("pauses")

_Stream = Annotated[str, StringConstraints(max_length=50, pattern=r"^[a-z*]+:[a-z*]+$")]


class What(Body):
    """What to pause or resume: everything, or some streams, classes and pipelines."""

    everything: bool = Field(default=False, description="All tasks and pipelines of the namespace.")
    streams: Annotated[list[_Stream], Field(max_length=20)] = Field(
        default=[], description="`PRIORITY:SIZE`; `*` matches any priority or size."
    )
    tasks: Annotated[list[ClassName], Field(max_length=100)] = Field(
        default=[], description="Task classes, by their full or bare names."
    )
    pipelines: Annotated[list[ClassName], Field(max_length=100)] = Field(
        default=[], description="Pipelines: no process fetches their rows."
    )

    def named(self) -> list[str]:
        """Return the pauses, see `Pause.what`."""
        found = [what for pattern in self.streams for what in streams(pattern)]
        found += [task_pause(name) for name in self.tasks]
        found += [pipeline_pause(name) for name in self.pipelines]
        if self.everything == bool(found):
            raise ValueError("give everything, or some streams, tasks and pipelines")
        return [EVERYTHING] if self.everything else list(dict.fromkeys(found))


class ToPause(What, Reason):
    """What to pause, and why."""


@router.get("/pauses")
async def list_pauses(site: SiteOf, who: Viewer) -> Listed[Pause]:
    """List what is paused, since when, by whom and why."""
    return Listed(items=await site.nonet.stores.controls.load())


@router.post("/pauses")
async def pause(body: ToPause, site: SiteOf, who: Pauser) -> Listed[Pause]:
    """Start no more of some or all tasks and rows until they are resumed. Running ones continue."""
    wanted = body.named()
    controls = site.nonet.stores.controls
    async with site.changing(who, Action.PAUSE, f"pause {_words(wanted)}: {body.reason}"):
        await controls.pause(wanted, actor(), body.reason)
    return Listed(items=[item for item in await controls.load() if item.what in wanted])


@router.post("/pauses/resume")
async def resume(body: What, site: SiteOf, who: Pauser) -> Listed[Pause]:
    """End pauses; return those that remain. Each pause is ended by itself."""
    wanted = body.named()
    controls = site.nonet.stores.controls
    before = {item.what for item in await controls.load()}
    async with site.changing(who, Action.PAUSE, f"resume {_words(wanted)}"):
        await controls.resume(wanted, actor())  # also what is not paused, so it can be repeated
    if not before & set(wanted):
        raise NotFoundError(f"{_words(wanted)}: not paused; GET /api/v1/pauses lists the pauses")
    return Listed(items=await controls.load())


def _words(wanted: Sequence[str]) -> str:
    return ", ".join(in_words(what) for what in wanted)
