"""Clients of a dashboard that asks for a login, and how they log in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response
from web.conftest import PASSWORD

from nonet import Nonet
from nonet.config.web_settings import WebSettings
from nonet.stores.namespace.sessions import Sessions
from nonet.web.app import create_app

ORIGIN = "http://127.0.0.1:8800"
HTML = {"Accept": "text/html"}
OURS = {"Origin": ORIGIN}


@asynccontextmanager
async def door(
    nonet: Nonet, *, peer: str = "127.0.0.1", base: str = ORIGIN, **settings: Any
) -> AsyncIterator[AsyncClient]:
    """A client of a new dashboard with these settings, at an address."""
    async with visitor(create_app(nonet, WebSettings.plain(**settings)), peer, base) as client:
        yield client


@asynccontextmanager
async def visitor(
    app: FastAPI, peer: str = "127.0.0.1", base: str = ORIGIN
) -> AsyncIterator[AsyncClient]:
    """A further client of a dashboard."""
    transport = ASGITransport(app, client=(peer, 50_000))
    async with AsyncClient(transport=transport, base_url=base) as client:
        yield client


async def log_in(client: AsyncClient, name: str, **fields: str) -> Response:
    """Log in by the form."""
    form = {"name": name, "password": PASSWORD, **fields}
    return await client.post("/login", data=form, headers=OURS)


async def csrf_of(client: AsyncClient) -> str:
    """The token of the forms of a client that is logged in."""
    page = (await client.get("/account")).text
    found = re.search(r'name="csrf" value="(\w+)"', page)
    assert found, page
    return found[1]


def stored_of(client: AsyncClient) -> Sessions:
    """The logins of the dashboard of a client, as it keeps them in Redis."""
    found: Sessions = app_of(client).state.site.access.browsers.stored
    return found


def app_of(client: AsyncClient) -> FastAPI:
    """The dashboard of a client."""
    app: FastAPI = client._transport.app  # type: ignore[attr-defined]
    return app
