"""The locks and limiters that a task can declare, and their encoding as lines for scripts.

A lock is a declaration: it holds no connection and does no I/O. When a task is fetched, the scripts
in `stores/scripts` take all of its locks or none. The watchdog renews them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from msgspec import Struct

from nonet.base import late_pydantic as pydantic
from nonet.base.errors import RegistrationError, suggestion
from nonet.base.keys import escape

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

DEFAULT_TTL_MS = 30_000
# Longer than any sensible lease or window, and far below the longest expiry that Redis accepts.
_MOST_TTL_MS = 2**31 - 1
MOST_ITEMS = 2**31 - 1
LEAST_WINDOW_SECONDS = 0.001
MOST_WINDOW_SECONDS = 366 * 24 * 3600
# Types with the same text in every process. The text of other objects often contains their address:
# each process would use a lock of its own. (A datetime is a date.)
_NAMING = (str, int, float, UUID, Enum, PurePath, Decimal, date)


class LockKind(Struct, frozen=True):
    """The properties of one kind of lock. `lib/locks.lua` has the same table for the scripts.

    Attributes:
        letter: the kind in the lines of locks and in the fields of limits.
        prefix: beginning of the names in Redis.
        word: the kind for people.
        side: of a reader/writer lock, for people.
        exclusive: it has one holder.
        limiter: it protects a service from load. Other kinds are structural: the outcome of an
            attempt that loses one is discarded.
        windowed: a limiter that counts items in a time window; it has no holders and no lease.
    """

    letter: str
    prefix: str
    word: str
    side: str = ""
    exclusive: bool = False
    limiter: bool = False
    windowed: bool = False


KINDS = {
    kind.letter: kind
    for kind in (
        LockKind("M", "lock:mutex", "mutex", exclusive=True),
        LockKind("W", "lock:rw", "reader/writer", "writer", exclusive=True),
        LockKind("R", "lock:rw", "reader/writer", "readers"),
        LockKind("L", "limiter:rate", "rate", limiter=True, windowed=True),
        LockKind("C", "limiter:conc", "concurrency", limiter=True),
    )
}
_STRUCTURAL = tuple(letter for letter, kind in KINDS.items() if not kind.limiter)
_EXCLUSIVE = tuple(letter for letter, kind in KINDS.items() if kind.exclusive)
_WINDOWED = tuple(letter for letter, kind in KINDS.items() if kind.windowed)
_SLOTS = tuple(letter for letter, kind in KINDS.items() if kind.limiter and not kind.windowed)
_VO = "V"  # a line of this letter declares no lock: it names the VO of the task


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

    Built in are ``TASK``, ``TENANT``, ``JOB`` and ``TRANSFORMATION``;
    `register_locked_object_type` adds more, which are then attributes of this class.

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
        """Let pydantic accept the name of a registered type."""
        core_schema = pydantic.core_schema
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())

    @classmethod
    def registered(cls) -> dict[str, str]:
        """Return every registered name with the place of its registration."""
        return dict(cls._places)


def register_locked_object_type(name: str) -> LockedObjectType:
    """Register a kind of object that locks may protect.

    Args:
        name: lower-case identifier, e.g. ``"lfn"``; becomes ``LockedObjectType.LFN``.

    Returns:
        The type, which is also available as ``LockedObjectType.LFN`` from now on.

    Raises:
        RegistrationError: the name is not a lower-case identifier, or is registered already (the
            error names both places). It is also a ``ValueError``.

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
TENANT = register_locked_object_type("tenant")
JOB = register_locked_object_type("job")
TRANSFORMATION = register_locked_object_type("transformation")


class BaseLock:
    """Base of locks and limiters.

    Args:
        obj: type of the object, a registered `LockedObjectType` or its name.
        key: which object: text, a number, ``UUID``, enum, path, ``Decimal``, ``date`` or
            ``datetime``. Its text becomes part of the name; an enum that is neither text nor a
            whole number gives the name of its member.
        extra_keys: further parts of the name, e.g. an action.
        ttl_ms: how long the lock outlives a dead holder, in milliseconds: 100 to 2**31 - 1 (24
            days). The default follows the process setting ``NONET_LOCK_TTL``.

    Raises:
        RegistrationError: the object type is not registered.
        ValueError: a key has another type, or the TTL is out of range.

    Example:
        lock: BaseLock = MutexLock(LockedObjectType.JOB, 7, "output", ttl_ms=60_000)
        assert lock.redis_key == "lock:mutex:job:7:output"
    """

    kind: ClassVar[LockKind]

    def __init__(
        self,
        obj: LockedObjectType | str,
        key: object,
        *extra_keys: object,
        ttl_ms: int = DEFAULT_TTL_MS,
    ) -> None:
        # The scripts parse whole numbers, and would ignore a line with a fraction.
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
        """Name of the lock in Redis, without the namespace. Parts are percent-encoded."""
        parts = (self.obj, self.key, *self.extra_keys)
        return f"{self.kind.prefix}:{':'.join(escape(_plain(part)) for part in parts)}"

    def line(self) -> str:
        """For the framework: ``kind|name|ttl|limit|window|items``; empty parts have defaults."""
        return _line(self.kind.letter, self.redis_key, self.ttl_ms, "", "", "")

    def __repr__(self) -> str:
        keys = ", ".join(map(repr, (self.key, *self.extra_keys)))
        return f"{type(self).__name__}({str(self.obj)!r}, {keys})"


class MutexLock(BaseLock):
    """A lock with at most one holder.

    Takes the arguments of `BaseLock`. A mutex and a reader/writer lock on one object do not exclude
    each other.

    Example:
        MutexLock(LockedObjectType.JOB, 7)
    """

    kind: ClassVar[LockKind] = KINDS["M"]


class ExclusiveRWLock(BaseLock):
    """The writer's side of a reader/writer lock: excludes other writers and all readers.

    Takes the arguments of `BaseLock`.

    Example:
        ExclusiveRWLock(LockedObjectType.TRANSFORMATION, 12345)
    """

    kind: ClassVar[LockKind] = KINDS["W"]


class SharedRWLock(BaseLock):
    """The reader's side of a reader/writer lock: excludes writers, but no other readers.

    Takes the arguments of `BaseLock`.

    Example:
        SharedRWLock(LockedObjectType.TRANSFORMATION, 12345)
    """

    kind: ClassVar[LockKind] = KINDS["R"]


class BaseLimiter(BaseLock):
    """Base of limiters, which protect services from load. Interactive runs skip them.

    Attributes:
        limit: the default limit, 1 or more; set it on the class or on the instance. A configured
            limit overrides it. With None, the default, the limiter is off unless the configuration
            sets a limit.

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
    """Allow at most `limit` items in any window of `window_seconds` (a true sliding window).

    The first arguments are those of `BaseLock`.

    Args:
        n_items: how many items one execution counts for, 1 or more.
        limit: items in a window; overrides the class attribute.
        window_seconds: 0.001 s to 366 days; overrides the class attribute.

    Example:
        RateLimiter(LockedObjectType.STORAGE_ELEMENT, "CERN-DST", limit=10, window_seconds=60)
    """

    kind: ClassVar[LockKind] = KINDS["L"]
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
            return _line(self.kind.letter, self.redis_key, self.ttl_ms, "", "", self.n_items)
        if self.window_seconds is None:
            raise ValueError(f"{self!r}: limit={limit} needs window_seconds")
        is_number = isinstance(self.window_seconds, int | float)
        if not is_number or not LEAST_WINDOW_SECONDS <= self.window_seconds <= MOST_WINDOW_SECONDS:
            raise ValueError(
                f"{self!r}: window_seconds={self.window_seconds!r} must be a number, at least "
                f"{LEAST_WINDOW_SECONDS} and {MOST_WINDOW_SECONDS} (366 days) at most"
            )
        window_ms = round(self.window_seconds * 1000)
        return _line(self.kind.letter, self.redis_key, self.ttl_ms, limit, window_ms, self.n_items)


class ConcurrencyLimiter(BaseLimiter):
    """Allow at most `limit` executions at a time. The slot of a dead holder is freed after the TTL.

    The first arguments are those of `BaseLock`.

    Args:
        limit: executions at a time; overrides the class attribute.

    Example:
        ConcurrencyLimiter(LockedObjectType.JOB, 7, "RemoveFile", limit=5)
    """

    kind: ClassVar[LockKind] = KINDS["C"]

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
        shown = "" if limit is None else limit
        return _line(self.kind.letter, self.redis_key, self.ttl_ms, shown, "", "")


def encode_locks(
    locks: Iterable[BaseLock], *, interactive: bool = False, task: str = "", vo: str = ""
) -> str:
    """Encode locks as the lines that the scripts read, one for each name.

    Two declarations of one lock are merged so that both are satisfied: the exclusive side, the
    smaller limit, the larger count of items, and the longer TTL.

    Args:
        interactive: leave out limiters.
        task: bare name of the task's class. The scripts add the two limiters of the class, so they
            get no line.
        vo: the VO that the task works for. Limits of this VO override the common ones.

    Raises:
        ValueError: a declaration is invalid, or one rate limiter has two windows.

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
    head = [f"{_VO}|{escape(vo)}||||"] if vo and not interactive else []
    implied = _class_lines(task) if task else ()
    return "\n".join(head + [line for line in lines.values() if line not in implied])


def has_structural(lines: str) -> bool:
    """Whether one of these lines of `encode_locks` declares a structural lock.

    >>> has_structural("W|lock:rw:job:7||||"), has_structural("C|limiter:conc:job:7||5||")
    (True, False)
    """
    return any(line.startswith(_STRUCTURAL) for line in lines.split("\n"))


def has_exclusive(lines: str) -> bool:
    """Whether one of these lines of `encode_locks` declares a lock with a single holder.

    >>> has_exclusive("W|lock:rw:job:7||||"), has_exclusive("R|lock:rw:job:7||||")
    (True, False)
    """
    return any(line.startswith(_EXCLUSIVE) for line in lines.split("\n"))


def _merged(one: str, other: str) -> str:
    """Merge two declarations of one lock into a line that satisfies both.

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
        other_kind if KINDS[other_kind].exclusive else kind,
        name,
        max(int(ttl or DEFAULT_TTL_MS) for ttl in ttls),
        min((int(limit) for limit in limits if limit), default=""),
        max(windows),  # the windows are equal, or one line has none
        max(map(int, items)) if KINDS[kind].windowed else "",
    )


def added_limiters(task: str, tenant: str) -> list[str]:
    """Return the names of the limiters that the scripts add for a class and a tenant.

    Args:
        task: the bare name of the class.
        tenant: see `nonet.rules.fairness.tenant_of`; empty: the task has none.
    """
    lines = _class_lines(task)
    if tenant:
        lines |= {RateLimiter(TENANT, tenant).line(), ConcurrencyLimiter(TENANT, tenant).line()}
    return sorted(line.split("|")[1] for line in lines)


@cache
def _class_lines(task: str) -> frozenset[str]:
    """The lines of the limiters that the scripts add for a class."""
    return frozenset({RateLimiter(TASK, task).line(), ConcurrencyLimiter(TASK, task).line()})


def leased_ttl_ms(lines: str, held: str, default_ttl_ms: int) -> int | None:
    """Return the shortest lease (ms) of the locks that an admission took; None without leases.

    Args:
        lines: of `encode_locks`.
        held: one mark for each line, then one for each of `added_limiters`: ``-`` for a limiter
            that is off. Empty if no limiter was taken.

    Example:
        >>> leased_ttl_ms("M|lock:mutex:job:7|500|||", "", 30_000)
        500
    """
    if not lines:
        return default_ttl_ms if held.strip("-") else None
    rows = [line.split("|") for line in _declared(lines)]
    marks = held.ljust(len(rows), "-")
    ttls = [
        int(row[2] or default_ttl_ms)
        for row, mark in zip(rows, marks, strict=False)
        if row[0] in _STRUCTURAL or (row[0] in _SLOTS and mark != "-")
    ]
    if marks[len(rows) :].strip("-"):
        ttls.append(default_ttl_ms)
    return min(ttls, default=None)


def rate_limited(lines: str, held: str) -> bool:
    """Return whether an admission took, or may have taken, items of a rate limiter.

    Example:
        >>> rate_limited("L|limiter:rate:job:7||3|500|1", "x")
        True
    """
    if not lines:
        return bool(held.strip("-"))
    own = _declared(lines)
    marks = held.ljust(len(own), "-")
    is_own = any(
        line.startswith(_WINDOWED) and mark != "-" for line, mark in zip(own, marks, strict=False)
    )
    return is_own or bool(marks[len(own) :].strip("-"))


def _declared(lines: str) -> list[str]:
    """The lines that declare locks."""
    return [line for line in lines.split("\n") if line and not line.startswith(_VO)]


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _plain(part: object) -> object:
    """The part of a name for a key. The member of an enumeration gives its name.

    A member that equals a text or a number gives that instead: both must name the same lock.
    """
    if isinstance(part, Enum):
        return part.value if isinstance(part, str | int) else part.name
    return part


def _line(kind: str, name: str, ttl_ms: int, limit: object, window: object, items: object) -> str:
    ttl = "" if ttl_ms == DEFAULT_TTL_MS else ttl_ms
    return f"{kind}|{name}|{ttl}|{limit}|{window}|{items}"
