"""`LogTail`: the last log lines of an attempt."""

from __future__ import annotations

from collections import deque

# How many lines are kept of an attempt of a class that does not say so.
LOG_LINES = 200


class LogTail:
    """The last lines of an attempt, as many as fit. Handlers call `add` one after the other.

    Args:
        most_lines, most_bytes: how much is kept.

    Attributes:
        is_new: whether a line was added since the last call of `take`.

    Example:
        >>> tail = LogTail(2, 1000)
        >>> for line in ("one", "two", "three"):
        ...     tail.add(line)
        >>> tail.take()
        '… 1 earlier lines were dropped\\ntwo\\nthree'
    """

    def __init__(self, most_lines: int, most_bytes: int) -> None:
        self._lines: deque[tuple[str, int]] = deque()
        self._most_lines = most_lines
        self._most_bytes = most_bytes
        self._bytes = 0
        self._dropped = 0
        self._passed: str | None = None
        self.is_new: bool = False

    def add(self, line: str) -> None:
        """Add a line, which may contain line breaks; a long one is cut."""
        data = line.encode("utf-8", "backslashreplace")[: self._most_bytes]
        self._lines.append((data.decode(errors="ignore"), len(data) + 1))
        self._bytes += len(data) + 1
        while len(self._lines) > self._most_lines or (
            self._bytes > self._most_bytes and len(self._lines) > 1
        ):
            self._bytes -= self._lines.popleft()[1]
            self._dropped += 1
        self.is_new = True

    def replace(self, text: str) -> None:
        """Take over the lines that a child process has collected."""
        self._passed, self.is_new = text, True

    def take(self) -> str:
        """Return all lines as a text."""
        self.is_new = False
        if self._passed is not None:
            return self._passed
        dropped = [f"… {self._dropped} earlier lines were dropped"] if self._dropped else []
        return "\n".join([*dropped, *(line for line, _ in list(self._lines))])
