"""Figures: how many tasks end and fail, and how long they wait and run, for two weeks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from nonet.base.durations import duration
from nonet.operate.lists import ListQuery, Page, Recent, Text, cut
from nonet.rules.fairness import NOBODY
from nonet.rules.figures import FigureSeries
from nonet.stores.namespace.slots import Kind

if TYPE_CHECKING:
    from nonet.stores.stores import Stores

By = Literal["class", "stream", "tenant", "all"]
_KINDS = {"class": Kind.CLASS, "stream": Kind.STREAM, "tenant": Kind.TENANT}


class FigureQuery(ListQuery):
    """Whose figures are shown, and of which time."""

    by: By = Field(default="class", description="Of each of these, or of all tasks together.")
    name: Text = Field(
        default="",
        description="Only this one, and its time slot by slot: a class by its full name "
        "`category:Class` or its bare name, a stream as `normal:small`, or a tenant.",
    )
    since: Recent = "1h"


async def find(stores: Stores, query: FigureQuery) -> Page[FigureSeries]:
    """Return the figures of each class, stream or tenant that has some, by name.

    Those of all together, or of one name, have a slot for each minute, or each hour for more than
    three hours. All are compared with the day before.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    since, name = duration(query.since), query.name or None
    if query.by == "all":
        return Page([await stores.counts.of_all(since=since)])
    if query.by == "tenant" and name == NOBODY:
        name = ""
    kind = _KINDS[query.by]
    found = await stores.counts.figures(kind, since=since, name=name, compares=True)
    return cut(found, query)
