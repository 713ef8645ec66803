"""The limit of crashes, which settings and stores need without the rules of outcomes."""

from __future__ import annotations

# After this many deaths of processes that ran a task alone, the task is not executed again.
CRASH_LIMIT = 3
