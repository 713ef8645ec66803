"""Saved filters: searches that operators give a name, for all who see the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, get_origin
from urllib.parse import parse_qs

from pydantic import Field, StringConstraints

from nonet.base.actor import who
from nonet.base.errors import ConflictError, NotFoundError
from nonet.operate.audited import audited
from nonet.operate.dead_letters import LetterQuery
from nonet.operate.history import EndedQuery
from nonet.operate.lists import PRINTABLE, ListQuery, Page, cut
from nonet.operate.tasks import LiveQuery
from nonet.rules.permissions import Action

if TYPE_CHECKING:
    from nonet.stores.stores import Stores

MOST = 50
ListName = Literal["tasks", "history", "dead-letters"]
Name = Annotated[str, StringConstraints(min_length=1, max_length=60, pattern=PRINTABLE)]
_QUERIES: Mapping[ListName, type[ListQuery]] = {
    "tasks": LiveQuery,
    "history": EndedQuery,
    "dead-letters": LetterQuery,
}


class FilterQuery(ListQuery):
    """Which saved filters are listed."""

    list: ListName | None = Field(default=None, description="Only filters of this list.")


@dataclass(frozen=True, slots=True)
class SavedFilter:
    """A search with a name.

    Attributes:
        name: of the filter.
        list: the list that it searches: ``tasks``, ``history`` or ``dead-letters``.
        query: the parameters of the list, as in its address: ``state=dead&task=Report``.
        who: who saved it.
    """

    name: str
    list: str
    query: str
    who: str


async def find(stores: Stores, query: FilterQuery) -> Page[SavedFilter]:
    """Return the saved filters by name."""
    found = [SavedFilter(*row) for row in await stores.filters.all()]
    return cut([item for item in found if query.list in (None, item.list)], query)


@audited(Action.NOTE, "filter {name}: {of}?{query}")
async def save(stores: Stores, name: str, of: ListName, query: str) -> SavedFilter:
    """Save a filter, also in place of the one with its name.

    Raises:
        ValueError: the list has no such parameter, or does not take its value.
        ConflictError: there are as many as can be kept.
    """
    model = _QUERIES[of]
    lists = {n for n, field in model.model_fields.items() if get_origin(field.annotation) is tuple}
    given = parse_qs(query).items()
    model.model_validate({n: values if n in lists else values[-1] for n, values in given})
    made = SavedFilter(name, of, query, who())
    if not await stores.filters.save((made.name, made.list, made.query, made.who), MOST):
        raise ConflictError(f"filter {name} was not saved: there are {MOST}; remove one before")
    return made


@audited(Action.NOTE, "filter {name}: remove")
async def remove(stores: Stores, name: str) -> None:
    """Delete a filter.

    Raises:
        NotFoundError: there is none with this name.
    """
    if not await stores.filters.remove(name):
        raise NotFoundError(f"no filter has the name {name}")
