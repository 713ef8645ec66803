"""The types of objects that this package locks, and the actions on them.

The entry point ``nonet.lock_object_types`` names this module, so the configuration may limit these
types even in processes that import no task of this package.
"""

from __future__ import annotations

from enum import Enum, auto

from nonet import register_locked_object_type

register_locked_object_type("lfn")  # LockedObjectType.LFN; `Lfn` in the configuration
register_locked_object_type("storage_element")  # `StorageElement` in the configuration


class StorageElementAction(Enum):
    """The last part of a limiter's name; the configuration can limit each action.

    The name of a plain member is used as it is, here ``RemoveFile``.
    """

    CreateFile = auto()
    RemoveFile = auto()
