"""What operators have paused, kept by the scheduler for the day on which Redis forgets it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from nonet.errors import NonetError
from nonet.stores.controls import Controls
from nonet.stores.epoch import EpochSeen
from nonet.stores.leadership import DeposedError

if TYPE_CHECKING:
    from nonet.stores.mirror import Mirror

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
PAUSES, EPOCH = "pauses", "epoch"


class PauseMemory:
    """What operators have paused. It is put back in an epoch that does not know of it.

    Args:
        epoch: tells which data set of Redis this is.
        mirror, may_have_sql: as of `Memory`.
    """

    def __init__(
        self,
        controls: Controls,
        epoch: EpochSeen,
        mirror: Callable[[], Awaitable[Mirror]],
        may_have_sql: Callable[[], bool],
    ) -> None:
        self._controls = controls
        self._epoch = epoch
        self._mirror = mirror
        self._may_have_sql = may_have_sql
        self._known_in = 0
        self._kept: dict[str, str] = {}
        self._unsaved = False

    @property
    def is_current(self) -> bool:
        """Whether this epoch has what was paused before it."""
        return 0 < self._known_in == self._epoch.since

    def stand_by(self) -> None:
        """Somebody else leads: what we remember grows old."""
        self._known_in, self._kept = 0, {}

    async def tick(self, term: str) -> float:
        """Look what is paused, and keep it; seconds until the next look.

        Raises:
            DeposedError: somebody else leads.
        """
        since = self._epoch.since
        if self._known_in != since:
            lost = await self._lost(since)
            if lost and not await self._controls.restore(term, lost):
                raise DeposedError
            if lost:
                logger.warning("Redis has lost %d pauses: they are put back", len(lost))
            self._known_in, self._unsaved = since, True
        kept = await self._controls.kept()
        if kept != self._kept or self._unsaved:
            await self._save(kept)
        return _LOOK_SECONDS

    async def _lost(self, since: int) -> dict[str, str]:
        """What was paused in an epoch before this one."""
        if self._known_in:  # we led in it
            return self._kept
        if not self._may_have_sql():
            return {}
        try:
            mirror = await self._mirror()
            epochs = await mirror.load(EPOCH)
            return {} if epochs.get(PAUSES) == str(since) else await mirror.load(PAUSES)
        except NonetError as error:
            logger.warning("it cannot be read from SQL what is paused: %s", error)
            return {}

    async def _save(self, kept: dict[str, str]) -> None:
        self._kept = kept
        if self._may_have_sql():
            self._unsaved = True
            mirror = await self._mirror()
            known: dict[str, str | None] = dict.fromkeys(await mirror.load(PAUSES))
            await mirror.save(PAUSES, {**known, **kept})
            await mirror.save(EPOCH, {PAUSES: str(self._known_in)})
        self._unsaved = False
