"""The dashboard inside of another application of FastAPI."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI, Request
from httpx import AsyncClient
from ports import free_port
from waits import WAIT_SECONDS, until
from web.conftest import principal

from nonet import ConfigurationError, Nonet
from nonet.config.settings import plain_settings
from nonet.contrib.fastapi import lifespan, mount_dashboard
from nonet.rules.permissions import Principal


@pytest.fixture
def outer(redis_url: str, tmp_path: Path) -> FastAPI:
    """An application with a route of its own."""
    settings = plain_settings(redis_url=redis_url, namespace="test", state_dir=tmp_path)
    app = FastAPI(lifespan=lifespan(Nonet(settings, load_tasks=False)))

    @app.get("/own")
    async def own() -> str:
        return "mine"

    return app


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """Serve an application as uvicorn does, with its lifespan; its URL."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None))
    serving = asyncio.create_task(server._serve())  # leaves signals to the test
    await until(lambda: server.started or serving.done(), "it serves")
    assert not serving.done(), serving.result()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


async def by_header(request: Request) -> Principal | None:
    """The user of a request, as the outer application knows it."""
    return principal(name="bob") if request.cookies.get("shop") == "bob" else None


def _behind_a_proxy(app: FastAPI) -> FastAPI:
    app.root_path = "/shop"  # a proxy removes it from the paths of requests
    return app


def _inside(app: FastAPI) -> FastAPI:
    outermost = FastAPI(lifespan=lambda _: app.router.lifespan_context(app))
    outermost.mount("/shop", app)
    return outermost


async def test_pages_work_below_a_path(outer: FastAPI) -> None:
    """This holds for links, scripts and forms; strangers are refused."""
    mount_dashboard(outer, "/admin/jobs", principal=by_header)
    async with served(outer) as url, AsyncClient(base_url=url, timeout=WAIT_SECONDS) as client:
        assert (await client.get("/own")).json() == "mine"
        assert (await client.get("/admin/jobs/api/v1/overview")).status_code == 401
        client.cookies.set("shop", "bob")
        page = (await client.get("/admin/jobs/workers")).text
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page)
        assert "bob" in page and "/admin/jobs/limits" in links
        assert [link for link in links if not link.startswith("/admin/jobs/")] == []
        answer = await client.post(
            "/admin/jobs/workers/drain", data={"names": "none"}, headers={"Origin": url}
        )
        assert (answer.status_code, answer.headers["location"]) == (303, "/admin/jobs/workers")


@pytest.mark.parametrize("wrap", [_behind_a_proxy, _inside])
async def test_links_have_the_path_of_the_application(
    outer: FastAPI, wrap: Callable[[FastAPI], FastAPI]
) -> None:
    """It comes first, whether a proxy has removed it from requests or not."""
    mount_dashboard(outer, principal=by_header)
    app = wrap(outer)
    sent = "" if app is outer else "/shop"
    cookies = {"shop": "bob"}
    async with (
        served(app) as url,
        AsyncClient(base_url=url, cookies=cookies, timeout=WAIT_SECONDS) as client,
    ):
        page = await client.get(f"{sent}/nonet/workers")
        assert page.status_code == 200, page.text
        assert 'href="/shop/nonet/events"' in page.text
        assert (await client.get(f"{sent}/nonet/static/nonet.css")).status_code == 200


async def test_by_default_users_log_in(outer: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """Access is that of task-web, and unknown hosts are refused."""
    monkeypatch.setenv("NONET_WEB_URL", "https://shop.example.org/somewhere/nonet")
    mount_dashboard(outer)
    async with served(outer) as url, AsyncClient(base_url=url, timeout=WAIT_SECONDS) as client:
        page = await client.get("/nonet/workers", headers={"Accept": "text/html"})
        assert page.status_code == 303
        assert page.headers["location"] == "/nonet/login?next=%2Fnonet%2Fworkers"
        login = await client.get("/nonet/login", headers={"Host": "shop.example.org"})
        assert login.status_code == 200
        assert (await client.get("/nonet/", headers={"Host": "evil.example"})).status_code == 421


def test_a_wrong_setting_is_refused(outer: FastAPI) -> None:
    """A mistyped option is an error."""
    with pytest.raises(ConfigurationError, match="readonly"):
        mount_dashboard(outer, readonly=True)
