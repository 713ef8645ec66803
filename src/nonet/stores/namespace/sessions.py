"""Logins of the dashboard: sessions, one-time links, and counts of attempts to log in.

They live in Redis, so that all processes of ``task-web`` share them and each has an end by itself.
Of a secret only its SHA-256 is stored: who reads Redis cannot log in with what is there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from dataclasses import dataclass

from nonet.base.keys import escape
from nonet.stores.connection.redis import RedisStore


@dataclass(frozen=True, slots=True)
class Session:
    """A login of a user.

    Attributes:
        name: of the user, e.g. ``alice``.
        how: ``file``, ``oidc`` or ``link``.
        proof: what must still hold at each request: of a user of the file the digest of the
            password's hash; of OIDC the values of the claim with the role, one a line.
        address: of the browser.
        browser: its ``User-Agent``, for people.
        since: when the user logged in, in seconds since 1970.
        until: when the session ends at the latest.
        digest: identifies the session; it is the SHA-256 of the secret of its cookie.
    """

    name: str
    how: str
    proof: str
    address: str
    browser: str
    since: float
    until: float
    digest: str = ""


def digest_of(secret: str) -> str:
    """Return what is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Sessions(RedisStore):
    """The logins of one namespace, over a broker's connection.

    Every method raises `ServerUnreachableError` if Redis does not answer.
    """

    async def begin(self, session: Session, idle: float) -> None:
        """Store a session. It ends after `idle` seconds unless `extend` is called."""
        left = session.until - time.time()
        fields = dataclasses.asdict(session)
        del fields["digest"]
        index = self._index(session.name)
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.set(self._key(session.digest), json.dumps(fields), px=_ms(min(idle, left)))
            pipe.zremrangebyscore(index, "-inf", time.time())
            pipe.zadd(index, {session.digest: session.until})
            # Later sessions last at least as long, unless the setting was reduced meanwhile.
            pipe.pexpire(index, _ms(left))
            await pipe.execute()

    async def find(self, digest: str) -> Session | None:
        """Return a session; None: it has ended or never was."""
        found = await self._client.get(self._key(digest))
        return None if found is None else Session(**json.loads(found), digest=digest)

    async def extend(self, session: Session, idle: float) -> None:
        """Let a session last `idle` seconds from now, but not beyond its end."""
        left = session.until - time.time()
        await self._client.pexpire(self._key(session.digest), _ms(min(idle, left)))

    async def end(self, name: str, digest: str) -> None:
        """End one session of a user; nothing happens if it is over, or another user's."""
        found = await self.find(digest)
        if found is None or found.name != name:
            return
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.delete(self._key(digest))
            pipe.zrem(self._index(name), digest)
            await pipe.execute()

    async def of(self, name: str) -> list[Session]:
        """Return the sessions of a user, the newest first."""
        digests = await self._client.zrangebyscore(self._index(name), time.time(), "+inf")
        found = [await self.find(digest.decode()) for digest in digests]
        return sorted((one for one in found if one), key=lambda one: one.since, reverse=True)

    async def offer(self, code: str, who: str, seconds: float) -> None:
        """Accept the code of a one-time link for some time; `who` made it."""
        await self._client.set(self._link(code), who, px=_ms(seconds))

    async def redeem(self, code: str) -> str | None:
        """Return who made a link, and end it; None: it is unknown, spent or too old."""
        key = self._link(code)
        who = await self._client.get(key)
        # Of several callers, one deletes it.
        if who is None or not await self._client.delete(key):
            return None
        return str(who.decode())

    async def attempt(self, what: str, seconds: float) -> tuple[int, float]:
        """Count an attempt to log in.

        Args:
            what: as whom, or from where.
            seconds: the count ends so long after its first attempt.

        Returns:
            The number of attempts, and the seconds until the count ends.
        """
        key = self._tries(what)
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.set(key, 0, px=_ms(seconds), nx=True)
            pipe.incrby(key, 1)
            pipe.pttl(key)
            _, number, left = await pipe.execute()
        return int(number), max(0.0, left / 1000)

    async def forgive(self, what: str) -> None:
        """Forget the attempts of `attempt`: one has succeeded."""
        await self._client.delete(self._tries(what))

    def _key(self, digest: str) -> str:
        return f"{self._prefix}web:session:{digest}"

    def _index(self, name: str) -> str:
        return f"{self._prefix}web:sessions:{escape(name)}"

    def _link(self, code: str) -> str:
        return f"{self._prefix}web:link:{digest_of(code)}"

    def _tries(self, what: str) -> str:
        return f"{self._prefix}web:tries:{digest_of(what)}"  # it may be a text of any length


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))
