"""What a task declares about locks and limiters, and the lines in which that travels.

Locks are declarations: they hold no connection and do no I/O. The scripts in `stores/scripts`
take all locks of a task or none when the task is fetched, and the watchdog renews them.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from nonet.errors import RegistrationError, suggestion
from nonet.keys import escape

DEFAULT_TTL_MS = 30_000


class LockedObjectType(str):
    """The kind of thing that a lock protects, e.g. ``job`` or ``lfn``.

    Built in are ``TASK``, ``JOB`` and ``TRANSFORMATION``; `register_locked_object_type` adds
    more, which are then attributes of this class.

    >>> LockedObjectType.TASK
    'task'
    """

    __slots__ = ()
    _registered: ClassVar[dict[str, str]] = {}

    TASK: ClassVar[LockedObjectType]
    JOB: ClassVar[LockedObjectType]
    TRANSFORMATION: ClassVar[LockedObjectType]

    def __new__(cls, name: str) -> LockedObjectType:
        if name not in cls._registered:
            raise RegistrationError(
                f"locked object type {name!r} is not registered: "
                f"call register_locked_object_type({name!r}) or add an entry point to "
                f"nonet.lock_object_types.{suggestion(name, cls._registered)}"
            )
        return str.__new__(cls, name)


class _LockedObjectTypeMeta(type(str)):  # type: ignore[misc]  # never used: see __getattr__ below
    """Placeholder removed at import."""


del _LockedObjectTypeMeta
