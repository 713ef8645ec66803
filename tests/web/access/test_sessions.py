"""What begins a session, and all that ends it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient
from servers import RedisServer
from web.access.doors import HTML, OURS, app_of, csrf_of, door, log_in, visitor

from nonet import Nonet
from nonet.stores.namespace.sessions import digest_of

COOKIE = "nonet-test"


@pytest.fixture
async def client(nonet: Nonet, users: Path) -> AsyncIterator[AsyncClient]:
    """A client that asks for a login."""
    async with door(nonet, users=users) as opened:
        yield opened


def edit(file: Path, old: str, new: str) -> None:
    """Replace a text in a file."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


async def is_in(client: AsyncClient) -> bool:
    """Whether a client is logged in."""
    return (await client.get("/account")).status_code == 200


async def test_a_login_makes_a_new_secret(client: AsyncClient, redis_server: RedisServer) -> None:
    """A secret that an attacker has planted is worth nothing, and an old one ends (fixation)."""
    client.cookies.set(COOKIE, "planted", domain="127.0.0.1")
    first = (await log_in(client, "viewer")).cookies[COOKIE]
    client.cookies.clear()
    client.cookies.set(COOKIE, first, domain="127.0.0.1")
    second = (await log_in(client, "viewer")).cookies[COOKIE]
    assert len({"planted", first, second}) == 3
    for secret, expected in (("planted", False), (first, False), (second, True)):
        async with visitor(app_of(client)) as other:
            other.cookies.set(COOKIE, secret, domain="127.0.0.1")
            assert await is_in(other) is expected
    with redis_server.client() as redis:
        keys = list(redis.scan_iter("*web:*"))
        values = [redis.get(key) for key in keys if redis.type(key) == "string"]
    assert not any(second in str(item) for item in [*keys, *values])


@pytest.mark.parametrize(
    ("url", "host", "expected"),
    [
        ("", "127.0.0.1:8800", ["nonet-test=", "HttpOnly", "SameSite=lax", "Path=/"]),
        (
            "https://nonet.example/jobs",
            "nonet.example",
            ["__Host-nonet-test=", "HttpOnly", "SameSite=lax", "Path=/", "Secure"],
        ),
        ("https://nonet.example", "127.0.0.1:8800", ["nonet-test=", "HttpOnly"]),
    ],
)
async def test_the_cookie_is_for_our_host_only(
    nonet: Nonet, users: Path, url: str, host: str, expected: list[str]
) -> None:
    """No script reads it, no other site causes its use in a change, and it stays on TLS."""
    async with door(nonet, users=users, url=url) as client:
        base = "/jobs" if "/jobs" in url else ""
        origin = url.removesuffix("/jobs") if host in url else "http://127.0.0.1:8800"
        answer = await client.post(
            f"{base}/login",
            data={"name": "viewer", "password": "correct horse"},
            headers={"Host": host, "Origin": origin},
        )
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(expected[0])
    assert set(expected[1:]) <= set(cookie.split("; ")), cookie
    assert ("Secure" in cookie) == ("Secure" in expected)


@pytest.mark.parametrize("how", ["removed", "password", "demoted"])
async def test_the_file_counts_at_each_request(client: AsyncClient, users: Path, how: str) -> None:
    """A removed user, and one with a new password, is out at once; a new role counts at once."""
    await log_in(client, "admin")
    assert (await client.get("/audit")).status_code == 200
    old, new = {
        "removed": ("name: admin", "name: other"),
        "password": ("$1$1$", "$1$2$"),
        "demoted": ("role: admin", "role: viewer"),
    }[how]
    edit(users, old, new)
    assert (await client.get("/audit")).status_code == (403 if how == "demoted" else 401)


async def test_a_broken_file_changes_nothing(
    client: AsyncClient, users: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The users of the last valid file stay until the file is valid again; the log says so."""
    await log_in(client, "viewer")
    edit(users, "users:", "users: [")
    assert await is_in(client) and await is_in(client)
    (line,) = [item.message for item in caplog.records if "kept the users" in item.message]
    assert f"{users}:2" in line
    edit(users, "users: [", "users:")
    edit(users, "name: viewer", "name: other")
    assert not await is_in(client)


@pytest.mark.parametrize("everywhere", [False, True])
async def test_a_user_ends_sessions(client: AsyncClient, everywhere: bool) -> None:
    """A logout ends this session, or all of the user; the secret is worth nothing afterwards."""
    secret = (await log_in(client, "viewer")).cookies[COOKIE]
    async with visitor(app_of(client)) as other:
        await log_in(other, "viewer")
        form = {"csrf": await csrf_of(client), **({"everywhere": "true"} if everywhere else {})}
        await client.post("/logout", data=form, headers=OURS)
        assert await is_in(other) is not everywhere
    client.cookies.set(COOKIE, secret, domain="127.0.0.1")
    assert not await is_in(client)


async def test_a_user_ends_another_session_of_its_own_only(client: AsyncClient) -> None:
    """The page of the account ends other sessions of the user, and none of others."""
    await log_in(client, "viewer")
    form = {"csrf": await csrf_of(client)}
    for name, expected in (("admin", True), ("viewer", False)):
        async with visitor(app_of(client)) as other:
            secret = (await log_in(other, name)).cookies[COOKIE]
            path = f"/account/sessions/{digest_of(secret)}/end"
            assert (await client.post(path, data=form, headers=OURS)).status_code == 303
            assert await is_in(other) is expected
    assert await is_in(client)


async def test_an_idle_session_ends(nonet: Nonet, users: Path, redis_server: RedisServer) -> None:
    """What a person does extends a session to its idle time, but not beyond its end."""
    async with door(nonet, users=users, session=1000, session_idle=700) as client:
        await log_in(client, "viewer")
        with redis_server.client() as redis:
            (key,) = redis.scan_iter("*web:session:*")
            for left, headers, expected in (
                (
                    200_000,
                    {"Sec-Fetch-Mode": "cors"},
                    range(1, 200_001),
                ),  # the page refreshes itself
                (200_000, {}, range(500_000, 700_001)),
            ):
                redis.pexpire(key, left)
                app_of(client).state.site.access.browsers._extended.clear()
                assert (await client.get("/account", headers=headers)).status_code == 200
                assert redis.pttl(key) in expected
            redis.delete(key)
            app_of(client).state.site.access.browsers._known.clear()
            assert not await is_in(client)


async def test_a_session_ends_at_its_time(nonet: Nonet, users: Path, monkeypatch: Any) -> None:
    """The session ends when it has lasted NONET_WEB_SESSION, even if it is in use."""
    async with door(nonet, users=users, session=100) as client:
        await log_in(client, "viewer")
        assert await is_in(client)
        now = time.time()
        monkeypatch.setattr("nonet.web.access.sessions.time.time", lambda: now + 101)
        assert not await is_in(client)


@pytest.mark.server
async def test_without_redis_pages_are_unavailable(users: Path, tmp_path: Path) -> None:
    """Without Redis a session gets 503; after a loss of its data it gets the login."""
    with RedisServer() as server:
        options = {"namespace": "test", "state_dir": tmp_path}
        async with (
            Nonet.from_settings(redis_url=server.url, **options) as nonet,
            door(nonet, users=users) as client,
        ):
            await log_in(client, "viewer")
            known = app_of(client).state.site.access.browsers._known
            server.kill()
            known.clear()
            answer = await client.get("/account", headers=HTML)
            assert answer.status_code == 503 and "retry-after" in answer.headers
            assert (await client.get("/login")).status_code == 200
            server.restart(keep_data=False)
            answer = await client.get("/account", headers=HTML)
            assert answer.status_code == 303
