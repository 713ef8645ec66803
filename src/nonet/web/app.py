"""The ASGI application of the dashboard and the API."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp

from nonet.app import Nonet
from nonet.config.web_settings import WebSettings
from nonet.web import components, error_responses as failures, exports, login_pages, openapi
from nonet.web.access.access import Access
from nonet.web.access.login import Login
from nonet.web.guard import Below, Guard
from nonet.web.measured import Measured, Requests
from nonet.web.namespaces import Namespaces
from nonet.web.resources import resources
from nonet.web.site import Site

_STATIC = Path(__file__).parent / "static"


def create_app(
    nonet: Nonet,
    settings: WebSettings,
    access: Access | None = None,
    namespaces: Sequence[str] = (),
    requests: Requests | None = None,
) -> FastAPI:
    """Create the application. `nonet` must be open while it answers.

    Args:
        nonet: the application of the namespace.
        settings: the settings of the dashboard.
        access: finds out who sends a request; None: as `settings` say.
        namespaces: those of all sites of this server; the first is at the root.
        requests: where all sites of this server count their requests.

    Raises:
        ConfigurationError: the file of users is invalid.
    """
    base = urlsplit(settings.url).path.rstrip("/")
    app = FastAPI(title="Nonet", docs_url=None, redoc_url=None, openapi_url=None)
    access, requests = access or Login(nonet, settings), requests or Requests()
    app.state.site = site = Site(nonet, settings, access, namespaces, requests=requests)
    app.add_middleware(Guard)
    app.add_middleware(Measured, requests=site.requests)
    app.add_middleware(Below, base=base)  # the last one is the outermost
    failures.install(app)
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    # `include_router` would make each route again on the first request of each application.
    for router in routers():
        app.router.routes.extend(router.routes)
    return app


def routers() -> list[APIRouter]:
    """Return the routers of all pages, then those of the API.

    Pages come first: some have the name of a function of the API, and `url` finds the first route.
    Files of lists come next: the ids of the API match any path.
    """
    nouns = list(resources())
    pages, api = [noun.pages for noun in nouns], [noun.api for noun in nouns]
    return [*pages, login_pages.router, components.router, exports.router(), *api, openapi.router]


def create_sites(
    applications: Sequence[Nonet], settings: WebSettings, access: Access | None = None
) -> tuple[ASGIApp, list[Site]]:
    """Create the application of several namespaces, and return it with its sites.

    A login is for all of them: its sessions are in the first namespace.

    Args:
        applications: one of each namespace; the first is at the root.
        settings, access: as of `create_app`.
    """
    names = [one.settings.namespace for one in applications]
    several = names if len(names) > 1 else ()
    access = access or Login(applications[0], settings)
    requests = Requests()
    apps = [create_app(one, settings, access, several, requests) for one in applications]
    sites: list[Site] = [app.state.site for app in apps]
    base = urlsplit(settings.url).path.rstrip("/")
    found = Namespaces(dict(zip(names, apps, strict=True)), base) if several else apps[0]
    return found, sites
