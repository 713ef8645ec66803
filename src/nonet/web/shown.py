"""What is made of texts of errors before a caller sees it: explanations, findings, searches.

`nonet.rules.viewing` hides such texts from a viewer; pages apply it to all that they show
(`nonet.web.pages.rendering`), and so does the API (`nonet.web.api.routing`).
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from fastapi import HTTPException

from nonet.client.reading import explain_by_facts
from nonet.rules.findings.explanation import Explanation, Facts, explain
from nonet.rules.permissions import Principal
from nonet.rules.viewing import for_viewer
from nonet.web.site import Site

_View = TypeVar("_View")


def seen(view: _View, who: Principal) -> _View:
    """Return a view as `who` may see it."""
    return view if who.sees_texts else for_viewer(view)


def ensure_searchable(who: Principal, *texts: object) -> None:
    """Raise 403 if `who` searches for labels or errors that it may not see: matches reveal them."""
    if any(texts) and not who.sees_texts:
        raise HTTPException(403, f"{who.name} may not search labels and errors: an operator may")


async def why(site: Site, id: str, who: Principal) -> tuple[Explanation, Facts | None]:
    """Explain where a task is, as `who` may see it, at most once a second for all viewers.

    Raises:
        NotFoundError: it is unknown.
    """
    read = partial(explain_by_facts, site.nonet.client, id)
    found, facts = await site.shared.read(("task why", id), 1.0, read)
    if facts is None or who.sees_texts:
        return found, facts
    facts = for_viewer(facts)
    return explain(facts), facts
