"""Restore the pauses of operators after Redis has lost its data.

While Redis has its data, Redis decides. After a loss, a leader that also led before restores the
pauses that it has seen; any other leader restores the pauses in SQL. A pause that was added since
the last check stays, and a pause that was resumed before it is not restored. Periodic tasks wait
until the pauses are restored.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nonet.base.errors import ConfigurationError, NonetError
from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.namespace.controls import Controls, PauseSnapshot
from nonet.stores.namespace.leadership import DeposedError

if TYPE_CHECKING:
    from nonet.stores.sql.mirror import Mirror

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_SHORTLY_SECONDS = 0.2
PAUSES = "pauses"
_LOOKED = "looked"  # when they were read; no pause has such a name


@dataclass(frozen=True, slots=True)
class _Remembered:
    """The pauses at an instant (µs by the clock of Redis; 0: unknown)."""

    looked: int = 0
    pauses: dict[str, str] = field(default_factory=dict)


class PauseMemory:
    """Remember the pauses of operators, and restore them in an epoch that has lost them.

    Args:
        epoch: identifies the data set of Redis.
        mirror, may_have_sql: see `Memory`.
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
        self._problem = ""

    @property
    def is_current(self) -> bool:
        """Whether the pauses of the previous epoch are restored in this one."""
        return 0 < self._known_in == self._epoch.since

    @property
    def reason(self) -> str:
        """Why periodic tasks must wait for the pauses; empty if `is_current`."""
        if self.is_current:
            return ""
        return self._problem or "the pauses have not been restored yet"

    def stand_by(self) -> None:
        """Forget everything: another scheduler leads, so it may be outdated."""
        self._known_in, self._seen, self._is_saved, self._problem = 0, _Remembered(), False, ""

    async def tick(self, term: str) -> float:
        """Restore the pauses in a new epoch, save the current ones, and return the next pause.

        Raises:
            DeposedError: another scheduler leads.
            NonetError: Redis does not answer, or SQL cannot be read or written.
        """
        sight = await self._look()
        if sight is not None and sight.restored_in != sight.epoch:
            remembered = await self._remembered()
            await self._restore(term, sight.epoch, remembered)
            sight = await self._look()
        if sight is None:  # Redis has just lost its data: the lease begins a new epoch
            return _SHORTLY_SECONDS
        await self._keep(sight)
        return _LOOK_SECONDS

    async def _look(self) -> PauseSnapshot | None:
        """Return the current pauses; None if Redis has lost data since this process leads."""
        since, sequence = self._epoch.since, self._epoch.sequence
        sight = await self._controls.look()
        return sight if sight.epoch == since and sight.sequence >= sequence else None

    async def _remembered(self) -> _Remembered:
        """Return the pauses before the loss.

        Raises:
            NonetError: SQL does not answer, but may know them.
        """
        if self._known_in:  # this process led before the loss
            return self._seen
        if not self._may_have_sql():
            return _Remembered()
        try:
            rows = await (await self._mirror()).load(PAUSES)
        except ConfigurationError as error:
            # A database that cannot be used holds nothing to wait for.
            logger.error("pauses not read from SQL: error=%s", error)
            return _Remembered()
        except NonetError as error:
            self._problem = f"the pauses cannot be read from SQL: {error}"
            raise
        self._problem = ""
        return _Remembered(int(rows.pop(_LOOKED, 0)), rows)

    async def _restore(self, term: str, epoch: int, remembered: _Remembered) -> None:
        changed = await self._controls.restore(term, epoch, remembered.looked, remembered.pauses)
        if changed is None:
            raise DeposedError
        if changed != (0, 0):
            logger.warning(
                "Redis lost its pauses, restored them: restored=%d resumed_again=%d", *changed
            )

    async def _keep(self, sight: PauseSnapshot) -> None:
        if (sight.epoch, sight.pauses) != (self._known_in, self._seen.pauses):
            self._is_saved = False
        # The clock of Redis may be set back, but a later read is still the later one.
        self._seen = _Remembered(max(sight.at, self._seen.looked), sight.pauses)
        self._known_in = sight.epoch
        if self._may_have_sql() and not self._is_saved:
            await self._save()

    async def _save(self) -> None:
        mirror = await self._mirror()
        gone: dict[str, str | None] = dict.fromkeys(await mirror.load(PAUSES))
        seen = {**self._seen.pauses, _LOOKED: str(self._seen.looked)}
        await mirror.save(PAUSES, {**gone, **seen})
        self._is_saved = True
