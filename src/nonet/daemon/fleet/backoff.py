"""Back-off: how soon a worker that crashed is replaced. Pure."""

from __future__ import annotations

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 30.0
# Whoever has lived for so long did not crash because it was started.
_HEALTHY_SECONDS = 60.0


class Backoff:
    """A pause after each crash, which doubles while those that follow soon crash, too.

    Attributes:
        until: nobody is started before (seconds of a steady clock).
    """

    def __init__(self) -> None:
        self.until = 0.0
        self._failures = 0

    def crashed(self, lived: float, now: float) -> float:
        """A worker ended by itself after `lived` seconds; how long to wait now.

        What crashes in the same pause is one failure: a cause that they share.
        """
        if now >= self.until:
            self._failures = 1 if lived >= _HEALTHY_SECONDS else self._failures + 1
            doubled = _FIRST_SECONDS * 2 ** min(self._failures - 1, 16)
            self.until = now + min(_LONGEST_SECONDS, doubled)
        return self.until - now
