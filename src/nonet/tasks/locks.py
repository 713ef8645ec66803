"""What a task declares about locks and limiters, and the lines in which that travels.

Locks are declarations: they hold no connection and do no I/O. The scripts in `stores/scripts`
take all locks of a task or none when the task is fetched; the watchdog renews them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any, ClassVar
from uuid import UUID

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from nonet.base.errors import RegistrationError, suggestion
from nonet.base.keys import escape

DEFAULT_TTL_MS = 30_000
# Beyond any sensible lease or window, and far below what Redis refuses as an expiry.
_MOST_TTL_MS = 2**31 - 1
MOST_ITEMS = 2**31 - 1
LEAST_WINDOW_SECONDS = 0.001
MOST_WINDOW_SECONDS = 366 * 24 * 3600
# Whose text is the same in every process. That of other objects often is their address, and a lock
# named by it would protect nothing. (A datetime is a date.)
_NAMING = (str, int, float, UUID, Enum, PurePath, Decimal, date)


class _NamesTypes(type):
    """Turns ``LockedObjectType.LNF`` into an error that names the registered types."""

    def __getattr__(cls, name: str) -> LockedObjectType:
        if name.startswith("_"):
            raise AttributeError(name)
        known = ", ".join(sorted(item.upper() for item in LockedObjectType.registered()))
        raise AttributeError(
            f"locked object type {name} is not registered (known: {known}): "
            f"call register_locked_object_type({name.lower()!r})"
        )


class LockedObjectType(str, metaclass=_NamesTypes):
    """The kind of thing that a lock protects, e.g. ``job`` or ``lfn``.

    Built in are ``TASK``, ``JOB`` and ``TRANSFORMATION``; `register_locked_object_type` adds
    more, which are then attributes of this class.

    Example:
        >>> LockedObjectType.TASK
        'task'
    """

    __slots__ = ()
    _places: ClassVar[dict[str, str]] = {}

    def __new__(cls, name: str) -> LockedObjectType:
        if not isinstance(name, str):
            raise RegistrationError(
                f"locked object type {name!r:.100}: give a LockedObjectType, such as "
                "LockedObjectType.JOB, or the name of one"
            )
        if name not in cls._places:
            raise RegistrationError(
                f"locked object type {name!r} is not registered: call "
                f"register_locked_object_type({name!r}).{suggestion(name, cls._places)}"
            )
        return str.__new__(cls, name)

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        """For pydantic it is a text; that of no registered type is refused."""
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())

    @classmethod
    def registered(cls) -> dict[str, str]:
        """Every registered name and the place of its registration."""
        return dict(cls._places)


def register_locked_object_type(name: str) -> LockedObjectType:
    """Register a kind of object that locks may protect.

    Args:
        name: lower-case identifier, e.g. ``"lfn"``; becomes ``LockedObjectType.LFN``.

    Returns:
        The type, which ``LockedObjectType.LFN`` gives from now on, too.

    Raises:
        RegistrationError: the name is no lower-case identifier, or is taken (both places are
            named). It is a ``ValueError`` too.

    Example:
        DATASET = register_locked_object_type("dataset")
        lock = MutexLock(LockedObjectType.DATASET, "2026-07")
    """
    frame = sys._getframe(1)
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if not isinstance(name, str) or not name.isidentifier() or name != name.lower():
        raise RegistrationError(f"locked object type {name!r} must be a lower-case identifier")
    if name in LockedObjectType._places:
        raise RegistrationError(
            f"locked object type {name!r} is registered twice: at "
            f"{LockedObjectType._places[name]} and at {place}"
        )
    LockedObjectType._places[name] = place
    made = LockedObjectType(name)
    setattr(LockedObjectType, name.upper(), made)
    return made


TASK = register_locked_object_type("task")
JOB = register_locked_object_type("job")
TRANSFORMATION = register_locked_object_type("transformation")


class BaseLock:
    """Base of locks and limiters: one named thing and how it is held.

    Args:
        obj: kind of the object, a registered `LockedObjectType` (or its name).
        key: which object: text, a number, ``UUID``, enum, path, ``Decimal``, ``date`` or
            ``datetime``; its text is the name. Of an enum that is neither text nor a whole number
            its name is.
        extra_keys: further parts of the name, e.g. an action.
        ttl_ms: how long the lock outlives a dead holder, in milliseconds, 24 days at most. The
            default follows the process setting ``NONET_LOCK_TTL``.

    Raises:
        RegistrationError: there is no such kind of object.
        ValueError: a key is of another type, or the TTL does not fit.

    Example:
        lock: BaseLock = MutexLock(LockedObjectType.JOB, 7, "output", ttl_ms=60_000)
        assert lock.redis_key == "lock:mutex:job:7:output"
    """

    kind: ClassVar[str]
    _prefix: ClassVar[str]

    def __init__(
        self,
        obj: LockedObjectType | str,
        key: object,
        *extra_keys: object,
        ttl_ms: int = DEFAULT_TTL_MS,
    ) -> None:
        # The scripts read whole numbers; a line with another would not be seen as a lock.
        if not _is_whole(ttl_ms) or not 100 <= ttl_ms <= _MOST_TTL_MS:
            raise ValueError(
                f"{type(self).__name__}: ttl_ms={ttl_ms!r} must be a whole number, 100 at least "
                f"and {_MOST_TTL_MS} (24 days) at most"
            )
        for part in (key, *extra_keys):
            if not isinstance(part, _NAMING):
                raise ValueError(
                    f"{type(self).__name__}: a key of type {type(part).__qualname__} cannot name a "
                    "lock; give text, a number, UUID, enum, path, Decimal or date that means the "
                    "same in every process"
                )
        self.obj: LockedObjectType = LockedObjectType(obj)
        self.key = key
        self.extra_keys = extra_keys
        self.ttl_ms = ttl_ms

    @property
    def redis_key(self) -> str:
        """Name of the lock in Redis, without the namespace; parts are percent-encoded."""
        parts = (self.obj, self.key, *self.extra_keys)
        return f"{self._prefix}:{':'.join(escape(_plain(part)) for part in parts)}"

    def line(self) -> str:
        """For the framework: ``kind|name|ttl|limit|window|items``; empty parts have defaults."""
        return _line(self.kind, self.redis_key, self.ttl_ms, "", "", "")

    def __repr__(self) -> str:
        keys = ", ".join(map(repr, (self.key, *self.extra_keys)))
        return f"{type(self).__name__}({str(self.obj)!r}, {keys})"


class MutexLock(BaseLock):
    """At most one holder. A mutex and a reader/writer lock on one object are different locks.

    Its arguments are those of `BaseLock`.

    Example:
        MutexLock(LockedObjectType.JOB, 7)
    """

    kind = "M"
    _prefix = "lock:mutex"


class ExclusiveRWLock(BaseLock):
    """The writer's side of a reader/writer lock: no other writer, no reader.

    Its arguments are those of `BaseLock`.

    Example:
        ExclusiveRWLock(LockedObjectType.TRANSFORMATION, 12345)
    """

    kind = "W"
    _prefix = "lock:rw"


class SharedRWLock(BaseLock):
    """The reader's side of a reader/writer lock: any number of readers, no writer.

    Its arguments are those of `BaseLock`.

    Example:
        SharedRWLock(LockedObjectType.TRANSFORMATION, 12345)
    """

    kind = "R"
    _prefix = "lock:rw"


class BaseLimiter(BaseLock):
    """Base of limiters, which protect others from load and are skipped when interactive.

    Attributes:
        limit: how much it allows, 1 at least, of the class or of the instance. None, the default,
            leaves it to the configuration; what that does not limit is off. A configured limit
            wins.

    Example:
        class Downloads(ConcurrencyLimiter):
            limit = 10
    """

    limit: int | None = None

    def _checked_limit(self) -> int | None:
        if self.limit is not None and not (_is_whole(self.limit) and self.limit >= 1):
            raise ValueError(f"{self!r}: limit={self.limit!r} must be a whole number, 1 at least")
        return self.limit


class RateLimiter(BaseLimiter):
    """At most `limit` items in any window of `window_seconds` (a true sliding window).

    Its first arguments are those of `BaseLock`.

    Args:
        n_items: what one execution counts for, 1 at least.
        limit: items in a window; overrides the class attribute of the same name.
        window_seconds: 0.001 s to 366 days; overrides the class attribute of the same name.

    Example:
        RateLimiter(LockedObjectType.STORAGE_ELEMENT, "CERN-DST", limit=10, window_seconds=60)
    """

    kind = "L"
    _prefix = "limiter:rate"
    window_seconds: float | None = None

    def __init__(
        self,
        obj: LockedObjectType | str,
        key: object,
        *extra_keys: object,
        ttl_ms: int = DEFAULT_TTL_MS,
        n_items: int = 1,
        limit: int | None = None,
        window_seconds: float | None = None,
    ) -> None:
        super().__init__(obj, key, *extra_keys, ttl_ms=ttl_ms)
        self.n_items = n_items
        if limit is not None:
            self.limit: int | None = limit
        if window_seconds is not None:
            self.window_seconds = window_seconds

    def line(self) -> str:
        """For the framework; see `BaseLock.line`."""
        limit = self._checked_limit()
        if not (_is_whole(self.n_items) and 1 <= self.n_items <= MOST_ITEMS):
            raise ValueError(
                f"{self!r}: n_items={self.n_items!r} must be a whole number, 1 at least"
            )
        if limit is None:
            return _line(self.kind, self.redis_key, self.ttl_ms, "", "", self.n_items)
        if self.window_seconds is None:
            raise ValueError(f"{self!r}: limit={limit} needs window_seconds")
        is_number = isinstance(self.window_seconds, int | float)
        if not is_number or not LEAST_WINDOW_SECONDS <= self.window_seconds <= MOST_WINDOW_SECONDS:
            raise ValueError(
                f"{self!r}: window_seconds={self.window_seconds!r} must be a number, at least "
                f"{LEAST_WINDOW_SECONDS} and {MOST_WINDOW_SECONDS} (366 days) at most"
            )
        window_ms = round(self.window_seconds * 1000)
        return _line(self.kind, self.redis_key, self.ttl_ms, limit, window_ms, self.n_items)


class ConcurrencyLimiter(BaseLimiter):
    """At most `limit` executions at a time; a dead holder's slot returns after the TTL.

    Its first arguments are those of `BaseLock`.

    Args:
        limit: executions at a time; overrides the class attribute of the same name.

    Example:
        ConcurrencyLimiter(LockedObjectType.JOB, 7, "RemoveFile", limit=5)
    """

    kind = "C"
    _prefix = "limiter:conc"

    def __init__(
        self,
        obj: LockedObjectType | str,
        key: object,
        *extra_keys: object,
        ttl_ms: int = DEFAULT_TTL_MS,
        limit: int | None = None,
    ) -> None:
        super().__init__(obj, key, *extra_keys, ttl_ms=ttl_ms)
        if limit is not None:
            self.limit: int | None = limit

    def line(self) -> str:
        """For the framework; see `BaseLock.line`."""
        limit = self._checked_limit()
        return _line(self.kind, self.redis_key, self.ttl_ms, "" if limit is None else limit, "", "")


def encode_locks(
    locks: Iterable[BaseLock], *, interactive: bool = False, task: str = "", vo: str = ""
) -> str:
    """The lines that the scripts read: one for each lock, each name once.

    The same lock twice is one that satisfies both: shared and exclusive is exclusive, the smaller
    limit, the larger count of items and the longer TTL hold. Interactive runs skip limiters
    (decision record, "Limiter vs Lock").

    Args:
        task: bare name of the task's class. Its two limiters hold for every task without a line.
        vo: the VO that the task works for; its own limits hold before the common ones.

    Raises:
        ValueError: a lock does not fit, or one rate limiter has two windows.

    Example:
        >>> encode_locks([MutexLock("job", 7), SharedRWLock("job", 7), ExclusiveRWLock("job", 7)])
        'M|lock:mutex:job:7||||\\nW|lock:rw:job:7||||'
    """
    lines: dict[str, str] = {}
    for lock in locks:
        if interactive and isinstance(lock, BaseLimiter):
            continue
        line = lock.line()
        name = line[2 : line.index("|", 2)]  # the kind has one letter
        if name in lines and lines[name] != line:
            line = _merged(lines[name], line)
        lines[name] = line
    head = [f"V|{escape(vo)}||||"] if vo and not interactive else []
    implied = _class_lines(task) if task else ()
    return "\n".join(head + [line for line in lines.values() if line not in implied])


def has_structural(lines: str) -> bool:
    """Whether a mutex or a reader/writer lock is among the lines of `encode_locks`.

    >>> has_structural("W|lock:rw:job:7||||"), has_structural("C|limiter:conc:job:7||5||")
    (True, False)
    """
    return any(line.startswith(("M|", "R|", "W|")) for line in lines.split("\n"))


def _merged(one: str, other: str) -> str:
    """The line of a lock that satisfies two declarations of it.

    >>> _merged("C|limiter:conc:job:7||5||", "C|limiter:conc:job:7|45000|||")
    'C|limiter:conc:job:7|45000|5||'
    """
    (kind, name, *mine), (other_kind, _, *others) = one.split("|"), other.split("|")
    ttls, limits, windows, items = zip(mine, others, strict=True)
    if all(windows) and windows[0] != windows[1]:
        first, second = (
            f"{limit} in {int(window) / 1000:g} s"
            for limit, window in zip(limits, windows, strict=True)
        )
        raise ValueError(
            f"{name} has two limits of different windows, {first} and {second}: a rate limiter has "
            "one window; leave one of the two out, or give it a name of its own by an extra key"
        )
    return _line(
        "W" if "W" in (kind, other_kind) else kind,
        name,
        max(int(ttl or DEFAULT_TTL_MS) for ttl in ttls),
        min((int(limit) for limit in limits if limit), default=""),
        max(windows),  # they are equal, or one has none
        max(map(int, items)) if kind == "L" else "",
    )


@cache
def _class_lines(task: str) -> frozenset[str]:
    """The lines of the limiters that every task has on its class."""
    return frozenset({RateLimiter(TASK, task).line(), ConcurrencyLimiter(TASK, task).line()})


def leased_ttl_ms(lines: str, held: str, default_ttl_ms: int) -> int | None:
    """The shortest lease among the locks that an admission took, in milliseconds; None: no lock.

    Args:
        lines: of `encode_locks`.
        held: a mark for each lock (then for the limiters of the class), ``-`` for a limiter that
            is off; empty if no limiter holds.

    Example:
        >>> leased_ttl_ms("M|lock:mutex:job:7|500|||", "", 30_000)
        500
    """
    if not lines:
        return default_ttl_ms if held.strip("-") else None
    rows = [line.split("|") for line in lines.split("\n") if line and not line.startswith("V|")]
    marks = held.ljust(len(rows), "-")
    ttls = [
        int(row[2] or default_ttl_ms)
        for row, mark in zip(rows, marks, strict=False)
        if row[0] in "MWR" or (row[0] == "C" and mark != "-")
    ]
    if marks[len(rows) :].strip("-"):
        ttls.append(default_ttl_ms)
    return min(ttls, default=None)


def rate_limited(lines: str, held: str) -> bool:
    """Whether an admission took tokens of a rate limiter, or may have (its class's).

    Example:
        >>> rate_limited("L|limiter:rate:job:7||3|500|1", "x")
        True
    """
    if not lines:
        return bool(held.strip("-"))
    kinds = [line[0] for line in lines.split("\n") if line and not line.startswith("V|")]
    marks = held.ljust(len(kinds), "-")
    own = any(kind == "L" and mark != "-" for kind, mark in zip(kinds, marks, strict=False))
    return own or bool(marks[len(kinds) :].strip("-"))


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _plain(part: object) -> object:
    """A member of an enumeration as people write it in the configuration: ``RemoveFile``.

    One that is equal to a text or a number is that, so that both name the same lock.
    """
    if isinstance(part, Enum):
        return part.value if isinstance(part, str | int) else part.name
    return part


def _line(kind: str, name: str, ttl_ms: int, limit: object, window: object, items: object) -> str:
    ttl = "" if ttl_ms == DEFAULT_TTL_MS else ttl_ms
    return f"{kind}|{name}|{ttl}|{limit}|{window}|{items}"
