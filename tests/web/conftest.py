"""A dashboard with its API on a real Redis, a client of it, and a browser that opens it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from httpx import ASGITransport, AsyncClient
from playwright.async_api import Page, async_playwright, expect
from ports import free_port
from sharing import shared
from starlette.types import ASGIApp
from waits import WAIT_SECONDS, Found, until

from nonet import Isolation, Nonet, Size
from nonet.config.web_settings import WebSettings
from nonet.daemon.service import ExitCode, Stop
from nonet.operate import overview
from nonet.rules.permissions import Principal, Role
from nonet.web.access.passwords import PasswordHash
from nonet.web.app import create_app
from nonet.web.resources.dead_letters import letters
from nonet.web.server import Server

_CHROMIUM = "/usr/bin/chromium"
expect.set_options(timeout=WAIT_SECONDS * 1000)
PASSWORD = "correct horse"
_hash: Callable[[], PasswordHash] = cache(lambda: _weak_hash(PASSWORD))


async def eventually(condition: Callable[[], Awaitable[Found]], claim: str) -> Found:
    """`waits.until` for a condition that is awaited: its value as soon as that is true."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := await condition()):
        assert time.monotonic() < deadline, f"it is still not true that {claim}"
        await asyncio.sleep(0.02)
    return found


async def in_state(nonet: Nonet, id: str, state: str) -> None:
    """Wait until a task is in a state."""

    async def is_there() -> bool:
        return (await nonet.status(id)).state == state

    await eventually(is_there, f"{id} is {state}")


def _weak_hash(password: str) -> PasswordHash:
    """A hash with the weakest valid parameters: a login with the default ones takes 0.2 s."""
    n, r, p, salt = 2**14, 1, 1, b"of all tests"
    value = hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, dklen=32)
    return PasswordHash(n, r, p, salt, value)


class Fixed:
    """Takes every request as one principal's."""

    def __init__(self, who: Principal) -> None:
        self._who = who

    async def identify(self, request: Request) -> Principal | None:
        """See `nonet.web.access.access.Access`."""
        return self._who


def principal(role: Role = Role.ADMIN, name: str = "alice") -> Principal:
    """A principal with a role."""
    return Principal(name, role)


@pytest.fixture(autouse=True)
def patience_with_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages give up SQL that hangs. Here it does not hang: the machine is busy."""
    monkeypatch.setattr(letters, "_ANSWER_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr(overview, "_SQL_SECONDS", WAIT_SECONDS)


@pytest.fixture
async def nonet(redis_url: str, tmp_path: Path) -> AsyncIterator[Nonet]:
    """An open application of the empty namespace ``test``, whose SQL is a file."""
    async with Nonet.from_settings(
        redis_url=redis_url, namespace="test", state_dir=tmp_path, tasks=("web_tasks",)
    ) as opened:
        yield opened


def asking(app: ASGIApp) -> AsyncClient:
    """A client of an application in this loop."""
    return AsyncClient(transport=ASGITransport(app), base_url="http://127.0.0.1")


ClientOf = Callable[[Role | Principal], AbstractAsyncContextManager[AsyncClient]]


@pytest.fixture
def client_of(nonet: Nonet) -> ClientOf:
    """A client of the API for a principal, or one with a role, which needs no login."""

    @asynccontextmanager
    async def opened(who: Role | Principal) -> AsyncIterator[AsyncClient]:
        caller = who if isinstance(who, Principal) else principal(who)
        async with asking(create_app(nonet, WebSettings.plain(), Fixed(caller))) as client:
            yield client

    return opened


@pytest.fixture
async def client(client_of: ClientOf) -> AsyncIterator[AsyncClient]:
    """A client of the API that is an admin and needs no login."""
    async with client_of(Role.ADMIN) as opened:
        yield opened


@asynccontextmanager
async def serving(app: FastAPI, settings: WebSettings) -> AsyncIterator[str]:
    """Serve `app` in this loop, and give its address."""
    stop = Stop()
    server = Server(app, settings, [app.state.site])
    running = asyncio.create_task(server.run(stop))
    await until(lambda: server.is_ready or running.done(), "the dashboard is served")
    assert server.is_ready, running.result()
    try:
        yield f"http://127.0.0.1:{settings.port}"
    finally:
        stop.request()
        await running


@asynccontextmanager
async def working(
    nonet: Nonet, size: Size = Size.SMALL, concurrency: int | None = None
) -> AsyncIterator[asyncio.Task[ExitCode]]:
    """A registered worker in this loop; gives the task that ends with its exit code."""
    stop = Stop()
    async with nonet.injector() as injector:
        worker = nonet.worker(size, injector, concurrency=concurrency, isolation=Isolation.LOOP)
        running = asyncio.create_task(worker.run(stop))

        async def is_registered() -> bool:
            return worker.id in [item.worker for item in await nonet.stores.results.workers()]

        await eventually(is_registered, "the worker is registered")
        try:
            yield running
        finally:
            stop.request()
            await running


@pytest.fixture
async def address(nonet: Nonet) -> AsyncIterator[str]:
    """The address of a dashboard whose every request is an admin's."""
    settings = WebSettings.plain(port=free_port())
    async with serving(create_app(nonet, settings, Fixed(principal())), settings) as url:
        yield url


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one browser for all tests, whose loop is in a thread of its own."""
    # Each test starts the driver of Playwright, which Node compiles a third faster so.
    os.environ["NODE_COMPILE_CACHE"] = str(shared(tmp_path_factory, "node", Path.mkdir))
    port, is_ready, is_over = free_port(), threading.Event(), threading.Event()

    async def run() -> None:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=_CHROMIUM,
                # A container has no user namespaces for the sandbox of the browser.
                args=[f"--remote-debugging-port={port}", "--no-sandbox", "--disable-dev-shm-usage"],
            )
            is_ready.set()
            await asyncio.to_thread(is_over.wait)
            await browser.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert is_ready.wait(WAIT_SECONDS)
    yield f"http://127.0.0.1:{port}"
    is_over.set()
    thread.join()


@asynccontextmanager
async def browsing(chromium: str, expected: str = "nothing", **look: Any) -> AsyncIterator[Page]:
    """A page of the browser, whose console must stay free of errors but for `expected` ones.

    Args:
        chromium: the address of the browser.
        look: options of the page, such as ``color_scheme``.
    """
    problems: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(chromium)
        opened = await browser.new_page(**look)
        opened.set_default_timeout(WAIT_SECONDS * 1000)
        opened.on("console", lambda line: problems.append(line.text) if line.type == "error" else 0)
        opened.on("pageerror", lambda error: problems.append(str(error)))
        yield opened
        await opened.close()
        await browser.close()
    assert [line for line in problems if expected not in line] == []


@pytest.fixture
async def page(chromium: str) -> AsyncIterator[Page]:
    """A page of the browser."""
    async with browsing(chromium) as opened:
        yield opened


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """A file with a user of each role, who has the name of the role and `PASSWORD`."""
    file = tmp_path / "users.yaml"
    lines = [f'  - {{name: {role}, role: {role}, password: "{_hash()}"}}' for role in Role]
    file.write_text("\n".join(["users:", *lines, ""]))
    file.chmod(0o600)
    return file


@pytest.fixture
async def login_address(nonet: Nonet, users: Path) -> AsyncIterator[str]:
    """The address of a dashboard that asks for a login, with the users of `users`."""
    settings = WebSettings.plain(port=free_port(), users=users)
    async with serving(create_app(nonet, settings), settings) as url:
        yield url


LoggedInPage = Callable[[Role], Awaitable[Page]]


@pytest.fixture
def logged_in_page(login_address: str, page: Page) -> LoggedInPage:
    """Call it with a role: the browser is then logged in, and shows the overview."""

    async def opened(role: Role) -> Page:
        await page.goto(login_address)
        await page.get_by_label("Name").fill(role)
        await page.get_by_label("Password").fill(PASSWORD)
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url(f"{login_address}/")
        return page

    return opened
