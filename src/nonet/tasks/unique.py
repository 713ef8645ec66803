"""Uniqueness: which submissions count as the same task."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nonet.base.messages.message import encode, pack
from nonet.tasks.locks import MutexLock

# Ten years, the limit of all durations.
_LONGEST_SECONDS = 3653 * 86400


class UniqueMode(StrEnum):
    """How long a task keeps its unique key; the Redis scripts know the mode by its value.

    Attributes:
        UNTIL_START: until it starts, see `Unique.until_start`.
        UNTIL_DONE: until it has ended, see `Unique.until_done`.
        FOR_SECONDS: for a time after its submission, see `Unique.for_seconds`.
        KEEP_LATEST: until a newer task replaces it, see `Unique.keep_latest`.

    Example:
        assert Unique.until_done().mode is UniqueMode.UNTIL_DONE
    """

    UNTIL_START = "start"
    UNTIL_DONE = "done"
    FOR_SECONDS = "period"
    KEEP_LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Unique:
    """Submit a task only if no other task holds the same key.

    Create one with the class methods. While a task holds the key, submitting again submits nothing
    and returns the handle of that task, with ``created`` False; `debounce` and `keep_latest`
    replace the waiting task instead.

    - debounce, run once when requests have ceased for n seconds: ``Unique.debounce(n)``
    - throttle, run the first of n seconds and drop the others: ``Unique.for_seconds(n)``
    - window, collect for n seconds and run once: ``Unique.until_start()`` with ``delay=n``
    - at most one waits: ``Unique.until_start()``
    - at most one waits or runs: ``Unique.until_done()``
    - one runs, and the newest waits: ``Unique.keep_latest()``

    Attributes:
        mode: how long a task holds the key.
        seconds: the duration of `for_seconds`, or the delay of `debounce`; otherwise 0.
        key: a text shared by all classes of the namespace, or a function of the task that returns
            one. None: the return value of the method ``unique_key`` of the class; without this
            method, the class and its arguments.

    Example:
        @dataclass
        class Refresh(BaseTask):
            customer: str
            unique = Unique.until_start()
    """

    mode: UniqueMode
    seconds: float = 0.0
    key: str | Callable[[Any], str] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the mode or the key is invalid."""
        if not isinstance(self.mode, UniqueMode):
            raise ValueError(
                f"unique: {self.mode!r:.100} is not a mode; write Unique.until_start(), "
                "until_done(), for_seconds(60), debounce(5) or keep_latest()"
            )
        is_key = callable(self.key) or (isinstance(self.key, str) and self.key)
        if self.key is not None and not is_key:
            raise ValueError(
                f"unique: key {self.key!r:.100} must be a non-empty text, or a function of the "
                "task that returns one"
            )

    @classmethod
    def until_start(cls, key: str | Callable[[Any], str] | None = None) -> Unique:
        """Hold the key until a worker starts the task for the first time.

        Use it for tasks that process everything that has arrived: later arrivals need another run.

        Args:
            key: see `Unique`.
        """
        return cls(UniqueMode.UNTIL_START, key=key)

    @classmethod
    def until_done(cls, key: str | Callable[[Any], str] | None = None) -> Unique:
        """Hold the key until the task has ended, retries included.

        Args:
            key: see `Unique`.
        """
        return cls(UniqueMode.UNTIL_DONE, key=key)

    @classmethod
    def for_seconds(cls, seconds: float, key: str | Callable[[Any], str] | None = None) -> Unique:
        """Hold the key for a time after the submission, even if the task ends earlier.

        Args:
            seconds: 0.001 to ten years.
            key: see `Unique`.

        Raises:
            ValueError: `seconds` is out of range.
        """
        return cls(UniqueMode.FOR_SECONDS, _checked("for_seconds", seconds), key)

    @classmethod
    def debounce(cls, seconds: float, key: str | Callable[[Any], str] | None = None) -> Unique:
        """Run once when no newer task was submitted for a time: `keep_latest` with a delay.

        Each submission starts the time again and replaces the waiting task, whose result is
        `TaskCancelled` with the id of the newer one. A submission with ``delay`` or ``at_time``
        waits for that instead.

        Args:
            seconds: 0.001 to ten years.
            key: see `Unique`.

        Raises:
            ValueError: `seconds` is out of range.

        Example:
            @dataclass
            class Reindex(BaseTask):
                document: str
                unique = Unique.debounce(5, key=lambda task: task.document)
        """
        return cls(UniqueMode.KEEP_LATEST, _checked("debounce", seconds), key)

    @classmethod
    def keep_latest(cls, key: str | Callable[[Any], str] | None = None) -> Unique:
        """Let one task run and the newest one wait; a newer task cancels the waiting one.

        Tasks with the same key never run at the same time. A running task finishes although a newer
        one was submitted, but is not retried if it fails. Keys of this mode never clash with keys
        of other modes.

        Args:
            key: see `Unique`.
        """
        return cls(UniqueMode.KEEP_LATEST, key=key)

    def key_of(self, task: Any, name: str, args: Any) -> str:
        """Return the hash of a task's key, for the framework.

        Args:
            task: an instance of the class.
            name: its full class name.
            args: its packed arguments.

        Raises:
            ValueError: the key is not a text, or is empty.
        """
        parts = [name, _ordered(args)]
        if self.key is not None or hasattr(task, "unique_key"):
            key = self._own_key(task)
            if not isinstance(key, str) or not key:
                raise ValueError(f"its key is {key!r:.100}, but must be a non-empty text")
            parts = ["", pack(key)]
        family = "latest" if self.mode is UniqueMode.KEEP_LATEST else ""
        return hashlib.sha256(encode([family, *parts])).hexdigest()[:32]

    def _own_key(self, task: Any) -> Any:
        if self.key is None:
            return task.unique_key()
        return self.key(task) if callable(self.key) else self.key


def _checked(name: str, seconds: float) -> float:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0.001 <= seconds <= _LONGEST_SECONDS:
        raise ValueError(
            f"{name}: {seconds!r:.100} must be a number of seconds, 0.001 to "
            f"{_LONGEST_SECONDS} (ten years)"
        )
    return seconds


def unique_term(unique: Unique, key: str) -> str:
    """The line for the key among the terms of a submission.

    >>> unique_term(Unique.for_seconds(1.5), "0f")
    'unique|period|1500000|0f'
    """
    held = unique.seconds if unique.mode is UniqueMode.FOR_SECONDS else 0
    return f"unique|{unique.mode}|{round(held * 1e6)}|{key}"


def unique_lock(unique: Unique, key: str) -> str:
    """Return the lock line that keeps `KEEP_LATEST` tasks of one key apart, or nothing."""
    if unique.mode is not UniqueMode.KEEP_LATEST:
        return ""
    return f"{MutexLock.kind.letter}|{LOCK_NAME}{key}||||"


LOCK_NAME = f"{MutexLock.kind.prefix}:unique:"


def with_unique_lock(lines: str, submitted: str) -> str:
    """Add to the declared locks the unique lock that the task was submitted with.

    >>> with_unique_lock("M|lock:mutex:job:7||||", "M|lock:mutex:unique:0f||||")
    'M|lock:mutex:job:7||||\\nM|lock:mutex:unique:0f||||'
    """
    if LOCK_NAME not in submitted:
        return lines
    kept = [line for line in submitted.split("\n") if line[2:].startswith(LOCK_NAME)]
    return "\n".join([lines, *kept]) if lines else "\n".join(kept)


def _ordered(packed: Any) -> Any:
    """Copy packed data with mappings sorted, so that equal mappings give equal bytes."""
    if isinstance(packed, dict):
        pairs = [(encode(_ordered(key)), _ordered(value)) for key, value in packed.items()]
        return [[key, value] for key, value in sorted(pairs, key=lambda pair: pair[0])]
    return list(map(_ordered, packed)) if isinstance(packed, list | tuple) else packed
