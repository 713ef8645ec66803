"""Pause and resume streams, classes and pipelines, from pages."""

from __future__ import annotations

from nonet.daemon.service import who as actor
from nonet.rules.pauses import Pause, in_words
from nonet.rules.permissions import Action, Principal
from nonet.web.site import Site


async def pauses_of(site: Site) -> list[Pause]:
    """Return the pauses in force, read at most every two seconds for all viewers."""
    return await site.shared.read(("pauses",), 2.0, site.nonet.stores.controls.load)


async def pause(site: Site, who: Principal, what: str, reason: str) -> str:
    """Pause something, and return what to tell; see `nonet.rules.pauses.Pause.what`."""
    async with site.changing(who, Action.PAUSE, f"pause {in_words(what)}: {reason}"):
        await site.nonet.stores.controls.pause([what], actor(), reason)
    of_it = "row of it is fetched" if what.startswith("pipeline:") else "task of it starts"
    return f"{in_words(what)} is paused: no further {of_it}"


async def resume(site: Site, who: Principal, what: str) -> str:
    """End a pause, and return what to tell."""
    async with site.changing(who, Action.PAUSE, f"resume {in_words(what)}"):
        await site.nonet.stores.controls.resume([what], actor())
    return f"{in_words(what)} is resumed"
