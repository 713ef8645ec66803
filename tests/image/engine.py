"""`Engine`: docker or podman, whichever runs containers here, as a cluster would run ours.

with engine.start("nonet:dev", "task-worker", "--size", "small") as worker:
    worker.execute("task-run", "probe", "livez")
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from waits import wait_until

# Root's own settings may be more than a container may have here; these are enough for ours.
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
# Without rights, with a root that nobody can write, and loopback for Redis. An emptyDir is like
# this tmpfs: everybody may write there.
_RESTRICTED = (
    "--network=host",
    "--read-only",
    "--tmpfs=/tmp:rw,mode=1777",
    "--tmpfs=/var/lib/nonet:rw,mode=1777",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
)
# podman without systemd, on a machine with old control groups.
_BARE = ("podman", "--runtime=runc", "--cgroup-manager=cgroupfs")


class Container:
    """A container that runs."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as a probe or a hook does."""
        return self._engine.call("exec", self._name, *command)

    def stop(self, seconds: int) -> int:
        """SIGTERM, and SIGKILL after so many seconds; the exit code."""
        self._engine.call("stop", f"--time={seconds}", self._name, check=True)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        return int(self._engine.call("wait", self._name, check=True).stdout)

    def inspected(self, template: str) -> str:
        """A part of what the engine knows of it."""
        found = self._engine.call("inspect", f"--format={template}", self._name, check=True)
        return found.stdout.strip()

    @property
    def log(self) -> str:
        """What it has said so far."""
        done = self._engine.call("logs", self._name)
        return done.stdout + done.stderr

    def wait_ready(self) -> None:
        """Wait for the ``ready`` line of a daemon."""
        wait_until(lambda: " ready: " in self.log or not self._runs(), "the daemon is ready")
        assert self._runs(), f"the container ended:\n{self.log}"

    def _runs(self) -> bool:
        return self.inspected("{{.State.Running}}") == "true"


class Engine:
    """What runs containers.

    Args:
        command: its program and the options that it needs here.
    """

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command

    @property
    def name(self) -> str:
        """The program."""
        return self._command[0]

    def call(self, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        """One of its commands."""
        done = subprocess.run([*self._command, *words], capture_output=True, text=True)
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done

    def run(
        self, image: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a container of its own, to its end."""
        return self.call("run", "--rm", *self._options(environment), image, *command)

    @contextmanager
    def start(
        self, image: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> Iterator[Container]:
        """A container that is gone after the block."""
        name = f"nonet-test-{uuid.uuid4().hex[:12]}"
        options = [f"--name={name}", "--detach", *self._options(environment)]
        self.call("run", *options, image, *command, check=True)
        try:
            yield Container(self, name)
        finally:
            self.call("rm", "--force", name)

    @staticmethod
    def _options(environment: Mapping[str, str] | None) -> list[str]:
        variables = [f"--env={name}={value}" for name, value in (environment or {}).items()]
        return [*_RESTRICTED, *_LIMITS, *variables]


def find(image: str) -> Engine | None:
    """The engine that has the image and can run it; None: there is none."""
    for command in (("docker",), ("podman",), _BARE):
        if shutil.which(command[0]):
            engine = Engine(command)
            if engine.run(image, "true").returncode == 0:
                return engine
    return None


def is_possible() -> bool:
    """Whether somebody may build and run containers here."""
    return os.geteuid() == 0 or shutil.which("docker") is not None
