"""How a process died during an attempt, in a form that travels between processes."""

from __future__ import annotations

from msgspec import Struct

from nonet.base.errors import CpuLimitExceeded, MemoryLimitExceeded, TaskCrashed, TaskTimeoutError

_CLASSES = {"memory": MemoryLimitExceeded, "cpu": CpuLimitExceeded, "": TaskCrashed}


class Crash(Struct, frozen=True):
    """The death of a process before its attempt ended.

    Attributes:
        why: the limit that it was killed for: ``time``, ``memory``, ``cpu``; empty for none.
        text: the time limit that it exceeded, or details besides signal and exit code.
        signal, exit_code: how it ended.
        allowed: the memory limit in bytes, or the CPU limit in seconds.

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
        """Return the exception that the retry policy receives."""
        if self.why == "time":
            return TaskTimeoutError(f"{self.text}; its process was killed")
        return _CLASSES[self.why](
            self.text, signal=self.signal, exit_code=self.exit_code, allowed=self.allowed
        )


WITH_WORKER = Crash("", "its worker died, and no other suspect ran there")
