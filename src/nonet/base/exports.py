"""Public names that are imported on their first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def imported_on_use(
    module: str, homes: Mapping[str, str], within: str = "nonet."
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a module.

    Args:
        module: its ``__name__``.
        homes: names, separated by spaces, by the module that defines them.
        within: prefix of the module names.
    """
    home = {name: f"{within}{place}" for place, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    public = sorted(name for name in home if not name.startswith("_"))
    return public, find, lambda: sorted({*vars(sys.modules[module]), *home})
