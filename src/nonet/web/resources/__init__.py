"""One module for each noun: its routes of the API (`api`) and its pages (`pages`)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def resources() -> Iterator[Any]:
    """Yield the modules of all nouns."""
    for found in iter_modules(__path__):
        yield import_module(f"{__name__}.{found.name}")
