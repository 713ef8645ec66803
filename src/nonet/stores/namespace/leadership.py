"""The scheduler's lease, and the start-up hooks that run under it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nonet.base.errors import NonetError
from nonet.base.keys import prefix
from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.connection.redis import Scripts, server_errors
from nonet.stores.queue.broker import Broker

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DeposedError(NonetError):
    """Another scheduler leads: what this one would write is refused."""

    def __init__(self) -> None:
        super().__init__("somebody else leads")


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads.

    Attributes:
        expiry: end of the lease unless it is extended.
        info: what the leader says of itself, JSON.
    """

    owner: str
    term: str
    expiry: datetime
    info: str


@dataclass(frozen=True, slots=True)
class Clock:
    """What the clock of Redis said while a script ran, in microseconds.

    Attributes:
        now: logical time.
        offset: what of it is added to the server's own clock.
    """

    now: int
    offset: int


class Leadership:
    """Leader lease of one namespace, over a broker's connection.

    Attributes:
        epoch: which data set of Redis this process has seen last.
        clock: at the last call of `lead`; None before the first.
    """

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._client = broker.client
        self.epoch: EpochSeen = broker.epoch
        self.clock: Clock | None = None
        self._lock_ttl_ms = broker.lock_ttl_ms
        self._prefix = prefix(namespace)
        self._scripts = Scripts(broker.client, self._prefix)

    async def lead(
        self, owner: str, ttl_seconds: float, info: str, *, has_led: bool = True
    ) -> str | None:
        """Take or extend the lease: the term, or None while somebody else leads.

        Args:
            has_led: False: if Redis has lost its data since the call before, whoever led then goes
                first, and this call does not take the lease.
        """
        term, *epoch, now, offset = await self._scripts.run(
            "lead",
            owner,
            round(ttl_seconds * 1000),
            info,
            self.epoch.seen,
            self._lock_ttl_ms,
            int(has_led),
        )
        self.epoch.see(epoch)
        self.clock = Clock(int(now), int(offset))
        return term.decode() or None

    async def set_clock(
        self, term: str, offset: int, step: timedelta, before: int, who: str
    ) -> bool:
        """Let logical time go on as if the server's clock had not been set.

        Args:
            offset: what is added to the server's clock now, as `Clock.offset`.
            step: by how much it was set; negative: back.
            before: logical time before the step, µs.
            who: who found out, for people.

        Returns:
            False if another term leads, or the offset is another.
        """
        changed = offset - step // timedelta(microseconds=1)
        answer = await self._scripts.run("set_clock", term, offset, changed, before, who)
        return bool(answer == 1)

    async def resign(self, owner: str, term: str) -> None:
        """Give the lease back, if it is still ours."""
        await self._scripts.run("resign", owner, term)

    async def leader(self) -> Leader | None:
        """Who leads now, by the last lease taken; None if nobody does."""
        async with server_errors(self._client):
            found = await self._client.hgetall(f"{self._prefix}leader")
        if not found:
            return None
        text = {key.decode(): value.decode() for key, value in found.items()}
        return Leader(text["owner"], text["term"], _instant(text["expiry"]), text.get("info", ""))

    async def hooks_done(self, term: str, epoch: int) -> set[str] | None:
        """The start-up hooks that have succeeded in an epoch; None if another term leads."""
        async with server_errors(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.hget(f"{self._prefix}leader", "term").hgetall(f"{self._prefix}startup")
            leader, found = await pipe.execute()
        if leader != term.encode():
            return None
        head = f"{epoch}|done|".encode()
        return {name.decode() for name, value in found.items() if value.startswith(head)}

    async def hook_ended(
        self, term: str, epoch: int, hook: str, who: str, problem: str = ""
    ) -> bool:
        """Remember how a start-up hook ended; False if another term leads, or the epoch is over.

        Args:
            who: ran it, for the event stream.
            problem: what went wrong; empty: it succeeded.
        """
        state = "failed" if problem else "done"
        answer = await self._scripts.run("hook_ended", term, epoch, hook, who, state, problem)
        return bool(answer == 1)

    async def hook_runs(self, term: str, epoch: int, hook: str, who: str) -> None:
        """Remember that a start-up hook runs for long, unless another term leads."""
        await self._scripts.run("hook_ended", term, epoch, hook, who, "running", "")

    async def forget_hooks(self, term: str, known: Iterable[str]) -> None:
        """Forget the start-up hooks that failed, or ran for long, and are no longer installed.

        Args:
            known: those that this leader has.
        """
        await self._scripts.run("forget_hooks", term, *known)


def _instant(microseconds: str) -> datetime:
    return _EPOCH + timedelta(microseconds=int(microseconds))
