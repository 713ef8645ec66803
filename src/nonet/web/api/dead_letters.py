"""``/api/v1/dead-letters``: their clusters, letters, resubmission and discarding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import HTTPException, Path, Query, Response
from pydantic import AfterValidator, BaseModel, Field

from nonet.operate.dead_letters import arguments_of, letter_filter, why_unknown
from nonet.operate.lists import opened
from nonet.rules.permissions import Action
from nonet.stores.sql.dead_letters import Cluster, LetterFilter, Status
from nonet.web import letters
from nonet.web.api.routing import (
    Body,
    ClassName,
    Cursor,
    Id,
    Limit,
    Made,
    Note,
    Page,
    Text,
    ascii_json,
    page,
    resource,
    slice_of as page_of_list,
)
from nonet.web.bulks import Bulk
from nonet.web.letters import Row
from nonet.web.site import Discarder, Resubmitter, Revealer, Site, SiteOf, Viewer

router = resource("dead letters")

_PATH = "/dead-letters"
_RowOf = Annotated[Row, Path(description="Row of the letter.")]


def _in_utc(instant: datetime) -> datetime:
    try:
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError("it is outside of the calendar") from None


_Instant = Annotated[datetime, AfterValidator(_in_utc)]


class Letters(Body):
    """Selects letters by what is given; what is left out selects any."""

    task: ClassName | None = Field(default=None, description="Full or bare name of the class.")
    error: Text | None = Field(default=None, description="Part of the exception's class name.")
    status: Status | None = None
    cluster: Text | None = Field(default=None, description="`fingerprint` of a cluster.")
    task_id: Id | None = Field(default=None, description="Id of the task that died.")
    died_after: _Instant | None = None
    died_before: _Instant | None = None

    def selection(self, site: Site) -> LetterFilter:
        """Return the filter."""
        given = self.model_dump(include=set(Letters.model_fields))
        return letter_filter(lambda: site.nonet.registry, **given)

    @property
    def words(self) -> str:
        """The selection for people."""
        given = self.model_dump(include=set(Letters.model_fields), exclude_none=True)
        return ", ".join(f"{name} {value}" for name, value in given.items()) or "all"


class ManyLetters(Letters):
    """Selects the letters of a change."""

    all: bool = Field(default=False, description="Select all letters, without another filter.")
    up_to: Row | None = Field(
        default=None, description="No letter with a higher row; from the `up_to` of a dry run."
    )
    dry_run: bool = Field(default=False, description="Change nothing; answer the number.")

    def exact(self, site: Site) -> LetterFilter:
        """Return the filter.

        Raises:
            HTTPException: 422, nothing is selected.
        """
        if not self.all and self.words == "all":
            raise HTTPException(422, "which letters? Give a filter, or 'all': true")
        return replace(self.selection(site), up_to=self.up_to)


class ResubmitLetters(ManyLetters):
    """Which letters are submitted again, and how fast."""

    rate: float | None = Field(
        default=None,
        ge=0.001,
        le=1e6,
        allow_inf_nan=False,
        description="Tasks that start in a second; null: all start at once.",
    )


class DiscardLetters(ManyLetters, Note):
    """Which letters are deleted, and why."""


class Letter(BaseModel, from_attributes=True):
    """A dead letter in a list. A viewer sees the type of its error only."""

    id: int
    status: Status
    task_class: str
    task_id: str
    pipeline: str | None = Field(description="For a row of a pipeline; null for a task.")
    row_key: str | None = Field(description="Primary key of the row; null for a task.")
    reason: str
    error_type: str
    last_error: str
    place: str
    fingerprint: str
    note: str
    submitted_at: datetime
    last_attempted_at: datetime | None
    created_at: datetime
    retry_count: int
    max_retries: int | None
    vo: str | None
    parent_id: str | None
    resubmitted_from: int | None
    resubmitted_as: str | None
    resubmissions: int


class LetterDetails(Letter):
    """All that is kept of a dead letter, except its arguments."""

    labels: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    traceback: str


class BulkState(BaseModel, from_attributes=True):
    """A change that goes on after its request, in the process of task-web that answered it."""

    id: str
    text: str
    who: str
    total: int
    done: int
    failed: int
    problems: list[str]
    problem: str
    started: datetime
    ended: datetime | None


class Change(BaseModel):
    """How many letters a change selects; `bulk` is null for a dry run."""

    number: int
    up_to: int
    bulk: BulkState | None = None


_DRY: dict[int | str, dict[str, Any]] = {
    200: {"model": Change, "description": "A dry run: nothing was changed."}
}


class Resubmission(Body):
    """How one letter is submitted again."""

    again: bool = Field(default=False, description="Although it was submitted again before.")


class ListedLetters(Letters):
    """A page of a list."""

    limit: Limit = 100
    cursor: Cursor = ""


_Listed = Annotated[ListedLetters, Query()]


@router.get(_PATH)
async def list_dead_letters(site: SiteOf, who: Viewer, wanted: _Listed) -> Page[Letter]:
    """Return dead letters, the newest first."""
    selection = wanted.selection(site)
    text = opened(wanted.cursor)
    if text and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError("cursor: it belongs to another list; leave it out to begin anew")
    before = int(text) if text else None
    found, following = await letters.page_of(site, selection, wanted.limit, before)
    items = [Letter.model_validate(item) for item in found]
    return page(items, "" if following is None else str(following))


@router.get(f"{_PATH}/clusters")
async def list_dead_letter_clusters(site: SiteOf, who: Viewer, wanted: _Listed) -> Page[Cluster]:
    """Return what dead letters have in common: class, exception and place; the newest first."""
    selection = wanted.selection(site)
    key = wanted.model_dump_json(exclude={"limit", "cursor"})
    found = await letters.clusters(site, selection, key)
    return page_of_list(found, wanted.limit, wanted.cursor)


@router.post(f"{_PATH}/resubmit", status_code=202, responses=_DRY)
async def resubmit_dead_letters(
    site: SiteOf, who: Resubmitter, wanted: ResubmitLetters, answer: Response
) -> Change:
    """Submit the open letters of a selection again; 202: it goes on after the answer.

    Tasks that are not due by the rate wait in the delayed set. Letters that arrive later are left
    out. After a failure the same request continues.
    """
    selection = wanted.exact(site)
    selection = replace(selection, status=wanted.status or Status.PENDING)
    if selection.status != Status.PENDING:
        raise HTTPException(422, "status: only PENDING letters are submitted again by a filter")
    if wanted.dry_run:
        return await _counted(site, selection, answer)
    return _begun(
        *await letters.start_resubmission(site, who, selection, wanted.rate, wanted.words)
    )


@router.post(f"{_PATH}/discard", status_code=202, responses=_DRY)
async def discard_dead_letters(
    site: SiteOf, who: Discarder, wanted: DiscardLetters, answer: Response
) -> Change:
    """Delete the letters of a selection; 202: it goes on after the answer."""
    selection = wanted.exact(site)
    if wanted.dry_run:
        return await _counted(site, selection, answer)
    return _begun(*await letters.start_discarding(site, who, selection, wanted.note, wanted.words))


def _begun(bulk: Bulk, last: int) -> Change:
    return Change(number=bulk.total, up_to=last, bulk=BulkState.model_validate(bulk))


async def _counted(site: Site, selection: LetterFilter, answer: Response) -> Change:
    answer.status_code = 200
    number, exact = await letters.measured(site, selection)
    return Change(number=number, up_to=exact.up_to or 0)


@router.get(f"{_PATH}/bulk")
async def list_dead_letter_changes(site: SiteOf, who: Viewer) -> Page[BulkState]:
    """Return the changes of many letters that this process runs, or ran lately."""
    return Page(items=[BulkState.model_validate(bulk) for bulk in site.bulks.recent()])


@router.get(f"{_PATH}/bulk/{{id}}")
async def get_dead_letter_change(site: SiteOf, who: Viewer, id: str) -> BulkState:
    """Return how far a change of many letters is."""
    return BulkState.model_validate(site.bulks.get(id))


@router.post(f"{_PATH}/bulk/{{id}}/stop")
async def stop_dead_letter_change(site: SiteOf, who: Resubmitter, id: str) -> BulkState:
    """End a change of many letters; those that it has not changed stay as they are."""
    return BulkState.model_validate(await letters.stop(site, who, id))


@router.get(f"{_PATH}/{{row}}")
async def get_dead_letter(site: SiteOf, who: Viewer, row: _RowOf) -> LetterDetails:
    """Return a dead letter."""
    return LetterDetails.model_validate(await letters.one(site, row))


@router.get(f"{_PATH}/{{row}}/arguments", response_model=dict[str, Any])
async def reveal_dead_letter(site: SiteOf, who: Revealer, row: _RowOf) -> Response:
    """Return the arguments of a dead letter, with secret ones masked. This is audited."""
    letter = await letters.one(site, row)
    async with site.changing(who, Action.REVEAL, f"arguments of dead letter {row}"):
        found = arguments_of(letter, site.nonet.registry)
    if found is None:
        why = why_unknown(letter, site.nonet.client.cipher)
        raise HTTPException(404, f"the arguments of dead letter {row} are not shown: {why}")
    return ascii_json(found)


@router.post(f"{_PATH}/{{row}}/resubmit")
async def resubmit_dead_letter(
    site: SiteOf, who: Resubmitter, row: _RowOf, how: Resubmission | None = None
) -> Made:
    """Submit a dead letter again as a new task, once."""
    again = how is not None and how.again
    return Made(id=await letters.resubmit(site, row, who, again=again))


@router.post(f"{_PATH}/{{row}}/discard", status_code=204)
async def discard_dead_letter(
    site: SiteOf, who: Discarder, row: _RowOf, why: Note | None = None
) -> None:
    """Delete a dead letter."""
    await letters.discard(site, row, who, why.note if why else "")


@router.put(f"{_PATH}/{{row}}/note", status_code=204)
async def annotate_dead_letter(site: SiteOf, who: Resubmitter, row: _RowOf, noted: Note) -> None:
    """Write a note on a dead letter, in place of an earlier one."""
    await letters.annotate(site, row, who, noted.note)
