"""The sites of several namespaces below one address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from httpx import URL, AsyncClient
from web.conftest import Fixed, asking, principal

from nonet import Nonet
from nonet.config.web_settings import WebSettings
from nonet.rules.permissions import Principal, Role
from nonet.web.app import create_sites


@pytest.fixture
async def applications(redis_url: str, tmp_path: Path) -> AsyncIterator[list[Nonet]]:
    options = {"redis_url": redis_url, "state_dir": tmp_path, "tasks": ("web_tasks",)}
    a = Nonet.from_settings(namespace="a", **options)
    async with a, Nonet.from_settings(namespace="main", **options) as main:
        yield [main, a]


@pytest.fixture(params=["", "/jobs"])
def settings(request: pytest.FixtureRequest) -> WebSettings:
    return WebSettings.plain(url=request.param and f"http://127.0.0.1{request.param}")


@pytest.fixture
async def client(applications: list[Nonet], settings: WebSettings) -> AsyncIterator[AsyncClient]:
    served, _ = create_sites(applications, settings, Fixed(principal()))
    async with asking(served) as client:
        yield client


async def test_each_namespace_has_its_pages_and_its_api(
    client: AsyncClient, applications: list[Nonet], settings: WebSettings
) -> None:
    """The first is at the root; a page links to those of the others."""
    base = URL(settings.url).path.rstrip("/") if settings.url else ""
    await applications[1].stores.events.log("pause", "ann", "only in a")
    for path, own in ((f"{base}/", "main"), (f"{base}/in/a/", "a")):
        page = await client.get(path)
        assert page.status_code == 200
        assert f"· {own}</title>" in page.text
        assert f'<a class="namespace" href="{base}/"' in page.text
        assert f'<a class="namespace" href="{base}/in/a/"' in page.text
        assert f'href="{path}tasks' in page.text
        events = (await client.get(f"{path}api/v1/events")).json()
        assert ("only in a" in str(events)) == (own == "a")
    answer = await client.get(f"{base}/in/a")
    assert answer.headers["location"] == f"{base}/in/a/"
    assert (await client.get(f"{base}/in/nobody/")).status_code == 404


@pytest.mark.parametrize("path", ["", "tasks", "api/v1/tasks", "account"])
async def test_a_role_holds_in_its_namespaces(applications: list[Nonet], path: str) -> None:
    """A principal of some namespaces enters no other one, and finds no link to it."""
    who = Principal("alice", Role.ADMIN, namespaces=("a",))
    served, _ = create_sites(applications, WebSettings.plain(), Fixed(who))
    async with asking(served) as client:
        refused = await client.get(f"/{path}")
        assert refused.status_code == 403 and "alice may enter a, but not main" in refused.text
        page = await client.get(f"/in/a/{path}")
        assert page.status_code == 200 and 'class="namespace" href="/"' not in page.text
