"""What operators do to work that is under way: pause, resume, let delayed tasks be due now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nonet.keys import prefix
from nonet.pauses import Pause
from nonet.stores.redis import AsyncRedis, Scripts, server_errors

_AT_A_TIME = 500
_ENTRY = "entry:"  # of names in `Controls.kept`, as restore_pauses.lua knows them


class Controls:
    """The controls of one namespace, over a broker's connection."""

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._client = client
        self._prefix = prefix(namespace)
        self._scripts = Scripts(client, self._prefix)

    async def pause(self, what: Sequence[str], who: str, reason: str = "") -> None:
        """Start nothing of some work any more; what runs goes on, submissions are accepted.

        Args:
            what: as `nonet.pauses` writes it.
            who: ``user@host pid``, for the event stream.
            reason: why, for people.
        """
        # '|' ends the name in Redis; the reason is the last, and one line.
        who, reason = who.replace("|", "/"), " ".join(reason.split())
        await self._scripts.run("pause", who, reason, *what)

    async def resume(self, what: Sequence[str], who: str) -> None:
        """Start it again; who waits for it is looked at, and idle workers are woken."""
        await self._scripts.run("resume", who, *what)

    async def load(self) -> list[Pause]:
        """All that is paused, in the order of `Pause.what`."""
        async with server_errors(self._client):
            found = await self._client.hgetall(f"{self._prefix}paused")
        pauses = [
            Pause.decode(what.decode(), value.decode(errors="replace"))
            for what, value in found.items()
        ]
        return sorted(pauses, key=lambda item: item.what)

    async def kept(self) -> dict[str, str]:
        """All that is paused, streams, classes and periodic entries, as `restore` takes it."""
        async with server_errors(self._client), self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(f"{self._prefix}paused").hgetall(f"{self._prefix}periodic:paused")
            paused, entries = await pipe.execute()
        return _texts(paused) | {_ENTRY + name: value for name, value in _texts(entries).items()}

    async def restore(self, term: str, kept: Mapping[str, str]) -> bool:
        """Pause again what Redis has lost, for the leader of `term`; newer pauses stay.

        Args:
            kept: what `kept` gave before.

        Returns:
            False if another term leads; then nothing has changed.
        """
        fields = [part for item in sorted(kept.items()) for part in item]
        return bool(await self._scripts.run("restore_pauses", term, *fields) == 1)

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


def _texts(found: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode(errors="replace") for name, value in found.items()}
