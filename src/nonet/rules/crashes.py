"""How often a process may die with a task. Settings and stores need this number, and no rule."""

from __future__ import annotations

# So many processes may die with a task alone before it is not executed again.
CRASH_LIMIT = 3
