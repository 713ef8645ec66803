"""The pages: one module for each, with its template in `templates`."""

from __future__ import annotations

from fastapi import APIRouter


def routers() -> list[APIRouter]:
    """Return the routers of all pages."""
    from nonet.web.pages import delayed, limits, locks, overview, schedules, workers

    return [
        overview.router,
        workers.router,
        locks.router,
        limits.router,
        schedules.router,
        delayed.router,
    ]
