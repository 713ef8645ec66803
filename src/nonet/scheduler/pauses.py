"""What operators have paused, kept by the scheduler for the day on which Redis forgets it.

Redis is the truth while it has its data. In an epoch in which it has lost them, or came back with
older ones, the leader makes it hold what it remembers: what it saw itself if it lived through the
loss, else what SQL knows. Only what was paused after it looked last stays as well; whatever was
resumed before is not paused again. Until that is done nothing periodic fires.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nonet.base.errors import ConfigurationError, NonetError
from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.namespace.controls import Controls, Sight
from nonet.stores.namespace.leadership import DeposedError

if TYPE_CHECKING:
    from nonet.stores.sql.mirror import Mirror

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_SHORTLY_SECONDS = 0.2
_LONGEST_PAUSE = 6.4
PAUSES = "pauses"
_LOOKED = "looked"  # when, beside the pauses in SQL; no pause has such a name


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What was paused at an instant (µs by the clock of Redis; 0: nothing is known)."""

    looked: int = 0
    pauses: dict[str, str] = field(default_factory=dict)


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
        self._seen = _Remembered()
        self._is_saved = False
        self._failures = 0
        self._problem = ""

    @property
    def is_current(self) -> bool:
        """Whether this epoch has what was paused before it."""
        return 0 < self._known_in == self._epoch.since

    @property
    def reason(self) -> str:
        """Why those who heed pauses have to wait; empty: `is_current`."""
        if self.is_current:
            return ""
        return self._problem or "it is not known yet what was paused"

    def stand_by(self) -> None:
        """Somebody else leads: what we remember grows old."""
        self._known_in, self._seen, self._is_saved = 0, _Remembered(), False
        self._failures, self._problem = 0, ""

    async def tick(self, term: str) -> float:
        """Look what is paused, and keep it; seconds until the next look.

        Raises:
            DeposedError: somebody else leads.
            NonetError: Redis does not answer, or SQL does not keep what has changed.
        """
        sight = await self._look()
        if sight is not None and sight.restored_in != sight.epoch:
            remembered = await self._remembered()
            if remembered is None:
                return min(_LONGEST_PAUSE, _SHORTLY_SECONDS * 2.0 ** min(self._failures, 10))
            await self._restore(term, sight.epoch, remembered)
            sight = await self._look()
        if sight is None:  # Redis has just lost its data: the lease tells, and begins an epoch
            return _SHORTLY_SECONDS
        await self._keep(sight)
        return _LOOK_SECONDS

    async def _look(self) -> Sight | None:
        """What is paused; None if that is in another data set than the one in which we lead."""
        since, sequence = self._epoch.since, self._epoch.sequence
        sight = await self._controls.look()
        return sight if sight.epoch == since and sight.sequence >= sequence else None

    async def _remembered(self) -> _Remembered | None:
        """What was paused before Redis lost it; None while SQL, which may know, does not answer."""
        if self._known_in:  # we led
            return self._seen
        if not self._may_have_sql():
            return _Remembered()
        try:
            rows = await (await self._mirror()).load(PAUSES)
        except ConfigurationError as error:
            self._tell(f"pauses are not kept in SQL: {error}")
            return _Remembered()
        except NonetError as error:
            self._failures += 1
            self._tell(f"what was paused cannot be read from SQL: {error}")
            return None
        return _Remembered(int(rows.pop(_LOOKED, 0)), rows)

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            logger.error("%s", problem)
        self._problem = problem

    async def _restore(self, term: str, epoch: int, remembered: _Remembered) -> None:
        changed = await self._controls.restore(term, epoch, remembered.looked, remembered.pauses)
        if changed is None:
            raise DeposedError
        if changed != (0, 0):
            logger.warning(
                "Redis has lost its pauses: %d are put back, %d that were resumed are taken away",
                *changed,
            )

    async def _keep(self, sight: Sight) -> None:
        if (sight.epoch, sight.pauses) != (self._known_in, self._seen.pauses):
            self._is_saved = False
        # The clock of Redis may be set back; what we saw before was before nevertheless.
        self._seen = _Remembered(max(sight.at, self._seen.looked), sight.pauses)
        self._known_in = sight.epoch
        if self._may_have_sql() and not self._is_saved:
            await self._save()

    async def _save(self) -> None:
        try:
            mirror = await self._mirror()
            gone: dict[str, str | None] = dict.fromkeys(await mirror.load(PAUSES))
            seen = {**self._seen.pauses, _LOOKED: str(self._seen.looked)}
            await mirror.save(PAUSES, {**gone, **seen})
        except ConfigurationError as error:
            self._tell(f"pauses are not kept in SQL: {error}")
            return
        self._is_saved, self._failures, self._problem = True, 0, ""
