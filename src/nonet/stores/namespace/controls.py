"""The controls of operators: pause and resume work, and make delayed tasks due now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nonet.rules.pauses import Pause, one_line
from nonet.stores.connection.redis import RedisStore
from nonet.stores.connection.unreadable import readable

_AT_A_TIME = 500
_ENTRY = (
    "entry:"  # prefix of periodic entries in `PauseSnapshot.pauses`; restore_pauses.lua reads it
)


@dataclass(frozen=True, slots=True)
class PauseSnapshot:
    """All pauses, and the data set of Redis that they were read from.

    Attributes:
        at: when they were read, µs by the server's clock.
        epoch, sequence: of the data set, as in `EpochSeen`; 0: none yet.
        restored_in: the last epoch in which a leader restored the earlier pauses.
        pauses: what is paused (``entry:ENTRY`` for a periodic entry) → ``at (µs)|who|reason``.
    """

    at: int
    epoch: int
    sequence: int
    restored_in: int
    pauses: dict[str, str]


class Controls(RedisStore):
    """The controls of one namespace, over a broker's connection."""

    async def pause(self, what: Sequence[str], who: str, reason: str = "") -> None:
        """Stop starting some tasks. Running tasks continue, and submissions are accepted.

        Args:
            what: in the form of `nonet.rules.pauses.Pause.what`.
            who: ``user@host pid``, for the event stream.
            reason: why, for people.
        """
        await self._scripts.run("pause", *one_line(who, reason), *what)

    async def resume(self, what: Sequence[str], who: str) -> None:
        """End pauses: check the tasks that they parked, and wake idle workers."""
        await self._scripts.run("resume", who, *what)

    async def load(self) -> list[Pause]:
        """Return the pauses of streams and classes, ordered by `Pause.what`."""
        found = await self._scripts.run("show_pauses")
        pauses = readable("paused", "HDEL", _texts(found[4]), Pause.decode)
        return sorted(pauses, key=lambda item: item.what)

    async def look(self) -> PauseSnapshot:
        """Return all pauses, including those of periodic entries, for the leader."""
        *numbers, paused, entries = await self._scripts.run("show_pauses")
        at, epoch, sequence, restored_in = (int(n or 0) for n in numbers)
        pauses = dict(_texts(paused)) | {_ENTRY + name: value for name, value in _texts(entries)}
        return PauseSnapshot(at, epoch, sequence, restored_in, pauses)

    async def restore(
        self, term: str, epoch: int, looked: int, remembered: Mapping[str, str]
    ) -> tuple[int, int] | None:
        """Restore the pauses that the leader of `term` remembers after a loss of data.

        Pauses that are newer than its last read stay. Of the older ones, those that it does
        not remember end.

        Args:
            looked: when it last read the pauses (`PauseSnapshot.at`); 0: never, so no pause ends.
            remembered: as in `PauseSnapshot.pauses`.

        Returns:
            How many pauses were restored, and how many ended. None, without a change, if another
            term leads or the epoch is over.
        """
        fields = [part for item in sorted(remembered.items()) for part in item]
        answer = await self._scripts.run("restore_pauses", term, epoch, looked, *fields)
        return (int(answer[0]), int(answer[1])) if answer else None

    async def hasten(self, ids: Sequence[str]) -> list[str]:
        """Make delayed tasks due now, including tasks that wait for a retry.

        Returns:
            The state of each task before, empty if it is unknown. Only tasks that were
            ``delayed`` have changed.
        """
        states: list[str] = []
        for start in range(0, len(ids), _AT_A_TIME):
            answer = await self._scripts.run("hasten", *ids[start : start + _AT_A_TIME])
            states += [state.decode() for state in answer]
        return states


def _texts(flat: Sequence[bytes]) -> list[tuple[str, str]]:
    texts = [part.decode(errors="replace") for part in flat]
    return list(zip(texts[::2], texts[1::2], strict=True))
