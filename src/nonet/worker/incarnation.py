"""`Incarnation`: which worker a process is."""

from __future__ import annotations

import logging

from msgspec import Struct

from nonet.base.errors import ConfigurationError
from nonet.base.streams import Size
from nonet.config.settings import Settings
from nonet.rules.taking import left_to_others, unmatched
from nonet.tasks.registry import Registry
from nonet.tasks.task import Isolation

logger = logging.getLogger(__name__)


class Incarnation(Struct, frozen=True):
    """One worker, from its start to its end.

    Attributes:
        id: ``size-nonce``, unique to this process.
        slots: how many attempts run at a time.
        isolation: where all attempts run; None: where their classes say.
        left: the classes that it has loaded and leaves to other workers.
    """

    id: str
    size: Size
    slots: int
    isolation: Isolation | None = None
    left: frozenset[str] = frozenset()

    @property
    def runs_tasks_itself(self) -> bool:
        """Whether tasks run in this process, unless their classes say otherwise."""
        return self.size is Size.SMALL or self.isolation is Isolation.LOOP


def left_by(settings: Settings, registry: Registry) -> frozenset[str]:
    """Return the classes that the settings leave to other workers.

    Raises:
        ConfigurationError: they leave no class to this worker.
    """
    names = [item.name for item in registry]
    left = left_to_others(names, settings.only_tasks, settings.except_tasks)
    if names and len(left) == len(names):
        raise ConfigurationError(
            f"this worker would take no task: its {len(names)} classes, such as {names[0]}, do not "
            "match --only (NONET_ONLY_TASKS), or match --except (NONET_EXCEPT_TASKS). Correct the "
            "patterns, or load other classes with --tasks"
        )
    for pattern in unmatched(names, (*settings.only_tasks, *settings.except_tasks)):
        logger.warning("no class of this worker matches the pattern %s", pattern)
    if left:
        logger.info("classes left to other workers: %s", ", ".join(sorted(left)))
    return left
