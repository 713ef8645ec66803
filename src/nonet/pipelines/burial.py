"""Dead letters of rows."""

from __future__ import annotations

from typing import Any


class Letters:
    """Writes the dead letters of rows."""

    retry_seconds = 5.0

    def __init__(self, parts: Any) -> None:
        self._parts = parts

    async def write(self, pipeline: str, key: Any, exhausted: Any, last: Any) -> bool:
        """Write a letter; False: later."""
        return True
