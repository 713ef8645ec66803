"""Log in at an OpenID Connect provider, and what a false provider or a thief of codes gets."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from httpx import AsyncClient, Response
from waits import WAIT_SECONDS
from web.access.doors import HTML, app_of, door, visitor
from web.access.provider import CLIENT, SECRET, FakeProvider, providing

from nonet import Nonet

ROLES = "nonet-admins:admin,staff:viewer"


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    """A provider that answers."""
    async with providing() as opened:
        yield opened


@pytest.fixture
async def client(nonet: Nonet, provider: FakeProvider) -> AsyncIterator[AsyncClient]:
    """A client of a dashboard that knows the provider."""
    async with door(nonet, **options(provider)) as opened:
        yield opened


def options(provider: FakeProvider, **others: Any) -> dict[str, Any]:
    """The settings for a provider."""
    return {
        "oidc_issuer": provider.issuer,
        "oidc_client": CLIENT,
        "oidc_secret": SECRET,
        "oidc_roles": ROLES,
        **others,
    }


async def leave(client: AsyncClient, next: str = "") -> str:
    """Go to the provider, log in there, and return the path to which it sends the browser back."""
    start = await client.get("/login/oidc", params={"next": next})
    assert start.status_code == 303, start.text
    async with AsyncClient(timeout=WAIT_SECONDS, verify=False) as browser:
        answer = await browser.get(start.headers["location"])
    back = urlsplit(answer.headers["location"])
    assert (back.netloc, back.path) == ("127.0.0.1:8800", "/login/callback")
    return f"{back.path}?{back.query}"


async def arrive(client: AsyncClient, next: str = "") -> Response:
    """Log in."""
    return await client.get(await leave(client, next), headers=HTML)


@pytest.mark.parametrize(
    ("claims", "others", "role"),
    [
        ({"groups": ["staff"]}, {}, "viewer"),
        ({"groups": ["x", "staff", "nonet-admins"]}, {}, "admin"),
        ({"groups": "staff"}, {}, "viewer"),
        ({"realm": {"roles": ["staff"]}}, {"oidc_claim": "realm.roles"}, "viewer"),
        ({"https://a.example/r": ["staff"]}, {"oidc_claim": "https://a.example/r"}, "viewer"),
        ({"groups": ["staff"]}, {"oidc_roles": "staff:viewer@other+test"}, "viewer"),
        ({"groups": ["admin", "operator"]}, {}, None),
        ({"groups": {"staff": 1}}, {}, None),
        ({}, {}, None),
        ({"groups": ["staff"]}, {"oidc_roles": ""}, None),
    ],
)
async def test_the_claim_gives_the_role(
    nonet: Nonet,
    provider: FakeProvider,
    claims: dict[str, Any],
    others: dict[str, Any],
    role: str | None,
) -> None:
    """The highest role of the values counts; without one the page names subject and claim."""
    provider.claims = claims
    async with door(nonet, **options(provider, **others)) as client:
        answer = await arrive(client, "/account")
        if role is None:
            assert answer.status_code == 403
            assert "4711" in answer.text and others.get("oidc_claim", "groups") in answer.text
            assert (await client.get("/account")).status_code == 401
        else:
            assert (answer.status_code, answer.headers["location"]) == (303, "/account")
            page = (await client.get("/account")).text
            assert "oidc:alice" in page and f">{role}<" in page


def past(seconds: int) -> int:
    """A time in the past."""
    return int(time.time()) - seconds


_STAFF = {"groups": ["staff"]}


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"iss": "https://evil.example"},
        {"aud": "another-client"},
        {"aud": [CLIENT, "another"], "azp": "another"},
        {"aud": [CLIENT, "another"]},
        {"azp": "another"},
        {"exp": past(3600)},
        {"exp": None},
        {"iat": past(-3600)},
        {"sub": None},
    ],
)
async def test_false_claims_are_refused(
    client: AsyncClient, provider: FakeProvider, claims: dict[str, Any]
) -> None:
    """A token for another login, client or time, or of another issuer, is no login."""
    provider.claims = {**_STAFF, **claims}
    answer = await arrive(client)
    assert answer.status_code == 403
    assert (await client.get("/account")).status_code == 401


@pytest.mark.parametrize("sign", ["unsigned", "by_another_key", "by_public_key"])
async def test_false_signatures_are_refused(
    client: AsyncClient, provider: FakeProvider, sign: str
) -> None:
    """Only a signature by a key that the provider publishes counts."""
    provider.claims = _STAFF
    make: Callable[[dict[str, Any]], str] = getattr(provider, sign)
    provider.sign = make  # type: ignore[method-assign]
    assert (await arrive(client)).status_code == 403
    assert (await client.get("/account")).status_code == 401


async def test_new_keys_of_the_provider_are_read(
    client: AsyncClient, provider: FakeProvider
) -> None:
    """After a change of keys logins work."""
    provider.claims = _STAFF
    assert (await arrive(client)).status_code == 303
    provider.rotate()
    assert (await arrive(client)).status_code == 303


async def test_the_answer_counts_in_its_browser_once(
    client: AsyncClient, provider: FakeProvider
) -> None:
    """A stolen or planted answer logs in neither the thief nor the victim."""
    provider.claims = _STAFF
    path = await leave(client)
    async with visitor(app_of(client)) as thief:
        assert (await thief.get(path)).status_code == 403
        await leave(thief)  # its own login does not help either
        assert (await thief.get(path)).status_code == 403
    assert (await client.get(path)).status_code == 303
    assert (await client.get(path)).status_code == 403


@pytest.mark.parametrize(
    "answer", [{"iss": "https://evil.example"}, {"error": "access_denied"}, {"code": "guessed"}]
)
async def test_a_refusal_of_the_provider_is_shown(
    client: AsyncClient, provider: FakeProvider, answer: dict[str, str]
) -> None:
    """An error, an answer of another provider, or a wrong code, is a page that says so."""
    provider.claims, provider.answer = _STAFF, answer
    found = await arrive(client)
    assert found.status_code == 403 and "provider" in found.text


async def test_a_login_with_a_provider_leads_only_to_our_pages(
    client: AsyncClient, provider: FakeProvider
) -> None:
    """A foreign `next` does not survive the way over the provider."""
    provider.claims = _STAFF
    assert (await arrive(client, "//evil.example")).headers["location"] == "/"


async def test_an_unavailable_provider_is_reported(nonet: Nonet, provider: FakeProvider) -> None:
    """No answer, an issuer of another name, and an address without TLS, are 503 with the reason."""
    for issuer, reason in (
        ("http://127.0.0.1:1", "does not answer"),
        (f"{provider.issuer}/", "exactly"),
        ("http://login.example", "not https"),
    ):
        async with door(nonet, **options(provider, oidc_issuer=issuer)) as client:
            answer = await client.get("/login/oidc", headers=HTML)
            assert answer.status_code == 503 and reason in answer.text


async def test_a_session_ends_with_its_role(nonet: Nonet, provider: FakeProvider) -> None:
    """When the settings give a group no role any more, its sessions end."""
    provider.claims = _STAFF
    async with door(nonet, **options(provider)) as client:
        await arrive(client)
        async with door(nonet, **options(provider, oidc_roles="other:admin")) as restarted:
            restarted.cookies = client.cookies
            assert (await restarted.get("/account")).status_code == 401
        assert (await client.get("/account")).status_code == 200


async def test_a_group_has_its_role_in_its_namespaces(nonet: Nonet, provider: FakeProvider) -> None:
    """In another namespace its users are logged in, but refused."""
    provider.claims = _STAFF
    async with door(nonet, **options(provider, oidc_roles="staff:admin@other")) as client:
        assert (await arrive(client)).status_code == 303
        answer = await client.get("/account")
        assert answer.status_code == 403 and "may enter other" in answer.text
