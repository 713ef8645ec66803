"""Load the task classes that the settings name."""

from __future__ import annotations

from nonet.config.settings import Settings
from nonet.tasks.injection import load_entry_points
from nonet.tasks.registry import Registry


def load_registry(settings: Settings) -> Registry:
    """Load the classes and dependencies of the entry points and of ``NONET_TASKS``."""
    registry = Registry(settings.extensions)
    registry.add_entry_points(settings.groups)
    for module in settings.tasks:
        registry.add_module(module)
    load_entry_points(settings.groups)
    return registry
