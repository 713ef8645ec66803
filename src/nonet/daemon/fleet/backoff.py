"""How long to wait before a crashed worker is replaced. Pure."""

from __future__ import annotations

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 30.0
# After the crash of a worker that lived this long, begin again with the shortest pause.
_HEALTHY_SECONDS = 60.0


class Backoff:
    """A pause after each crash, which doubles while the replacements crash soon, too.

    Attributes:
        until: start no worker before this time (seconds of a steady clock).
    """

    def __init__(self) -> None:
        self.until = 0.0
        self._failures = 0

    def crashed(self, lived: float, now: float) -> float:
        """Record that a worker crashed after `lived` seconds; return how long to wait.

        Crashes during one pause count once: they probably share a cause.
        """
        if now >= self.until:
            self._failures = 1 if lived >= _HEALTHY_SECONDS else self._failures + 1
            doubled = _FIRST_SECONDS * 2 ** min(self._failures - 1, 16)
            self.until = now + min(_LONGEST_SECONDS, doubled)
        return self.until - now
