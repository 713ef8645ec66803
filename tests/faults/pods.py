"""`Pod`: a worker that is started and deleted as a kubelet does it.

Where this machine lets us, the worker is process 1 of a PID namespace, as in a container, and the
hook is run in there; elsewhere both are ordinary processes. Each pod has a state directory of its
own, like an emptyDir.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import namespaces
from acceptance.site import Site
from daemons import Daemon

# As in docs/how-to/build-an-image.md and in the chart.
PRE_STOP = ("task-worker", "--drain")
# What a kubelet leaves between SIGTERM and SIGKILL when the hook has used up the grace period.
_LEAST_SECONDS = 2.0
_numbers = itertools.count(1)
CUT_OFF = -signal.SIGKILL
"""How a hook ends whose container ends a moment earlier: process 1 takes all others along."""


@dataclass(frozen=True)
class Deletion:
    """How a pod ended.

    Attributes:
        hook: exit code of the preStop hook, or `CUT_OFF`; None: it was still running when the
            period was over.
        code: that of the worker.
        killed: whether SIGKILL was needed.
        seconds: how long all of it took.
    """

    hook: int | None
    code: int
    killed: bool
    seconds: float


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
        state = Path(site.settings["NONET_STATE_DIR"]).parent / f"pod-{next(_numbers)}"
        self._environment = {**site.settings, **environment, "NONET_STATE_DIR": str(state)}
        command = [_script("task-worker"), "--size", size, "--concurrency", str(slots)]
        self._is_contained = namespaces.allowed()
        if self._is_contained:
            command = namespaces.as_first(*command)
        self.daemon: Daemon = site.program(*command, **self._environment)
        self._first = self._worker = self.daemon.pid

    def wait_ready(self) -> None:
        """Wait until it takes tasks."""
        self.daemon.wait_ready()
        if self._is_contained:  # below ``unshare`` is process 1, the init, and below it the worker
            self._first = namespaces.first(self.daemon.pid)
            self._worker = namespaces.first(self._first)

    def freeze(self) -> None:
        """Stop what works in it where it is."""
        os.kill(self._worker, signal.SIGSTOP)

    def delete(self) -> Deletion:
        """preStop, SIGTERM, wait, SIGKILL; returns when it has ended."""
        began = time.monotonic()
        hook = self._hook()
        with suppress(subprocess.TimeoutExpired):
            hook.wait(self._period)
        hook_code = hook.poll()
        self._signal(signal.SIGTERM)
        left = max(_LEAST_SECONDS, self._period - (time.monotonic() - began))
        try:
            code, killed = self.daemon.wait(left), False
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            code, killed = self.daemon.wait(), True
        hook.kill()
        hook.wait()
        return Deletion(hook_code, code, killed, time.monotonic() - began)

    def _hook(self) -> subprocess.Popen[bytes]:
        command = [_script(PRE_STOP[0]), *PRE_STOP[1:]]
        if self._is_contained:
            command = namespaces.beside(self.daemon.pid, *command)
        environment = {**os.environ, **self._environment}
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    def _signal(self, number: signal.Signals) -> None:
        if self.daemon.alive:
            with suppress(ProcessLookupError):  # it ends in this moment
                os.kill(self._first, number)


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)
