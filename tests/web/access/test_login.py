"""Log in and out by a password, by a one-time link, and what ends a session."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from playwright.async_api import Page, expect
from servers import RedisServer
from web.access.doors import ORIGIN, OURS, app_of, csrf_of, door, log_in, stored_of, visitor
from web.conftest import PASSWORD

from nonet import Nonet
from nonet.base.errors import ConfigurationError
from nonet.config.web_settings import WebSettings
from nonet.rules.permissions import Role
from nonet.web.access.links import ensure_protected, new_link
from nonet.web.access.passwords import NOBODY, PasswordHash


async def test_a_user_logs_in_and_out(
    logged_in_page: Callable[[Role], Awaitable[Page]], login_address: str
) -> None:
    """The browser shows who is logged in with which role; after the logout it asks again."""
    page = await logged_in_page(Role.OPERATOR)
    await page.get_by_text("operator").first.click()
    await page.get_by_role("link", name="Account and sessions").click()
    await expect(page.locator("main")).to_contain_text("operator")
    await page.get_by_text("operator").first.click()
    await page.get_by_role("button", name="Log out", exact=True).click()
    await page.wait_for_url(f"{login_address}/login")
    await page.goto(login_address)
    assert "/login" in page.url


async def test_a_wrong_password_and_an_unknown_user_look_alike(nonet: Nonet, users: Path) -> None:
    """Neither the text nor the work says whether the name exists."""
    with users.open("w") as file:  # a small file
        password = PasswordHash.of(PASSWORD)  # as operators make it
        file.write(f'users: [{{name: viewer, role: viewer, password: "{password}"}}]\n')
    async with door(nonet, users=users) as client:
        texts = []
        for name in ("viewer", "nobody"):
            fits = MagicMock(wraps=PasswordHash.fits)
            with patch.object(PasswordHash, "fits", lambda *args, fits=fits: fits(*args)):
                form = {"name": name, "password": "wrong"}
                answer = await client.post("/login", data=form, headers=OURS)
            assert answer.status_code == 401 and "set-cookie" not in answer.headers
            texts.append(answer.text.replace(name, ""))
            (call,) = fits.call_args_list
            known = call.args[0]
            assert (known.n, known.r, known.p) == (NOBODY.n, NOBODY.r, NOBODY.p)
        assert texts[0] == texts[1]


async def test_guessing_is_slowed_down(nonet: Nonet, users: Path) -> None:
    """After ten attempts a user name waits, even with the right password; others do not."""
    async with door(nonet, users=users) as client:
        with patch.object(PasswordHash, "fits", lambda *_: False):
            for _ in range(10):
                assert (await log_in(client, "viewer")).status_code == 401
        answer = await log_in(client, "viewer")
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) > 600
        assert (await log_in(client, "admin")).status_code == 303
    # The count is in Redis: another process has it, too.
    async with door(nonet, users=users, peer="10.0.0.7") as other:
        assert (await log_in(other, "viewer")).status_code == 429


async def test_logins_that_succeed_are_no_attempts(nonet: Nonet, users: Path) -> None:
    """An address logs in as often as it likes; that does not forgive its failures."""
    async with door(nonet, users=users) as client:
        with patch.object(PasswordHash, "fits", lambda _, password: password == PASSWORD):
            for _ in range(48):
                await stored_of(client).attempt("address 127.0.0.1", 900)
            for _ in range(5):
                assert (await log_in(client, "viewer")).status_code == 303
                link = await new_link(stored_of(client), ORIGIN, "me")
                form = {"code": link.partition("=")[2]}
                answer = await client.post("/login/link", data=form, headers=OURS)
                assert answer.status_code == 303
            wrong = [await log_in(client, "viewer", password="x") for _ in range(3)]
    assert [answer.status_code for answer in wrong] == [401, 401, 429]


async def test_an_address_is_slowed_down(nonet: Nonet, users: Path) -> None:
    """After fifty attempts from one address it waits, whatever names it tries."""
    async with door(nonet, users=users) as client:
        sessions = stored_of(client)
        for _ in range(50):
            await sessions.attempt("address 127.0.0.1", 900)
        assert (await log_in(client, "viewer")).status_code == 429


@pytest.mark.parametrize(
    ("next", "location"),
    [
        ("/account?x=1", "/account?x=1"),
        ("", "/"),
        ("//evil.example/", "/"),
        ("///evil.example/", "/"),
        ("/\\evil.example/", "/"),
        ("\\\\evil.example", "/"),
        ("https://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("account", "/"),
        ("/\t/evil.example", "/"),
        ("/\r\nSet-Cookie: a=b", "/"),
        ("http://[", "/"),
    ],
)
async def test_a_login_leads_only_to_our_pages(
    nonet: Nonet, users: Path, next: str, location: str
) -> None:
    """`next` is a path of ours, or it does not count."""
    async with door(nonet, users=users) as client:
        answer = await log_in(client, "viewer", next=next)
        assert (answer.status_code, answer.headers["location"]) == (303, location)


async def test_a_foreign_page_cannot_log_a_browser_in(nonet: Nonet, users: Path) -> None:
    """A login form needs our origin: else a victim would work in a session of the attacker."""
    async with door(nonet, users=users) as client:
        form = {"name": "viewer", "password": PASSWORD}
        for headers in ({}, {"Origin": "http://evil.example"}):
            assert (await client.post("/login", data=form, headers=headers)).status_code == 403


async def test_a_link_logs_in_one_browser_once(nonet: Nonet) -> None:
    """A preview of the link spends nothing; the click does, for an admin; the next one fails."""
    async with door(nonet) as client:
        link = await new_link(stored_of(client), ORIGIN, "me@host")
        for _ in range(2):
            page = await client.get(link.removeprefix(ORIGIN))
            assert page.status_code == 200
        (code,) = re.findall(r'name="code" value="([\w-]+)"', page.text)
        answers = [
            await client.post("/login/link", data={"code": code}, headers=headers)
            for headers in ({}, OURS, OURS)
        ]
        assert [answer.status_code for answer in answers] == [403, 303, 401]
        assert (await client.get("/api/v1/audit?who=link:me@host")).json()["items"]
        assert (await client.get(f"/api/v1/overview?code={code}")).status_code == 200
        (session,) = await stored_of(client).of("link:me@host")
        assert session.until > time.time() + 3600  # not only as long as the link


async def test_a_read_only_link_lets_viewers_in_until_its_end(nonet: Nonet) -> None:
    """An admin makes it on the page; any number of browsers log in, and may do what viewers may."""
    async with door(nonet) as admin, visitor(app_of(admin)) as one, visitor(app_of(admin)) as two:
        link = await new_link(stored_of(admin), ORIGIN, "me")
        form = {"code": link.partition("=")[2]}
        await admin.post("/login/link", data=form, headers=OURS)
        form = {"hours": "8", "csrf": await csrf_of(admin)}
        made = await admin.post("/account/link", data=form, headers=OURS)
        (code,) = set(re.findall(r"login\?code=([\w-]+)", made.text))
        for client in (one, two):
            asked = await client.get(f"/login?code={code}")
            assert "link:me made it" in asked.text and "admin" not in asked.text
            answer = await client.post("/login/link", data={"code": code}, headers=OURS)
            assert answer.status_code == 303
            assert (await client.get("/api/v1/overview")).status_code == 200
            form = {"hours": "8", "csrf": await csrf_of(client)}
            refused = await client.post("/account/link", data=form, headers=OURS)
            assert refused.status_code == 403 and "lacks the permission link" in refused.text
            page = (await client.get("/account")).text
            assert page.count("this one") == 1 and "<button>End</button>" not in page
            digest = hashlib.sha256(one.cookies["nonet-test"].encode()).hexdigest()
        session = await stored_of(admin).find(digest)
        offered = await stored_of(admin).offered(code)
        assert session is not None and offered is not None
        assert session.until <= offered.until < time.time() + 8 * 3600
        audited = (await admin.get("/api/v1/audit?who=link:me")).json()["items"]
        assert ("link", "read-only link for 8 hours") in [
            (it["action"], it["what"]) for it in audited
        ]
        after = patch("nonet.stores.namespace.sessions.time.time", lambda: offered.until)
        with after:
            over = await two.post("/login/link", data={"code": code}, headers=OURS)
        assert over.status_code == 401


async def test_a_form_survives_the_end_of_its_session(
    nonet: Nonet, login_address: str, logged_in_page: Callable[[Role], Awaitable[Page]]
) -> None:
    """The login leads back to the form with what was entered; it changes nothing by itself."""
    page = await logged_in_page(Role.OPERATOR)
    await page.goto(f"{login_address}/streams/normal/small")
    await page.get_by_role("button", name="Pause …").click()
    await page.get_by_label("Reason").fill("the cloud is down")
    await page.context.clear_cookies()
    await page.get_by_role("button", name="Pause", exact=True).click()
    await page.get_by_label("Name").fill("operator")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("Nothing was changed")
    assert await nonet.stores.controls.load() == []
    await expect(page.get_by_label("Reason")).to_have_value("the cloud is down")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await page.get_by_text("is paused: no further task").wait_for()
    assert [item.reason for item in await nonet.stores.controls.load()] == ["the cloud is down"]
    # Another login in the same browser makes the forms of open pages invalid, but loses nothing.
    await page.get_by_role("button", name="Resume").wait_for()
    await page.evaluate(
        "document.querySelectorAll('[name=csrf]').forEach((one) => one.value = 'old')"
    )
    await page.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("alert")).to_contain_text("Nothing was changed")


async def test_a_link_ends_after_ten_minutes(nonet: Nonet, redis_server: RedisServer) -> None:
    """Redis forgets the code, of which it has only the digest."""
    async with door(nonet) as client:
        link = await new_link(stored_of(client), ORIGIN, "me")
    with redis_server.client() as redis:
        (key,) = redis.scan_iter("*web:link:*")
        assert 500_000 < redis.pttl(key) <= 600_000
        assert link.rpartition("=")[2] not in str(key)


@pytest.mark.parametrize(
    ("host", "options", "is_fine"),
    [
        ("127.0.0.1", {}, True),
        ("::1", {}, True),
        ("localhost", {}, True),
        ("0.0.0.0", {}, False),
        ("10.0.0.1", {}, False),
        ("nonet.example", {}, False),
        ("0.0.0.0", {"users": Path("users.yaml")}, True),
        ("0.0.0.0", {"users": Path("users.yaml"), "links": False}, True),
        ("127.0.0.1", {"links": False}, False),
    ],
)
def test_only_local_users_may_do_without_users(
    host: str, options: dict[str, Any], is_fine: bool
) -> None:
    """Without users, OIDC or a proxy, task-web listens on a loopback address only."""
    settings = WebSettings.plain(host=host, **options)
    if is_fine:
        ensure_protected(settings)
        return
    with pytest.raises(ConfigurationError, match="NONET_WEB_USERS"):
        ensure_protected(settings)
