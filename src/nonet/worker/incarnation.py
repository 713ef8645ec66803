"""`Incarnation`: which worker a process is."""

from __future__ import annotations

from msgspec import Struct

from nonet.base.streams import Size
from nonet.tasks.task import Isolation


class Incarnation(Struct, frozen=True):
    """One worker, from its start to its end.

    Attributes:
        id: ``size-nonce``, unique to this process.
        slots: how many attempts run at a time.
        isolation: where all attempts run; None: where their classes say.
    """

    id: str
    size: Size
    slots: int
    isolation: Isolation | None = None

    @property
    def runs_tasks_itself(self) -> bool:
        """Whether tasks run in this process, unless their classes say otherwise."""
        return self.size is Size.SMALL or self.isolation is Isolation.LOOP
