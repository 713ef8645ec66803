"""The pages: one module for each, with its template in `templates`."""

from __future__ import annotations

from importlib import import_module

from fastapi import APIRouter

_PAGES = (
    "overview stream tasks bulk task classes workers locks limits tenants schedules pipelines "
    "delayed groups workflows dead_letters dead_letter quarantine events audit login"
)


def routers() -> list[APIRouter]:
    """Return the routers of all pages."""
    return [import_module(f"nonet.web.pages.{name}").router for name in _PAGES.split()]
