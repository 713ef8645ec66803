"""Overflow hooks: functions that start workers on your platform when there are too few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from nonet.base.errors import RegistrationError
from nonet.tasks.entry_points import entries, load


@dataclass(frozen=True, slots=True)
class Overflow:
    """A shortage of workers of one size.

    Attributes:
        size: small, medium or large.
        missing: how many more workers the runnable tasks would fill.
        desired: how many workers they would fill in total.

    Example:
        def start(overflow: Overflow) -> None:  # NONET_ON_OVERFLOW=mypackage.scaling:start
            print(f"start {overflow.missing} workers of size {overflow.size}")
    """

    size: str
    missing: int
    desired: int


Hook = Callable[[Overflow], Any]


def overflow_hooks(setting: str, prefixes: Iterable[str] = ("nonet",)) -> dict[str, Hook]:
    """All overflow hooks by name: first the setting, then the entry points.

    Args:
        setting: ``module:function``, or empty.
        prefixes: prefixes of the entry point groups ``<prefix>.overflow``.

    Raises:
        RegistrationError: a hook cannot be imported or is not callable.
    """
    found: dict[str, Hook] = {}
    if setting:
        found[setting] = _checked(EntryPoint("NONET_ON_OVERFLOW", setting, "the settings"))
    for entry in entries(prefixes, "overflow"):
        found[f"{entry.group} {entry.name}"] = _checked(entry)
    return found


def _checked(entry: EntryPoint) -> Hook:
    hook: Hook = load(entry, entry.name)
    if not callable(hook):
        raise RegistrationError(
            f"{entry.name}: {entry.value} is not a function; name one that takes an Overflow"
        )
    return hook
