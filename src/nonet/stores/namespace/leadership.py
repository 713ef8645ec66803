"""The scheduler's lease, and the start-up hooks that run under it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import Struct

from nonet.base.errors import NonetError
from nonet.stores.connection.clock import instant
from nonet.stores.connection.epoch import EpochSeen
from nonet.stores.connection.redis import RedisStore
from nonet.stores.connection.unreadable import readable, readable_value
from nonet.stores.queue.broker import Broker


class DeposedError(NonetError):
    """Another scheduler leads, so the writes of this one are refused."""

    def __init__(self) -> None:
        super().__init__("another scheduler leads")


@dataclass(frozen=True, slots=True)
class Leader:
    """The holder of the lease.

    Attributes:
        expiry: end of the lease unless it is extended.
        info: what the leader reports of itself, as JSON.
    """

    owner: str
    term: str
    expiry: datetime
    info: str


class Clock(Struct, frozen=True):
    """The clock of Redis during a script, in microseconds.

    Attributes:
        now: logical time.
        offset: the difference between logical time and the server's clock.
    """

    now: int
    offset: int


class Leadership(RedisStore):
    """Leader lease of one namespace, over a broker's connection.

    Attributes:
        epoch: the data set of Redis that this process saw last.
        clock: the clock at the last call of `lead`; None before the first.
    """

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._client = broker.client
        self.epoch: EpochSeen = broker.epoch
        self.clock: Clock | None = None
        self._lock_ttl_ms = broker.lock_ttl_ms
        super().__init__(broker.client, namespace)

    async def lead(
        self, owner: str, ttl_seconds: float, info: str, *, has_led: bool = True
    ) -> str | None:
        """Take or extend the lease. Return the term, or None while another scheduler leads.

        Args:
            has_led: with False, do not take the lease if Redis has lost its data since the last
                call: the previous leader goes first, because it remembers what was paused.
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
        """Keep logical time steady after the server's clock was set.

        Args:
            offset: the current `Clock.offset`.
            step: by how much the clock was set; negative: back.
            before: logical time before the step, µs.
            who: the scheduler that noticed it, for the event stream.

        Returns:
            False if another term leads, or the offset has changed.
        """
        changed = offset - step // timedelta(microseconds=1)
        answer = await self._scripts.run("set_clock", term, offset, changed, before, who)
        return bool(answer == 1)

    async def resign(self, owner: str, term: str) -> None:
        """Release the lease if this owner still holds it."""
        await self._scripts.run("resign", owner, term)

    async def leader(self) -> Leader | None:
        """Return the holder of the last lease, which may have expired; None without one."""
        found = await self._client.hgetall(f"{self._prefix}leader")
        if not found:
            return None
        return readable_value("leader", "DEL", "leader", lambda: _leader(found), None)

    async def hooks_done(self, term: str, epoch: int) -> set[str] | None:
        """Return the start-up hooks that succeeded in an epoch; None if another term leads."""
        # Not MULTI, which a full Redis refuses. If this term still leads at the second read, it
        # also led at the first.
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(f"{self._prefix}startup").hget(f"{self._prefix}leader", "term")
            found, leader = await pipe.execute()
        if leader != term.encode():
            return None
        head = f"{epoch}|done|".encode()
        done = [(name,) for name, value in found.items() if value.startswith(head)]
        return set(readable("startup", "HDEL", done, bytes.decode))

    async def hook_ended(
        self, term: str, epoch: int, hook: str, who: str, problem: str = ""
    ) -> bool:
        """Record how a start-up hook ended; False if another term leads or the epoch is over.

        Args:
            who: the scheduler that ran it, for the event stream.
            problem: the error; empty: it succeeded.
        """
        state = "failed" if problem else "done"
        answer = await self._scripts.run("hook_ended", term, epoch, hook, who, state, problem)
        return bool(answer == 1)

    async def hook_runs(self, term: str, epoch: int, hook: str, who: str) -> None:
        """Record that a start-up hook is slow, unless another term leads."""
        await self._scripts.run("hook_ended", term, epoch, hook, who, "running", "")

    async def forget_hooks(self, term: str, known: Iterable[str]) -> None:
        """Forget start-up hooks that failed or were slow, and are no longer installed.

        Args:
            known: the hooks that are installed here.
        """
        await self._scripts.run("forget_hooks", term, *known)


def _leader(found: Mapping[bytes, bytes]) -> Leader | None:
    owner, term, expiry = (found[name].decode() for name in (b"owner", b"term", b"expiry"))
    return Leader(owner, term, instant(expiry), found.get(b"info", b"").decode())
