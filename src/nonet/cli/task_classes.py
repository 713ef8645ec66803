"""Check names of task classes on the command line, with hints for typos."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nonet.base.errors import NonetError, suggestion
from nonet.cli.process import warn

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.config.settings import Settings
    from nonet.tasks.registry import Registry


def registry_here(nonet: Nonet) -> Registry:
    """Return the task classes of this process, for hints; empty if they cannot be loaded."""
    if any(nonet.registry):
        return nonet.registry
    try:
        return loaded(nonet.settings)
    except NonetError:  # commands that only read Redis work without the modules
        return nonet.registry


def loaded(settings: Settings) -> Registry:
    """Load the task classes of this process; raises as `load_registry`."""
    from nonet.config.task_loading import load_registry  # many commands need no classes

    return load_registry(settings)


def names_of(task: str) -> tuple[str, str]:
    """Return the full name of a task class, and its bare name."""
    return task, task.rpartition(":")[2]


def unknown_here(nonet: Nonet, name: str) -> tuple[str, str] | None:
    """Describe a class name that this process does not know, with a suggestion.

    None if the name is known, or if no classes are loaded to compare it with.
    """
    known = {item.name for item in registry_here(nonet)}
    if not known or name in {part for item in known for part in names_of(item)}:
        return None
    return f"task class {name!r} is not registered here", suggestion(name, known)


def warn_of_unknown(nonet: Nonet, names: Iterable[str]) -> None:
    """Warn of names that match no class, because a typo would look like an empty result."""
    for name in names:
        if (unknown := unknown_here(nonet, name)) is not None:
            warn(unknown[0] + "." + unknown[1])
