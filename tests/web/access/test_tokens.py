"""Tokens of programs, headers of a proxy, and the file of users."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from web.access.doors import OURS, door, log_in

from nonet import Nonet
from nonet.base.errors import ConfigurationError
from nonet.web.access.users import Users

SECRET = "nonet_secret"
SHA = hashlib.sha256(SECRET.encode()).hexdigest()


def tokens(place: Path, *fields: str) -> Path:
    """A file with one token."""
    file = place / "tokens.yaml"
    file.write_text(f"tokens:\n  - {{name: ci, sha256: {SHA}, {', '.join(fields)}}}\n")
    file.chmod(0o600)
    return file


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize(
    ("fields", "path", "status"),
    [
        (("role: admin",), "/api/v1/audit", 200),
        (("role: viewer",), "/api/v1/audit", 403),
        (("role: submitter",), "/api/v1/overview", 403),
        (("role: admin", "namespaces: [test, other]"), "/api/v1/audit", 200),
        (("role: admin", "namespaces: [other]"), "/api/v1/openapi.json", 403),
        (("role: admin", "expires: 2020-01-01"), "/api/v1/overview", 401),
        (("role: admin", "expires: 2099-01-01T00:00:00Z"), "/api/v1/overview", 200),
        (("role: admin", "expires: '2099-01-01'"), "/api/v1/overview", 200),
        (("role: admin", "expires: '2020-01-01T00:00:00+02:00'"), "/api/v1/overview", 401),
    ],
)
async def test_a_token_has_the_rights_of_its_line(
    nonet: Nonet, tmp_path: Path, fields: tuple[str, ...], path: str, status: int
) -> None:
    """A token has a role, perhaps for some namespaces and until a time."""
    async with door(nonet, users=tokens(tmp_path, *fields)) as client:
        assert (await client.get(path, headers=bearer(SECRET))).status_code == status


async def test_a_token_counts_alone_and_only_in_its_header(nonet: Nonet, users: Path) -> None:
    """With a bearer token the cookie does not count; a URL, a form or another scheme has none."""
    with users.open("a") as file:  # a small file
        file.write(f"tokens:\n  - {{name: ci, sha256: {SHA}, role: viewer}}\n")
    async with door(nonet, users=users) as client:
        for url in (f"/?token={SECRET}", f"/?access_token={SECRET}", f"/?code={SECRET}"):
            assert (await client.get(f"/api/v1/overview{url[1:]}")).status_code == 401
        for headers in ({"Authorization": f"Basic {SECRET}"}, {"X-Token": SECRET}):
            assert (await client.get("/api/v1/overview", headers=headers)).status_code == 401
        await log_in(client, "admin")
        assert (await client.get("/api/v1/audit")).status_code == 200
        assert (await client.get("/api/v1/audit", headers=bearer(SECRET))).status_code == 403
        assert (await client.get("/api/v1/audit", headers=bearer("wrong"))).status_code == 401
        # A program has no page whose origin or CSRF token it could send.
        answer = await client.post("/logout", headers=bearer(SECRET))
        assert answer.status_code == 303


PROXY = {
    "proxy_header": "X-User",
    "proxy_role_header": "X-Role",
    "proxy_addresses": ("10.1.0.0/16", "fd00::1"),
}
ADMIN = {"X-User": "ann", "X-Role": "staff, admin"}


@pytest.mark.parametrize(
    ("peer", "headers", "status"),
    [
        ("10.1.2.3", [*ADMIN.items()], 200),
        ("fd00::1", [*ADMIN.items()], 200),
        ("::ffff:10.1.2.3", [*ADMIN.items()], 200),
        ("10.2.0.1", [*ADMIN.items()], 401),
        ("127.0.0.1", [*ADMIN.items()], 401),
        ("10.2.0.1", [*ADMIN.items(), ("X-Forwarded-For", "10.1.2.3")], 401),
        ("10.1.2.3", [("X-User", "ann")], 403),
        ("10.1.2.3", [("X-User", "ann"), ("X-Role", "staff")], 403),
        ("10.1.2.3", [("X-User", "mallory"), *ADMIN.items()], 403),
        ("10.1.2.3", [("X-Role", "admin"), ("X-User", "ann"), ("X-Role", "viewer")], 403),
        ("10.1.2.3", [("X-Role", "admin")], 401),
    ],
)
async def test_only_the_proxy_names_users(
    nonet: Nonet, peer: str, headers: list[tuple[str, str]], status: int
) -> None:
    """Headers of other senders do not count, and neither do two values, one of which may lie."""
    async with door(nonet, peer=peer, **PROXY) as client:
        answer = await client.get("/api/v1/audit", headers=headers)
        assert answer.status_code == status


async def test_users_of_a_proxy_need_a_csrf_token(nonet: Nonet) -> None:
    """The proxy logs in whatever the browser sends, so changes need a token of ours."""
    async with door(nonet, peer="10.1.2.3", **PROXY) as client:
        client.headers.update(ADMIN)
        answer = await client.post("/logout", headers=OURS)
        assert answer.status_code == 403
        await client.get("/account")
        token = client.cookies["nonet-test-csrf"]
        answer = await client.post("/logout", headers={**OURS, "X-CSRF-Token": token})
        assert answer.status_code == 303


async def test_the_address_behind_a_proxy_counts(nonet: Nonet, users: Path) -> None:
    """The audit has the address before the proxy, and no client can make one up."""
    async with door(nonet, peer="10.1.2.3", users=users, proxy_addresses=("10.1.0.0/16",)) as proxy:
        proxy.headers["X-Forwarded-For"] = "1.1.1.1, 198.51.100.7, 10.1.0.9"
        await log_in(proxy, "admin")
        found = (await proxy.get("/api/v1/audit")).json()["items"]
        assert [entry["address"] for entry in found] == ["198.51.100.7"]
    async with door(nonet, peer="203.0.113.5", users=users) as direct:
        direct.headers["X-Forwarded-For"] = "1.1.1.1"
        await log_in(direct, "admin")
        found = (await direct.get("/api/v1/audit")).json()["items"]
        assert found[0]["address"] == "203.0.113.5"


_TOKEN = f"name: a, sha256: {SHA}"
_END = "$8$1$AAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAA"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("users:\n  - {name: a, role: boss, password: x}", ":2: users[0].role"),
        ("users:\n  - {name: a, role: boss, password: x}", ":2: users[0].password is not"),
        ("users:\n  - name: a\n    role: viewer\n", ":2: users[0].password is missing"),
        ("users:\n  - {name: 'a b', role: viewer}", ":2: users[0].name has other"),
        ("users:\n\t- a", ":2: "),
        ("user: []", ":1: user is not known"),
        (f"users:\n  - {{name: a, role: viewer, password: scrypt$1024{_END}}}", "has weak"),
        (f"users:\n  - {{name: a, role: viewer, password: scrypt$4194304{_END}}}", "256 MiB"),
        ("tokens:\n  - name: a\n    sha256: nonet_x", ":3: tokens[0].sha256 is not"),
        (f"tokens:\n  - {{{_TOKEN}}}", ":2: tokens[0].role is missing"),
        (f"tokens:\n  - {{{_TOKEN}, role: admin, namespaces: }}", "no value for namespaces"),
        (f"tokens:\n  - {{{_TOKEN}, role: admin, expires: null}}", "no value for expires"),
        (
            f"tokens:\n  - {{{_TOKEN}, role: admin, expires: 2099-01-01 10:00:00}}",
            ":2: tokens[0].expires has no time zone",
        ),
        (f"tokens:\n  - {{{_TOKEN}, role: admin, expires: '2099-01-01T10:00'}}", "no time zone"),
        (f"tokens: [{{{_TOKEN}, role: admin}}, {{{_TOKEN}, role: admin}}]", "repeats 'a'"),
        (
            f"tokens:\n  - {{{_TOKEN}, role: viewer}}\n  - {{name: b, sha256: {SHA}, role: admin}}",
            ":3: tokens[1] is the token of another line",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_line(tmp_path: Path, text: str, problem: str) -> None:
    """task-web does not start with a wrong file; the error names lines, and never a value."""
    file = tmp_path / "users.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        Users(file)
    assert "NONET_WEB_USERS" in str(caught.value) and "nonet_x" not in str(caught.value)
    assert problem in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The error says how to make the file."""
    with pytest.raises(ConfigurationError, match="task-run web password"):
        Users(tmp_path / "none.yaml")


def test_a_file_for_all_is_warned_of(users: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that every user of the machine can read works, with a warning."""
    Users(users)
    assert not caplog.records
    users.chmod(0o644)
    Users(users)
    assert "chmod o-r" in caplog.text


def test_settings_of_a_proxy_and_of_roles_are_checked() -> None:
    """Half of a proxy, and roles that do not exist, are refused at the start."""
    from nonet.config.web_settings import WebSettings

    wrong: list[dict[str, Any]] = [
        {"proxy_header": "X-User"},
        {**PROXY, "proxy_addresses": ()},
        {**PROXY, "proxy_addresses": ("proxy.example",)},
        {"oidc_roles": "staff:boss"},
        {"oidc_roles": "staff:viewer@"},
        {"oidc_issuer": "https://login.example"},
    ]
    for options in wrong:
        with pytest.raises(ConfigurationError, match="NONET_WEB_"):
            WebSettings.plain(**options)
