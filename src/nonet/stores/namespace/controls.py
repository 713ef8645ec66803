"""What operators do to work that is under way: pause, resume, let delayed tasks be due now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nonet.base.keys import prefix
from nonet.rules.pauses import Pause, one_line
from nonet.stores.connection.redis import AsyncRedis, Scripts

_AT_A_TIME = 500
_ENTRY = "entry:"  # of names in `Sight.pauses`, as restore_pauses.lua knows them


@dataclass(frozen=True, slots=True)
class Sight:
    """All that is paused, and in which data set of Redis.

    Attributes:
        at: when, µs by the server's clock.
        epoch, sequence: of the data set, as `EpochSeen` has them; 0: there is none yet.
        restored_in: the last epoch in which a leader has put back what was paused before.
        pauses: what (of a periodic entry: ``entry:ENTRY``) → ``at (µs)|who|reason``.
    """

    at: int
    epoch: int
    sequence: int
    restored_in: int
    pauses: dict[str, str]


class Controls:
    """The controls of one namespace, over a broker's connection."""

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._scripts = Scripts(client, prefix(namespace))

    async def pause(self, what: Sequence[str], who: str, reason: str = "") -> None:
        """Start nothing of some work any more; what runs goes on, submissions are accepted.

        Args:
            what: as `nonet.rules.pauses` writes it.
            who: ``user@host pid``, for the event stream.
            reason: why, for people.
        """
        await self._scripts.run("pause", *one_line(who, reason), *what)

    async def resume(self, what: Sequence[str], who: str) -> None:
        """Start it again; who waits for it is looked at, and idle workers are woken."""
        await self._scripts.run("resume", who, *what)

    async def load(self) -> list[Pause]:
        """All that is paused, in the order of `Pause.what`."""
        found = await self._scripts.run("show_pauses")
        pauses = [Pause.decode(*item) for item in _texts(found[4])]
        return sorted(pauses, key=lambda item: item.what)

    async def look(self) -> Sight:
        """What is paused, streams, classes and periodic entries; for the leader."""
        *numbers, paused, entries = await self._scripts.run("show_pauses")
        at, epoch, sequence, restored_in = (int(n) if n.isdigit() else 0 for n in numbers)
        pauses = dict(_texts(paused)) | {_ENTRY + name: value for name, value in _texts(entries)}
        return Sight(at, epoch, sequence, restored_in, pauses)

    async def restore(
        self, term: str, epoch: int, looked: int, remembered: Mapping[str, str]
    ) -> tuple[int, int] | None:
        """Let be paused what the leader of `term` remembers, in an epoch that does not know of it.

        What was paused after it looked last stays; all else that it does not remember is resumed.

        Args:
            looked: when it did, as `Sight.at`; 0: it knows nothing, and nothing is resumed.
            remembered: as `Sight.pauses`.

        Returns:
            How many are put back and how many taken away; None if another term leads or the epoch
            is over: then nothing has changed.
        """
        fields = [part for item in sorted(remembered.items()) for part in item]
        answer = await self._scripts.run("restore_pauses", term, epoch, looked, *fields)
        return (int(answer[0]), int(answer[1])) if answer else None

    async def hasten(self, ids: Sequence[str]) -> list[str]:
        """Let delayed tasks be due now, those that wait for a retry too.

        Returns:
            The state of each task before: it is due now if that was ``delayed``; else it stays
            as it is, and empty if it is unknown.
        """
        states: list[str] = []
        for start in range(0, len(ids), _AT_A_TIME):
            answer = await self._scripts.run("hasten", *ids[start : start + _AT_A_TIME])
            states += [state.decode() for state in answer]
        return states


def _texts(flat: Sequence[bytes]) -> list[tuple[str, str]]:
    texts = [part.decode(errors="replace") for part in flat]
    return list(zip(texts[::2], texts[1::2], strict=True))
