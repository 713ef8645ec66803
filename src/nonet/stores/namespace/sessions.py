"""Logins of the dashboard: sessions, one-time links, and counts of attempts to log in.

They live in Redis, so that all processes of ``task-web`` share them and each has an end by itself.
Redis stores only the SHA-256 of the secret of a cookie or link, so a reader of Redis cannot log in
with it. Each session and link has an HMAC over its key and content, made with the secret of
``task-web``, so a writer of Redis cannot make or change one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from nonet.base.keys import escape
from nonet.base.messages.signing import measured
from nonet.stores.connection.redis import AsyncRedis, RedisStore

_FORMAT = b"nonet login 1"


class Session(Struct, frozen=True):
    """A login of a user.

    Attributes:
        name: of the user, e.g. ``alice``.
        how: ``file``, ``oidc``, ``link`` (one-time, of an admin) or ``view`` (a read-only link).
        proof: what must still hold at each request. Users of the file: the digest of the password's
            hash. OIDC: the values of the role claim, one a line.
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


class Link(Struct, frozen=True):
    """A link by which a browser logs in.

    Attributes:
        who: made it.
        until: when it ends, in seconds since 1970.
        is_read_only: it logs in any number of viewers; else one admin, once.
    """

    who: str
    until: float
    is_read_only: bool = False


def digest_of(secret: str) -> str:
    """Return the digest that Redis stores instead of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Sessions(RedisStore):
    """The logins of one namespace, over a broker's connection.

    Args:
        client: the client of the broker.
        secret: the secret of ``task-web``; authenticates sessions and links.

    Every method raises `ServerUnreachableError` if Redis does not answer.
    """

    def __init__(self, client: AsyncRedis, namespace: str, secret: bytes) -> None:
        super().__init__(client, namespace)
        self._secret = secret

    async def begin(self, session: Session, idle: float) -> None:
        """Store a session. It ends after `idle` seconds unless `extend` is called."""
        left = session.until - time.time()
        fields = asdict(session)
        del fields["digest"]
        index = self._index(session.name)
        async with self._client.pipeline(transaction=True) as pipe:
            key = self._key(session.digest)
            pipe.set(key, self._sealed(key, fields), px=_ms(min(idle, left)))
            pipe.zremrangebyscore(index, "-inf", time.time())
            pipe.zadd(index, {session.digest: session.until})
            # Later sessions last at least as long, unless the setting was reduced meanwhile.
            pipe.pexpire(index, _ms(left))
            await pipe.execute()

    async def find(self, digest: str) -> Session | None:
        """Return a session; None: it is unknown, has ended, or is forged."""
        fields = await self._opened(self._key(digest))
        return None if fields is None else Session(**fields, digest=digest)

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
        found = [await self.find(digest.decode(errors="replace")) for digest in digests]
        return sorted((one for one in found if one), key=lambda one: one.since, reverse=True)

    async def offer(self, code: str, link: Link) -> None:
        """Accept the code of a link until its end."""
        key = self._link(code)
        # Redis expires the key. `until` also ends a link that a writer of Redis puts back.
        left = link.until - time.time()
        await self._client.set(key, self._sealed(key, asdict(link)), px=_ms(left))

    async def offered(self, code: str) -> Link | None:
        """Return the link with a code; None: it is unknown, spent, too old or forged."""
        fields = await self._opened(self._link(code))
        link = Link(**fields) if fields else None
        return link if link and link.until > time.time() else None

    async def redeem(self, code: str) -> Link | None:
        """Return the link with a code, and end it if it works once; see `offered`."""
        link = await self.offered(code)
        # Of several callers, one deletes it.
        if link and not link.is_read_only and not await self._client.delete(self._link(code)):
            return None
        return link

    async def attempt(self, what: str, seconds: float, number: int = 1) -> tuple[int, float]:
        """Count an attempt to log in.

        Args:
            what: the user, or the address.
            seconds: how long after its first attempt the count ends.
            number: how many to add.

        Returns:
            The number of attempts, and the seconds until the count ends.
        """
        key = self._tries(what)
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.set(key, 0, px=_ms(seconds), nx=True)
            pipe.incrby(key, number)
            pipe.pttl(key)
            _, count, left = await pipe.execute()
        return int(count), max(0.0, left / 1000)

    async def forgive(self, what: str) -> None:
        """Forget the failed attempts after a successful one."""
        await self._client.delete(self._tries(what))

    def _sealed(self, key: str, fields: dict[str, Any]) -> bytes:
        """Return the value to store at a key: the HMAC and the fields."""
        content = json.dumps(fields).encode()
        return b"%s %s" % (self._mac(key, content), content)

    async def _opened(self, key: str) -> dict[str, Any] | None:
        """Return the fields stored at a key; None: there are none, or they are forged."""
        found: bytes = await self._client.get(key) or b""
        mac, _, content = found.partition(b" ")
        if not hmac.compare_digest(mac, self._mac(key, content)):
            return None
        fields: dict[str, Any] = json.loads(content)
        return fields

    def _mac(self, key: str, content: bytes) -> bytes:
        # It covers the key, with namespace, kind and digest, so that a writer of Redis cannot copy
        # the content of one session into another.
        parts = measured(_FORMAT) + measured(key.encode()) + measured(content)
        return hmac.digest(self._secret, parts, "sha256").hex().encode()

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
