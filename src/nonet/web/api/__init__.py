"""The REST API: one module for each kind of thing."""

from __future__ import annotations

from fastapi import APIRouter


def routers() -> list[APIRouter]:
    """Return the routers of all resources, below ``/api/v1``."""
    from nonet.web.api import live, overview, workers

    return [live.router, overview.router, workers.router]
