"""What the tasks of this package lock: kinds of objects, and what may be done to them.

The entry point ``nonet.lock_object_types`` names this module, so that the configuration may limit
these kinds also where no task of ours has been imported.
"""

from __future__ import annotations

from enum import Enum, auto

from nonet import register_locked_object_type

register_locked_object_type("lfn")  # LockedObjectType.LFN; `Lfn` in the configuration
register_locked_object_type("storage_element")  # `StorageElement` in the configuration


class StorageElementAction(Enum):
    """The last part of a limiter's name: the configuration may limit each action by itself.

    A plain member names a lock by its own name, here ``RemoveFile``.
    """

    CreateFile = auto()
    RemoveFile = auto()
