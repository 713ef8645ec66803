"""How the process of an attempt ended, as an exception that travels and is made anew elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from nonet.base.errors import CpuLimitExceeded, MemoryLimitExceeded, TaskCrashed, TaskTimeoutError

_CLASSES = {"memory": MemoryLimitExceeded, "cpu": CpuLimitExceeded, "": TaskCrashed}


@dataclass(frozen=True, slots=True)
class Crash:
    """A process that ended before its attempt did.

    Attributes:
        why: which limit it was killed for: ``time``, ``memory``, ``cpu``, or empty: none.
        signal, exit_code: how it ended.
        text: of a limit of time: which one; else what is known beside signal and exit code.
        allowed: of the other limits: how much, in bytes or seconds.

    Example:
        >>> str(Crash("", exit_code=1).error())
        'its process exited with code 1'
    """

    why: str
    text: str = ""
    signal: int | None = None
    exit_code: int | None = None
    allowed: float | None = None

    def error(self) -> Exception:
        """What the retry policy is told."""
        if self.why == "time":
            return TaskTimeoutError(f"{self.text}; its process was killed")
        return _CLASSES[self.why](
            self.text, signal=self.signal, exit_code=self.exit_code, allowed=self.allowed
        )


WITH_WORKER = Crash("", "its worker died, and no other suspect ran there")
