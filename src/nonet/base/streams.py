"""Priorities and sizes of tasks; each pair has its own streams."""

from __future__ import annotations

from enum import StrEnum

# The streams of each pair; lib/streams.lua describes their purpose.
KINDS = ("woken", "tasks", "suspects", "burials")


class Priority(StrEnum):
    """The order in which tasks start. Strict: no background task starts while a normal one waits.

    Attributes:
        REALTIME: ``realtime``, before all others.
        NORMAL: ``normal``, the default.
        BACKGROUND: ``background``, only if no other task waits.

    Example:
        class Sweep(BaseTask):
            priority = Priority.BACKGROUND
    """

    REALTIME = "realtime"
    NORMAL = "normal"
    BACKGROUND = "background"


class Size(StrEnum):
    """The pool of workers that runs a task.

    Attributes:
        SMALL: ``small``: many at a time in one event loop, for tasks that mostly wait.
        MEDIUM: ``medium``, the default: one per core, in reusable child processes.
        LARGE: ``large``: one at a time, each in a new process.

    Example:
        class Merge(BaseTask):
            size = Size.LARGE
    """

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"
