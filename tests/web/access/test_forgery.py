"""What a writer of Redis, such as the user `nonet-client` of our own page, cannot do to logins."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient
from servers import RedisServer
from web.access.doors import OURS, app_of, door, log_in, stored_of, visitor

from nonet import Nonet
from nonet.base.errors import ConfigurationError
from nonet.config.web_settings import WebSettings
from nonet.stores.namespace.sessions import digest_of
from nonet.web.access.links import new_link
from nonet.web.access.secret import find_secret, make_secret

COOKIE = "nonet-test"
_MINE = "the secret of my cookie"


def key_of(secret: str, kind: str = "session") -> str:
    """The key of what is stored of a secret."""
    return f"{{test}}:web:{kind}:{digest_of(secret)}"


def fields_of(redis: Any, secret: str) -> dict[str, Any]:
    """The fields of a session."""
    fields: dict[str, Any] = json.loads("{" + redis.get(key_of(secret)).partition("{")[2])
    return fields


def rewrite(redis: Any, secret: str, **fields: Any) -> None:
    """Change fields of a session, and nothing before them."""
    head = redis.get(key_of(secret)).partition("{")[0]
    redis.set(key_of(secret), head + json.dumps(fields_of(redis, secret) | fields))


def invented(redis: Any, viewer: str, admin: str) -> str:
    """A record of my own, as an admin by a link."""
    now = time.time()
    fields = {"name": "me", "how": "link", "proof": "", "address": "", "browser": "", "since": now}
    redis.set(key_of(_MINE), json.dumps({**fields, "until": now + 3600}))
    return _MINE


def copied(redis: Any, viewer: str, admin: str) -> str:
    """The record of an admin, under the digest of my cookie."""
    redis.set(key_of(_MINE), redis.get(key_of(admin)))
    return _MINE


def promoted(redis: Any, viewer: str, admin: str) -> str:
    """My session as a viewer, with the record of an admin."""
    redis.set(key_of(viewer), redis.get(key_of(admin)))
    return viewer


def renamed(redis: Any, viewer: str, admin: str) -> str:
    """My session as a viewer, with another name and proof in its record."""
    proof = fields_of(redis, admin)["proof"]
    rewrite(redis, viewer, name="admin", proof=proof)
    return viewer


def prolonged(redis: Any, viewer: str, admin: str) -> str:
    """A session that has ended, with a later end."""
    rewrite(redis, viewer, until=time.time() + 10**6)
    return viewer


Forgery = Callable[[Any, str, str], str]


@pytest.mark.parametrize("forge", [invented, copied, promoted, renamed, prolonged])
async def test_a_forged_session_is_none(
    nonet: Nonet, users: Path, redis_server: RedisServer, forge: Forgery
) -> None:
    """A writer to Redis without the secret of task-web cannot make a session."""
    async with door(nonet, users=users) as client, visitor(app_of(client)) as admin:
        known = (await log_in(client, "viewer")).cookies[COOKIE]
        best = (await log_in(admin, "admin")).cookies[COOKIE]
        app_of(client).state.site.access.browsers._known.clear()
        with redis_server.client() as redis:
            cookie = forge(redis, known, best)
        async with visitor(app_of(client)) as attacker:
            attacker.cookies.set(COOKIE, cookie, domain="127.0.0.1")
            assert (await attacker.get("/account")).status_code == 401
        assert (await admin.get("/audit")).status_code == 200


async def spend(client: AsyncClient, code: str) -> int:
    """Log in by a link; the status of the answer."""
    return (await client.post("/login/link", data={"code": code}, headers=OURS)).status_code


async def test_a_forged_link_is_none(nonet: Nonet, redis_server: RedisServer) -> None:
    """A link is not made by a record in Redis, nor by the record of another link."""
    async with door(nonet) as client:
        with redis_server.client() as redis:
            redis.set(key_of("mine", "link"), "me")
            assert await spend(client, "mine") == 401
            code = (await new_link(stored_of(client), "", "op")).partition("=")[2]
            redis.set(key_of("mine", "link"), redis.get(key_of(code, "link")))
            assert await spend(client, "mine") == 401
            assert await spend(client, code) == 303


async def test_a_link_that_is_put_back_ends_in_time(
    nonet: Nonet, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer of Redis can keep the record of a link; it is worth nothing after ten minutes."""
    async with door(nonet) as client:
        code = (await new_link(stored_of(client), "", "op")).partition("=")[2]
        with redis_server.client() as redis:
            kept = redis.get(key_of(code, "link"))
            redis.set(key_of(code, "link"), kept)  # without its TTL
        now = time.time()
        monkeypatch.setattr("nonet.stores.namespace.sessions.time.time", lambda: now + 601)
        assert await spend(client, code) == 401


async def test_links_can_be_switched_off(nonet: Nonet, users: Path) -> None:
    """With NONET_WEB_LINKS=0 a true link logs no one in, and its earlier sessions are over."""
    async with door(nonet) as client:
        code = (await new_link(stored_of(client), "", "op")).partition("=")[2]
        assert await spend(client, code) == 303
        cookie = client.cookies[COOKIE]
    async with door(nonet, users=users, links=False) as client:
        code = (await new_link(stored_of(client), "", "op")).partition("=")[2]
        assert await spend(client, code) == 403
        client.cookies.set(COOKIE, cookie, domain="127.0.0.1")
        assert (await client.get("/account")).status_code == 401


async def test_processes_with_one_secret_share_sessions(nonet: Nonet, users: Path) -> None:
    """A session of one process is valid in the next; with another secret it is not."""
    secret, other = "s" * 32, "o" * 32
    async with door(nonet, users=users, secret=secret) as client:
        cookie = (await log_in(client, "viewer")).cookies[COOKIE]
    for given, status in ((secret, 200), (other, 401)):
        async with door(nonet, users=users, secret=given) as client:
            client.cookies.set(COOKIE, cookie, domain="127.0.0.1")
            assert (await client.get("/account")).status_code == status


def test_the_secret_is_made_once(tmp_path: Path) -> None:
    """The first start makes it, for this user only; later ones and commands find it."""
    settings, home = WebSettings.plain(), tmp_path / "state"
    with pytest.raises(ConfigurationError, match="NONET_WEB_SECRET"):
        find_secret(settings, home)
    made = make_secret(settings, home)
    assert len(made) >= 32
    assert make_secret(settings, home) == find_secret(settings, home) == made
    (file,) = home.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"")
    with pytest.raises(ConfigurationError, match="too short"):
        make_secret(settings, home)
    given = WebSettings.plain(secret="g" * 32)
    assert make_secret(given, tmp_path / "none") == b"g" * 32
    with pytest.raises(ConfigurationError, match="32 characters"):
        WebSettings.plain(secret="short")
