"""The ASGI application of the dashboard and the API."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from nonet.app import Nonet
from nonet.config.web_settings import WebSettings
from nonet.web import failures
from nonet.web.access.access import Access
from nonet.web.access.guard import Below, Guard
from nonet.web.access.login import Login
from nonet.web.api import routers as api_routers
from nonet.web.measured import Measured
from nonet.web.pages import routers as page_routers
from nonet.web.site import Site

_STATIC = Path(__file__).parent / "static"


def create_app(nonet: Nonet, settings: WebSettings, access: Access | None = None) -> FastAPI:
    """Create the application. `nonet` must be open while it answers.

    Args:
        nonet: the application of the namespace.
        settings: the settings of the dashboard.
        access: finds out who sends a request; None: as `settings` say.

    Raises:
        ConfigurationError: the file of users is invalid.
    """
    base = urlsplit(settings.url).path.rstrip("/")
    app = FastAPI(title="Nonet", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.site = site = Site(nonet, settings, access or Login(nonet, settings))
    app.add_middleware(Guard)
    app.add_middleware(Measured, requests=site.requests)
    app.add_middleware(Below, base=base)  # the last one is the outermost
    failures.install(app)
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    # Pages first: some have the name of a function of the API, and `url` finds the first route.
    for router in (*page_routers(), *api_routers()):
        app.include_router(router)
    return app
