"""`Pod`: a worker that is started and deleted as a kubelet does it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass

from acceptance.site import Site
from daemons import Daemon


@dataclass(frozen=True)
class Deletion:
    code: int  # of the worker
    killed: bool  # whether SIGKILL was needed
    seconds: float  # how long all of it took


class Pod:
    """One worker of a deployment.

    Args:
        period: its terminationGracePeriodSeconds.

    Attributes:
        daemon: what was started, with its log.
    """

    def __init__(
        self, site: Site, size: str, *, slots: int, period: float, **environment: str
    ) -> None:
        self._period = period
        options = ("--concurrency", str(slots))
        self.daemon: Daemon = site.worker(*options, size=size, wait=False, **environment)

    def wait_ready(self) -> None:
        self.daemon.wait_ready()

    def freeze(self) -> None:
        os.kill(self.daemon.pid, signal.SIGSTOP)

    def delete(self) -> Deletion:
        """SIGTERM, wait, SIGKILL; returns when it has ended."""
        began = time.monotonic()
        with suppress(ProcessLookupError):
            self.daemon.terminate()
        try:
            code, killed = self.daemon.wait(self._period), False
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            code, killed = self.daemon.wait(), True
        return Deletion(code, killed, time.monotonic() - began)
