"""One module for each noun: its routes of the API (`api`) and its pages (`pages`)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

_NOUNS = "dead_letters limits workflows"


def resources() -> Iterator[Any]:
    """Yield the modules of all nouns."""
    for name in _NOUNS.split():
        yield import_module(f"nonet.web.resources.{name}")
