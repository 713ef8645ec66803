"""The nine streams: three priorities, three sizes."""

from __future__ import annotations

from enum import StrEnum

# Which streams there are of each; lib/streams.lua says what for.
KINDS = ("woken", "tasks", "suspects", "burials")


class Priority(StrEnum):
    """Which stream is read first. Strict: no background task starts while a normal one waits.

    Attributes:
        REALTIME: ``realtime``, before all others.
        NORMAL: ``normal``, the default.
        BACKGROUND: ``background``, when nothing else is to be done.

    Example:
        class Sweep(BaseTask):
            priority = Priority.BACKGROUND
    """

    REALTIME = "realtime"
    NORMAL = "normal"
    BACKGROUND = "background"


class Size(StrEnum):
    """Which pool of workers runs a task.

    Attributes:
        SMALL: ``small``: many at a time in one event loop, for tasks that mostly wait.
        MEDIUM: ``medium``, the default: one for each core, in child processes that are used again.
        LARGE: ``large``: one at a time, each in a process of its own.

    Example:
        class Merge(BaseTask):
            size = Size.LARGE
    """

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"
