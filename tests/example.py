"""config.example.yaml, and the tasks that it configures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nonet.tasks.locks import LockedObjectType

EXAMPLE = Path(__file__).parents[1] / "config.example.yaml"
TASKS = "example_tasks"


@contextmanager
def example_tasks() -> Iterator[str]:
    """The module may be loaded in this process meanwhile: what it registers is taken back."""
    yield TASKS
    if sys.modules.pop(TASKS, None) is not None:
        del LockedObjectType._places["storage_element"]
        del LockedObjectType.STORAGE_ELEMENT
