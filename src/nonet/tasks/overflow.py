"""Overflow hooks: what a platform is told when workers are missing, so that it starts some."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from nonet.base.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Overflow:
    """Workers of a size are missing.

    Attributes:
        size: small, medium or large.
        missing: how many more would run all at once that can run now.
        desired: how many that would be in all.

    Example:
        def start(overflow: Overflow) -> None:  # NONET_ON_OVERFLOW=mypackage.scaling:start
            print(f"start {overflow.missing} workers of size {overflow.size}")
    """

    size: str
    missing: int
    desired: int


Hook = Callable[[Overflow], Any]


def overflow_hooks(setting: str, prefixes: Iterable[str] = ("nonet",)) -> dict[str, Hook]:
    """All overflow hooks by name: that of the setting, then those of the entry points.

    Args:
        setting: ``module:function``, or empty.
        prefixes: of the groups of entry points, ``<prefix>.overflow``.

    Raises:
        ConfigurationError: one cannot be imported, or called.
    """
    found: dict[str, Hook] = {}
    if setting:
        found[setting] = _load(setting, "NONET_ON_OVERFLOW", lambda: _named(setting))
    for prefix in prefixes:
        group = importlib.metadata.entry_points(group=f"{prefix}.overflow")
        for entry in sorted(group, key=lambda item: item.name):
            name = f"{prefix}.overflow {entry.name}"
            found[name] = _load(entry.value, f"entry point {name}", entry.load)
    return found


def _load(value: str, where: str, load: Callable[[], Any]) -> Hook:
    try:
        hook: Hook = load()
    except Exception as error:  # somebody's module may raise anything
        problem = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{where}: {value} cannot be loaded: {problem}") from error
    if not callable(hook):
        raise ConfigurationError(
            f"{where}: {value} is no function; name one that takes an Overflow"
        )
    return hook


def _named(value: str) -> Any:
    module, _, path = value.partition(":")
    return reduce(getattr, path.split("."), importlib.import_module(module))
