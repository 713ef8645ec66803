"""The REST API: one module for each kind of thing."""

from __future__ import annotations

from importlib import import_module

from fastapi import APIRouter

from nonet.web.resources import resources

_RESOURCES = "submitting revealing tasks openapi"


def routers() -> list[APIRouter]:
    """Return the routers of all resources, below ``/api/v1``."""
    moved = [resource.api for resource in resources()]
    others = [import_module(f"nonet.web.api.{name}").router for name in _RESOURCES.split()]
    return [*moved, *others]
