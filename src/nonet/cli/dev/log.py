"""The log of all processes as one stream; each line begins with the name of its process."""

from __future__ import annotations

import re
from collections.abc import Callable

# A line of a daemon, see `nonet.telemetry.logs`.
_HEAD = re.compile(
    r"\d{4}-\d\d-\d\dT(?P<time>[\d:.]+)Z (?P<level>[A-Z]+) (?P<rest>\S+: .*)", re.DOTALL
)
_WIDTH = 6
_PREFIXES = {
    "dev": "1",
    "small": "36",
    "medium": "34",
    "large": "35",
    "sched": "32",
    "web": "33",
    "rows": "36",
}
_LEVELS = {"DEBUG": "2", "INFO": "", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


class MergedLog:
    """Writes the lines of several processes.

    Args:
        write: writes a line.
        coloured: colour names and levels, and leave out the date.
    """

    def __init__(self, write: Callable[[str], None], *, coloured: bool) -> None:
        self._write = write
        self._coloured = coloured

    def add(self, name: str, line: str) -> None:
        """Write a line of the process `name`."""
        self._write(rendered(name, line) if self._coloured else f"{name:{_WIDTH}} | {line}")

    def say(self, text: str) -> None:
        """Write what ``task-run dev`` itself has to say, in one or several lines."""
        for line in text.splitlines():
            self.add("dev", line)


def rendered(name: str, line: str) -> str:
    """Return a line with colours.

    >>> rendered("small", "2026-11-22T11:35:40.123Z WARNING x.y: late").replace(chr(27), "^")
    '^[36msmall  |^[0m ^[2m11:35:40.123^[0m ^[33mWARNING^[0m x.y: late'
    """
    head = f"{_styled(f'{name:{_WIDTH}} |', _PREFIXES.get(name, ''))} "
    found = _HEAD.fullmatch(line)
    if found is None:
        return head + line
    level = _styled(found["level"], _LEVELS.get(found["level"], ""))
    return f"{head}{_styled(found['time'], '2')} {level} {found['rest']}"


def _styled(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style else text
