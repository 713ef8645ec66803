"""The pages: one module for each, with its template in `templates`."""

from __future__ import annotations

from importlib import import_module

from fastapi import APIRouter

from nonet.web.resources import resources

_PAGES = "bulk task classes login"


def routers() -> list[APIRouter]:
    """Return the routers of all pages."""
    moved = [resource.pages for resource in resources()]
    return [*moved, *(import_module(f"nonet.web.pages.{name}").router for name in _PAGES.split())]
