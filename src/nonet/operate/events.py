"""Events: who changed what in the namespace, and incidents such as lost data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from nonet.base.errors import suggestion
from nonet.base.keys import EVENT_KINDS
from nonet.operate.lists import ListQuery, Page, Text, opened, sealed
from nonet.rules.viewing import for_viewer
from nonet.stores.namespace.events import Event

if TYPE_CHECKING:
    from nonet.stores.stores import Stores


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
