"""``/api/v1/dead-letters``: their clusters, letters, resubmission and discarding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import HTTPException, Path, Query, Response
from pydantic import Field

from nonet.operate.dead_letters import (
    ClusterPage,
    LetterDetails,
    LetterQuery,
    LetterSelection,
    LetterView,
)
from nonet.operate.lists import Page
from nonet.rules.letters import LetterFilter, Status
from nonet.web.bulks import Bulk
from nonet.web.resources.dead_letters import letters
from nonet.web.resources.dead_letters.letters import Deleter, Doer, Noter, Revealer, Row
from nonet.web.resources.tasks.submitting import Changes
from nonet.web.routing import Body, Discard, Made, Text, ascii_json, resource
from nonet.web.site import Discarder, Resubmitter, Site, SiteOf, Viewer

api = resource("dead letters")

_PATH = "/dead-letters"
_RowOf = Annotated[Row, Path(description="Row of the letter.")]
_Listed = Annotated[LetterQuery, Query()]


class ManyLetters(LetterSelection, Body):
    """Selects the letters of a change."""

    all: bool = Field(default=False, description="Select all letters, without another filter.")
    up_to: Row | None = Field(
        default=None, description="No letter with a higher row; from the `up_to` of a dry run."
    )
    dry_run: bool = Field(default=False, description="Change nothing; answer the number.")

    async def measured(self, site: Site, **more: Any) -> tuple[int, LetterFilter]:
        """Return how many letters are selected, and their filter.

        Raises:
            HTTPException: 422, nothing is selected.
        """
        if not (self.all or self.given):
            raise HTTPException(422, "which letters? Give a filter, or 'all': true")
        selection = self.filter(lambda: site.registry, up_to=self.up_to, **more)
        return await letters.measured(site, selection)


class ResubmitLetters(ManyLetters):
    """Which letters are submitted again, and how fast."""

    rate: float | None = Field(
        default=None,
        ge=0.001,
        le=1e6,
        allow_inf_nan=False,
        description="Tasks that start in a second; null: all start at once.",
    )


class DiscardLetters(ManyLetters, Discard):
    """Which letters are deleted, and why."""


class Note(Body):
    """What the next operator should know."""

    note: Text = Field(default="", description="Replaces an earlier note; empty: removes it.")


class Resubmission(Changes):
    """How one letter is submitted again."""

    again: bool = Field(default=False, description="Although it was submitted again before.")


@dataclass(frozen=True)
class Change:
    """How many letters a change selects; `bulk` is null for a dry run."""

    number: int
    up_to: int
    bulk: Bulk | None = None


_DRY: dict[int | str, dict[str, Any]] = {
    200: {"model": Change, "description": "A dry run: nothing was changed."}
}


def _dry(number: int, exact: LetterFilter) -> Response:
    return ascii_json(Change(number, exact.up_to or 0))


@api.get(_PATH)
async def list_dead_letters(site: SiteOf, who: Viewer, query: _Listed) -> Page[LetterView]:
    """Return dead letters, the newest first."""
    return await letters.find(site, query)


@api.get(f"{_PATH}/clusters")
async def list_dead_letter_clusters(site: SiteOf, who: Viewer, query: _Listed) -> ClusterPage:
    """Group dead letters by class, exception and location; newest first."""
    return await letters.clusters(site, query)


@api.post(f"{_PATH}/resubmit", status_code=202, response_model=Change, responses=_DRY)
async def resubmit_dead_letters(
    site: SiteOf, who: Resubmitter, wanted: ResubmitLetters
) -> Change | Response:
    """Submit the open letters of a selection again; 202: it continues after the answer.

    Tasks that are not due by the rate wait in the delayed set. Letters that arrive later are left
    out. After a failure the same request continues.
    """
    if wanted.status not in (None, Status.PENDING):
        raise HTTPException(422, "status: only PENDING letters are submitted again by a filter")
    number, exact = await wanted.measured(site, status=Status.PENDING)
    if wanted.dry_run:
        return _dry(number, exact)
    words = await letters.in_words(site, wanted)
    bulk = await letters.resubmit_many(site, who, exact, number, words, wanted.rate)
    return Change(bulk.total, exact.up_to or 0, bulk)


@api.post(f"{_PATH}/discard", status_code=202, response_model=Change, responses=_DRY)
async def discard_dead_letters(
    site: SiteOf, who: Discarder, wanted: DiscardLetters
) -> Change | Response:
    """Delete the letters of a selection; 202: it continues after the answer."""
    number, exact = await wanted.measured(site)
    if wanted.dry_run:
        return _dry(number, exact)
    words = await letters.in_words(site, wanted)
    bulk = await letters.discard_many(site, who, exact, number, words, wanted.why)
    return Change(bulk.total, exact.up_to or 0, bulk)


@api.get(f"{_PATH}/bulk")
async def list_dead_letter_changes(site: SiteOf, who: Viewer) -> Page[Bulk]:
    """Return the changes of many letters that run, or ran within a day."""
    return Page(await site.read(site.bulks.recent))


@api.get(f"{_PATH}/bulk/{{id}}")
async def get_dead_letter_change(site: SiteOf, who: Viewer, id: str) -> Bulk:
    """Return how far a change of many letters is."""
    return await site.bulks.get(id)


@api.post(f"{_PATH}/bulk/{{id}}/stop")
async def stop_dead_letter_change(site: SiteOf, who: Resubmitter, id: str) -> Bulk:
    """End a change of many letters; those that it has not changed stay as they are."""
    return await letters.stop(site, who, id)


@api.get(f"{_PATH}/{{row}}")
async def get_dead_letter(site: SiteOf, who: Viewer, row: _RowOf) -> LetterDetails:
    """Return a dead letter."""
    return await letters.get(site, row)


@api.get(f"{_PATH}/{{row}}/arguments")
async def reveal_dead_letter(site: SiteOf, who: Revealer, row: _RowOf) -> dict[str, Any]:
    """Return the arguments of a dead letter, with secret ones masked. This is audited."""
    await letters.get(site, row)  # the audit has no reveal of a letter that does not exist
    return await letters.reveal(site, who, row)


@api.post(f"{_PATH}/{{row}}/resubmit")
async def resubmit_dead_letter(
    site: SiteOf, who: Doer, row: _RowOf, how: Resubmission | None = None
) -> Made:
    """Submit a dead letter again as a new task, once."""
    how = how or Resubmission()
    return Made(id=await letters.again(site, who, row, how.again, how.changes))


@api.post(f"{_PATH}/{{row}}/discard", status_code=204)
async def discard_dead_letter(
    site: SiteOf, who: Deleter, row: _RowOf, how: Discard | None = None
) -> None:
    """Delete a dead letter."""
    await letters.discard(site, who, row, how.why if how else "")


@api.put(f"{_PATH}/{{row}}/note", status_code=204)
async def annotate_dead_letter(site: SiteOf, who: Noter, row: _RowOf, noted: Note) -> None:
    """Write a note on a dead letter, in place of an earlier one."""
    await letters.annotate(site, who, row, noted.note)
