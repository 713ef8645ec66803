"""What the guard refuses before a route sees it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from httpx import ASGITransport, AsyncClient
from web.access.doors import HTML, ORIGIN, OURS, app_of, csrf_of, door, log_in, visitor
from web.conftest import ClientOf, Fixed, principal

from nonet import Nonet
from nonet.base.errors import NonetError
from nonet.config.web_settings import WebSettings
from nonet.rules.permissions import ACTIONS, READING, Action, Role
from nonet.web.app import create_app, routers
from nonet.web.guard import PUBLIC
from nonet.web.site import get_principal

# These need a login, but no permission: they are about the caller's own sessions.
_OWN = {"/logout", "/account/sessions/{digest}/end"}
_CHANGES = ("POST", "PUT", "PATCH", "DELETE")


def routes() -> Iterator[tuple[str, APIRoute]]:
    """Each method of each route."""
    for router in routers():
        for route in router.routes:
            assert isinstance(route, APIRoute)
            for method in sorted(route.methods):
                yield method, route


def path_of(route: APIRoute) -> str:
    """A path of a route."""
    special = {"priority": "normal", "size": "small", "row": "1"}
    names = {name: special.get(name, "x") for name in route.param_convertors}
    return str(route.url_path_for(route.name, **names))


def action_of(route: APIRoute) -> Action | None:
    """The permission that a route declares."""
    found = [getattr(item.call, "action", None) for item in route.dependant.dependencies]
    return next((action for action in found if action), None)


@pytest.fixture
async def stranger(nonet: Nonet, users: Path) -> AsyncIterator[AsyncClient]:
    """A client without a login."""
    async with door(nonet, users=users) as client:
        yield client


def test_each_route_declares_a_permission() -> None:
    """A new route without a permission fails here; public and own ones are named."""
    bare = {route.path for _, route in routes() if action_of(route) is None}
    assert bare == (PUBLIC - {"/livez", "/readyz"}) | _OWN
    # FastAPI takes a parameter whose annotation it cannot resolve for one of the query.
    for _, route in routes():
        if route.path not in PUBLIC:
            assert get_principal in called(route.dependant), route.path


def called(dependant: Dependant) -> set[object]:
    """All that is called before a route."""
    below = [called(item) for item in dependant.dependencies]
    return {dependant.call}.union(*below)


async def test_without_a_login_only_public_paths_answer(stranger: AsyncClient) -> None:
    """Every other route answers 401; pages send a browser to the login, and back after it."""
    for number, (method, route) in enumerate(routes()):
        if route.path in PUBLIC:
            continue
        path, peer = path_of(route), {"X-Forwarded-For": str(number)}
        answer = await stranger.request(method, path, headers=peer)
        assert answer.status_code in (401, 429), (method, path, answer.status_code)
        if route.path.startswith("/api/"):
            assert answer.headers["content-type"] == "application/problem+json"
        else:
            answer = await stranger.request(method, path, headers=HTML)
            is_page = answer.status_code == 303
            assert is_page or answer.status_code == 429, (path, answer.status_code)
            assert not is_page or answer.headers["location"].startswith("/login")
    answer = await stranger.get("/static/nonet.css")
    assert answer.status_code == 200
    answer = await stranger.get("/static/../api/v1/overview")
    assert answer.status_code in (401, 429)


@pytest.mark.parametrize("role", Role)
async def test_each_role_on_each_route(nonet: Nonet, users: Path, role: Role) -> None:
    """A route refuses exactly the roles without its permission; the API is asked by a token."""
    with users.open("a") as file:  # a small file
        digest = hashlib.sha256(b"secret").hexdigest()
        file.write(f"tokens:\n  - {{name: ci, sha256: {digest}, role: {role}}}\n")
    async with door(nonet, users=users) as client:
        await log_in(client, role)
        by_cookie = {**OURS, "X-CSRF-Token": await csrf_of(client)}
        by_token = {"Authorization": "Bearer secret"}
        for method, route in routes():
            if not (action := action_of(route)):
                continue
            headers = by_token if route.path.startswith("/api/") else by_cookie
            answer = await client.request(method, path_of(route), headers=headers)
            case = (method, route.path, answer.status_code, answer.text[:300])
            # What is allowed finds that nothing has the name x, or that the body is missing.
            assert (answer.status_code == 403) == (action not in ACTIONS[role]), case
            assert answer.status_code not in (401, 421, 429, 500, 503), case


async def test_read_only_mode_stops_admins(nonet: Nonet, users: Path) -> None:
    """In read-only mode an admin reads, and changes nothing."""
    async with door(nonet, users=users, read_only=True) as client:
        await log_in(client, "admin")
        assert (await client.get("/audit")).status_code == 200
        headers = {**OURS, "X-CSRF-Token": await csrf_of(client)}
        for method, route in routes():
            action = action_of(route)
            if method in _CHANGES and action and action not in READING:
                answer = await client.request(method, path_of(route), headers=headers)
                assert answer.status_code == 403, (method, route.path)
                assert "read-only" in answer.text


@pytest.mark.parametrize(
    ("headers", "csrf", "status"),
    [
        ({"Origin": ORIGIN}, "right", 303),
        ({"Referer": f"{ORIGIN}/tasks"}, "right", 303),
        ({"Origin": ORIGIN}, "", 403),
        ({"Origin": ORIGIN}, "wrong", 403),
        ({}, "right", 403),
        ({"Origin": "null"}, "right", 403),
        ({"Origin": "http://evil.example"}, "right", 403),
        ({"Origin": f"{ORIGIN}.evil.example"}, "right", 403),
        ({"Origin": "http://127.0.0.1:8801"}, "right", 403),
        ({"Referer": f"http://evil.example/?{ORIGIN}"}, "right", 403),
    ],
)
async def test_changes_need_a_token_and_our_origin(
    stranger: AsyncClient, headers: dict[str, str], csrf: str, status: int
) -> None:
    """A form counts only from a page of ours, with the token of the session."""
    await log_in(stranger, "viewer")
    right = await csrf_of(stranger)
    value = {"right": right, "wrong": right[::-1]}.get(csrf, "")
    answer = await stranger.post("/logout", data={"csrf": value}, headers=headers)
    assert answer.status_code == status
    assert (await stranger.get("/account")).status_code == (401 if status == 303 else 200)


@pytest.mark.parametrize(
    ("host", "settings", "status"),
    [
        ("127.0.0.1:8800", {}, 200),
        ("localhost", {}, 200),
        ("[::1]:8800", {}, 200),
        ("evil.example", {}, 421),
        ("127.0.0.1.evil.example", {}, 421),
        ("", {}, 421),
        ("[", {}, 421),
        ("nonet.example", {"url": "https://nonet.example/"}, 200),
        ("inside.example:80", {"hosts": ("inside.example",)}, 200),
        ("any.example", {"hosts": ("*",)}, 200),
    ],
)
async def test_only_names_of_ours_are_served(
    nonet: Nonet, host: str, settings: dict[str, Any], status: int
) -> None:
    """A name that was made to resolve to our address (DNS rebinding) gets 421."""
    async with door(nonet, **settings) as client:
        answer = await client.get("/login", headers={"Host": host})
    assert answer.status_code == status
    assert status == 200 or f"//{host}/" not in answer.text, "a page links to the refused name"


async def test_long_bodies_are_refused(stranger: AsyncClient) -> None:
    """A body over the limit gets 413, also when its length is not announced."""

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 1024

    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for body in (b"name=" + b"x" * 100_000, parts()):
        answer = await stranger.post("/login", content=body, headers={**OURS, **form})
        assert answer.status_code == 413, answer.text


@pytest.mark.parametrize(
    ("role", "path", "longest"),
    [
        (Role.ADMIN, "/api/v1/pauses", 2**20),
        (Role.ADMIN, "/api/v1/tasks", 2**20),
        (Role.ADMIN, "/api/v1/tasks/bulk", 2**24),
        (Role.VIEWER, "/api/v1/tasks/bulk", 2**20),
    ],
)
async def test_a_body_fits_what_it_is_for(
    nonet: Nonet, client_of: ClientOf, role: Role, path: str, longest: int
) -> None:
    """One task is at most a message, as JSON writes it; only a bulk of a submitter is longer."""
    assert nonet.settings.message_limit * 4 == 2**20
    async with client_of(role) as client:
        for length in (longest, longest + 1):
            headers = {"Content-Type": "application/json"}
            answer = await client.post(path, content=b"x" * length, headers=headers)
            assert (answer.status_code == 413) == (length > longest), answer.text


async def test_browsers_stay_with_https(nonet: Nonet) -> None:
    """An answer over TLS tells the browser to use nothing else; one over HTTP does not."""
    async with door(nonet, url="https://nonet.example", base="https://nonet.example") as client:
        answer = await client.get("/login")
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
    async with door(nonet) as client:
        assert "strict-transport-security" not in (await client.get("/login")).headers


async def test_a_bearer_that_nobody_checked_hides_no_origin(nonet: Nonet) -> None:
    """An application that knows its users by a cookie does not read the header of a page."""
    app = create_app(nonet, WebSettings.plain(), Fixed(principal()))
    async with visitor(app) as client:
        headers = {"Authorization": "Bearer x", "Origin": "http://evil.example"}
        answer = await client.post("/api/v1/pauses", json={"everything": True}, headers=headers)
        assert answer.status_code == 403
        headers["Origin"] = ORIGIN
        answer = await client.post("/api/v1/pauses", json={"everything": True}, headers=headers)
        assert answer.status_code == 200


@pytest.mark.parametrize("kind", [NonetError, RuntimeError, KeyError, OSError])
@pytest.mark.parametrize("path", ["/queues", "/api/v1/queues"])
async def test_an_unexpected_error_is_not_shown(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], path: str
) -> None:
    """A 500 says to read the log, and nothing of the error."""

    async def fail(*_: Any, **__: Any) -> None:
        raise kind("hunter2")

    async with client_of(Role.ADMIN) as client:
        site = app_of(client).state.site
        monkeypatch.setattr(site.access, "identify", fail)
        async with visitor(app_of(client)) as other:
            answer = await other.get(path)
    assert answer.status_code == 500
    assert "hunter2" not in answer.text and "log" in answer.text


async def test_the_body_reaches_the_route(stranger: AsyncClient) -> None:
    """The guard reads a form for its token, and the route reads all of it again."""
    async with visitor(app_of(stranger)) as other:
        await log_in(stranger, "viewer")
        await log_in(other, "viewer")
        form = {"csrf": await csrf_of(other), "everywhere": "true"}
        await other.post("/logout", data=form, headers=OURS)
    assert (await stranger.get("/account")).status_code == 401


async def test_floods_are_slowed_down(stranger: AsyncClient) -> None:
    """A client that sends too much gets 429 with the time to wait."""
    answers = [await stranger.get("/api/v1/overview") for _ in range(150)]
    assert {answer.status_code for answer in answers} == {401, 429}
    slowed = [answer for answer in answers if answer.status_code == 429]
    assert {answer.headers["retry-after"] for answer in slowed} == {"1"}


@pytest.mark.parametrize("path", ["/jobs/login", "/login"])
async def test_it_works_below_a_path(nonet: Nonet, users: Path, path: str) -> None:
    """With a path in NONET_WEB_URL, whether or not the proxy removes it from requests."""
    url = f"{ORIGIN}/jobs"
    async with door(nonet, users=users, url=url) as client:
        start = await client.get(path.replace("/login", "/tasks?state=dead"), headers=HTML)
        assert start.headers["location"] == "/jobs/login?next=%2Fjobs%2Ftasks%3Fstate%3Ddead"
        assert (await client.get("/jobs", headers=HTML)).status_code == 303
        page = await client.get(path)
        assert 'href="/jobs/static/nonet.css"' in page.text
        assert (await client.get(path.replace("login", "static/nonet.css"))).status_code == 200
        form = {"name": "viewer", "password": "correct horse", "next": "/jobs/account"}
        answer = await client.post(path, data=form, headers=OURS)
        assert answer.headers["location"] == "/jobs/account"
        assert "Path=/jobs;" in answer.headers["set-cookie"]
        assert (await client.get("/jobs/account")).status_code == 200


async def test_it_works_when_mounted(nonet: Nonet, users: Path) -> None:
    """Mounted in another application, it stays below its path."""
    async with door(nonet, users=users) as inner:
        outer = FastAPI()
        outer.mount("/nonet", app_of(inner))
        transport = ASGITransport(outer)
        async with AsyncClient(transport=transport, base_url=ORIGIN) as client:
            answer = await client.get("/nonet/", headers=HTML)
            assert answer.headers["location"] == "/nonet/login?next=%2Fnonet%2F"
            assert (await client.get("/nonet/static/nonet.css")).status_code == 200
            form = {"name": "viewer", "password": "correct horse"}
            await client.post("/nonet/login", data=form, headers=OURS)
            assert (await client.get("/nonet/api/v1/overview")).status_code == 200


async def test_answers_protect_browsers(stranger: AsyncClient) -> None:
    """Pages may run no script but ours, may not be framed, and stay out of caches."""
    headers = (await stranger.get("/login")).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert headers["x-frame-options"] == "DENY" and headers["cache-control"] == "no-store"
