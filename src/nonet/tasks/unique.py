"""Uniqueness: which submissions are the same task."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nonet.messages.message import encode, pack

# Ten years, as of other spans.
_LONGEST_SECONDS = 3653 * 86400


class UniqueMode(StrEnum):
    """How long a task keeps its key; the value is what scripts know it by.

    Attributes:
        UNTIL_START: until it is started, see `Unique.until_start`.
        UNTIL_DONE: until it has ended, see `Unique.until_done`.
        FOR_SECONDS: for a time after its submission, see `Unique.for_seconds`.
        KEEP_LATEST: until a newer one replaces it, see `Unique.keep_latest`.

    Example:
        assert Unique.until_done().mode is UniqueMode.UNTIL_DONE
    """

    UNTIL_START = "start"
    UNTIL_DONE = "done"
    FOR_SECONDS = "period"
    KEEP_LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Unique:
    """Which submissions are the same task: those of one key, for as long as a task has it.

    Make one with its class methods. Whoever submits while another task has the key gets the handle
    of that one, with ``created`` False; nothing is submitted.

    Attributes:
        mode: how long a task has the key.
        seconds: of `for_seconds`, else 0.
        key: one for all tasks of the namespace, whatever their class; or what makes it of the task.
            None: what method ``unique_key`` of the class returns, else class and arguments.

    Example:
        @dataclass
        class Refresh(BaseTask):
            site: str
            unique = Unique.until_start()
    """

    mode: UniqueMode
    seconds: float = 0.0
    key: str | Callable[[Any], str] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError: the mode is none, or the key can be none."""
        if not isinstance(self.mode, UniqueMode):
            raise ValueError(
                f"unique: {self.mode!r:.100} is no mode; write Unique.until_start(), until_done(), "
                "for_seconds(60) or keep_latest()"
            )
        is_key = callable(self.key) or (isinstance(self.key, str) and self.key)
        if self.key is not None and not is_key:
            raise ValueError(
                f"unique: key {self.key!r:.100} must be a text that is not empty, or a function "
                "that makes one of the task"
            )

    @classmethod
    def until_start(cls, key: str | Callable[[Any], str] | None = None) -> Unique:
        """Until a worker starts it for the first time: what comes later has to be seen, too.

        Args:
            key: see `Unique`.
        """
        return cls(UniqueMode.UNTIL_START, key=key)

    @classmethod
    def until_done(cls, key: str | Callable[[Any], str] | None = None) -> Unique:
        """Until it has ended, retries included.

        Args:
            key: see `Unique`.
        """
        return cls(UniqueMode.UNTIL_DONE, key=key)

    @classmethod
    def for_seconds(cls, seconds: float, key: str | Callable[[Any], str] | None = None) -> Unique:
        """For so long after the submission, whatever becomes of the task.

        Args:
            seconds: 0.001 to ten years.
            key: see `Unique`.

        Raises:
            ValueError: `seconds` is not above 0, or more than ten years.
        """
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0.001 <= seconds <= _LONGEST_SECONDS:
            raise ValueError(
                f"for_seconds: {seconds!r:.100} must be a number of seconds, 0.001 to "
                f"{_LONGEST_SECONDS} (ten years)"
            )
        return cls(UniqueMode.FOR_SECONDS, seconds, key)

    @classmethod
    def keep_latest(cls, key: str | Callable[[Any], str] | None = None) -> Unique:
        """One runs, and one waits: the newest; it replaces the one that waited, which is cancelled.

        Those of one key never run at the same time. One that runs while a newer one is submitted
        goes on, but is not executed again if it fails. The other modes do not know these keys.

        Args:
            key: see `Unique`.
        """
        return cls(UniqueMode.KEEP_LATEST, key=key)

    def key_of(self, task: Any, name: str, args: Any) -> str:
        """For the framework: the hash that stands for the key of a task.

        Args:
            task: an instance of the class.
            name: its full class name.
            args: its packed arguments.

        Raises:
            ValueError: the key is no text, or empty.
        """
        parts = [name, _ordered(args)]
        if self.key is not None or hasattr(task, "unique_key"):
            made = self._made_of(task)
            if not isinstance(made, str) or not made:
                raise ValueError(f"its key is {made!r:.100}, but must be a text")
            parts = ["", pack(made)]
        family = "latest" if self.mode is UniqueMode.KEEP_LATEST else ""
        return hashlib.sha256(encode([family, *parts])).hexdigest()[:32]

    def _made_of(self, task: Any) -> Any:
        if self.key is None:
            return task.unique_key()
        return self.key(task) if callable(self.key) else self.key


def unique_term(unique: Unique, key: str) -> str:
    """The line that says so among the terms of a submission.

    >>> unique_term(Unique.for_seconds(1.5), "0f")
    'unique|period|1500000|0f'
    """
    return f"unique|{unique.mode}|{round(unique.seconds * 1e6)}|{key}"


def unique_lock(unique: Unique, key: str) -> str:
    """The line of `locks.encode_locks` that keeps tasks of one key apart; or nothing."""
    return f"M|{LOCK_NAME}{key}||||" if unique.mode is UniqueMode.KEEP_LATEST else ""


LOCK_NAME = "lock:mutex:unique:"


def with_unique_lock(lines: str, submitted: str) -> str:
    """The locks `lines` that a task declares, and the one that it was submitted with beside them.

    >>> with_unique_lock("M|lock:mutex:job:7||||", "M|lock:mutex:unique:0f||||")
    'M|lock:mutex:job:7||||\\nM|lock:mutex:unique:0f||||'
    """
    if LOCK_NAME not in submitted:
        return lines
    kept = [line for line in submitted.split("\n") if line[2:].startswith(LOCK_NAME)]
    return "\n".join([lines, *kept]) if lines else "\n".join(kept)


def _ordered(packed: Any) -> Any:
    """Packed data in which equal mappings are alike, whatever their order."""
    if isinstance(packed, dict):
        pairs = [(encode(_ordered(key)), _ordered(value)) for key, value in packed.items()]
        return [[key, value] for key, value in sorted(pairs, key=lambda pair: pair[0])]
    return list(map(_ordered, packed)) if isinstance(packed, list | tuple) else packed
