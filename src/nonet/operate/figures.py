"""The figures of task classes: how many tasks end and fail, and how long they wait and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nonet.base.durations import duration
from nonet.operate.lists import ListQuery, Page, Recent, Text, cut
from nonet.rules.figures import ClassFigures

if TYPE_CHECKING:
    from nonet.stores.stores import Stores


class FigureQuery(ListQuery):
    """Whose figures are shown, and of which time."""

    task: Text = Field(
        default="",
        description="Only this task class: its full name `category:Class`, or its bare name.",
    )
    since: Recent = "1h"


async def find(stores: Stores, query: FigureQuery) -> Page[ClassFigures]:
    """Return the figures of each class that has some, by name.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    since, task = duration(query.since), query.task or None
    return cut(await stores.history.figures(since=since, task=task), query)
