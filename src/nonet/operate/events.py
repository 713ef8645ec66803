"""Events: who changed what in the namespace, and incidents such as lost data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from nonet.base.durations import span
from nonet.base.errors import suggestion
from nonet.base.keys import EVENT_KINDS
from nonet.operate.lists import ListQuery, Page, Text, opened, sealed
from nonet.rules.viewing import for_viewer
from nonet.stores.namespace.events import Event

if TYPE_CHECKING:
    from nonet.stores.stores import Stores

# How many of the last events may name a thing that two operators change at once.
_RECENT = 200


class EventQuery(ListQuery):
    """Which events are listed."""

    kind: str = Field(
        default="",
        json_schema_extra={"enum": [*sorted(EVENT_KINDS)]},
        description=f"Only events of this kind: {', '.join(EVENT_KINDS)}.",
    )
    text: Text = Field(
        default="",
        description="Only events with this in their text, or in the name of the operator.",
    )

    @field_validator("kind")
    @classmethod
    def _check(cls, kind: str) -> str:
        """Reject an unknown kind: a typo would look as if nothing had happened."""
        if kind and kind not in EVENT_KINDS:
            raise ValueError(
                f"{kind!r:.100} is not a kind of event.{suggestion(kind, EVENT_KINDS)} "
                f"Kinds: {', '.join(EVENT_KINDS)}"
            )
        return kind

    def accepts(self, event: Event) -> bool:
        """Return whether an event is wanted."""
        text = self.text.casefold()
        return self.kind in ("", event.kind) and (
            text in event.text.casefold() or text in event.who.casefold()
        )


async def find(stores: Stores, query: EventQuery, *, is_viewer: bool = False) -> Page[Event]:
    """Return the last events, the newest first.

    Args:
        is_viewer: search only what a viewer may see: matches would reveal the rest.
    """

    def is_wanted(event: Event) -> bool:
        return query.accepts(for_viewer(event) if is_viewer else event)

    found = await stores.events.page(query.limit, is_wanted, opened(query.cursor))
    return Page(found.events, sealed(found.cursor))


async def by_another(stores: Stores, things: Sequence[str], who: str, within: timedelta) -> str:
    """Return what another operator did last with one of these things; empty: nothing lately.

    Args:
        things: as `nonet.operate.audited.Audited.things` names them.
        who: the operator who is told of the others.
        within: how long ago it may be.

    Example:
        await by_another(stores, ["t-1"], "bob", timedelta(hours=1))  # "cancelled by ann 9 s ago"
    """
    now = await stores.broker.now()
    for event in reversed(await stores.events.last(_RECENT, since=now - within)):
        if event.who != who and any(_names(event.text, thing) for thing in things):
            did = re.split(" (?:was|were) ", EVENT_KINDS[event.kind])[-1].removesuffix(" by hand")
            return f"{did} by {event.who} {span((now - event.at).total_seconds())} ago"
    return ""


def _names(text: str, thing: str) -> bool:
    """Return whether the text of an event names a thing as a whole word; `:` counts as a blank."""
    word = re.escape(thing.replace(":", " "))
    return re.search(rf"(?<![\w./-]){word}(?![\w./-])", text.replace(":", " ")) is not None
