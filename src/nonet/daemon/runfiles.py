"""Run files: which workers run here, so that a command can stop them and learn how they ended.

A worker holds a lock on its file until its process is gone, however that ends. A file that nobody
holds is stale: its process id may be another process by now, which is never signalled.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from nonet.base.errors import ConfigurationError

_PATTERN = "worker-*.run"
_MOST_BYTES = 65_536
_TRIES = 10


def place() -> str:
    """Where a process id means one process: this machine, since it booted, in this container."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # not on Linux
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
        parts.append(str(os.readlink("/proc/self/ns/pid")))
    return " ".join(parts)


@dataclass(frozen=True)
class RunningWorker:
    """What a worker says of itself.

    Attributes:
        incarnation: its id in Redis.
        place: where `pid` is valid, see `place`.
    """

    namespace: str
    size: str
    pid: int
    incarnation: str
    place: str


class RunFile:
    """The run file of this process; its lock lasts until the process ends."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    def ended(self, code: int) -> None:
        """Note the exit code, just before the end."""
        with suppress(OSError):  # a full disk; whoever waits is told that there is no code
            os.write(self._fd, b"%d\n" % code)

    def remove(self) -> None:
        """Remove the name; who has opened the file can still wait for the end and read the code."""
        self._path.unlink(missing_ok=True)


@contextmanager
def announced(directory: Path, worker: RunningWorker) -> Iterator[RunFile]:
    """A locked run file of this process, whose name is gone after the block.

    Raises:
        OSError: the directory cannot be written, or knows no locks.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for stale in _opened(directory):
        stale.close()
    made = _make(directory, worker)
    try:
        yield made
    finally:
        with suppress(OSError):
            made.remove()


def _make(directory: Path, worker: RunningWorker) -> RunFile:
    line = json.dumps(asdict(worker)).encode() + b"\n"
    for _ in range(_TRIES):
        path = directory / f"worker-{worker.incarnation}-{secrets.token_hex(4)}.run"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            os.write(fd, line)
            # Written first: what is locked is complete. Until here somebody may take it for stale.
            if _lock(fd) and os.fstat(fd).st_nlink:
                return RunFile(path, fd)
        except OSError:
            path.unlink(missing_ok=True)
            os.close(fd)
            raise
        os.close(fd)
    raise OSError(f"{directory}: others remove every new run file")


class Watched:
    """The run file of another process, opened to wait for its end.

    Attributes:
        worker: what it says of itself.
    """

    def __init__(self, path: Path, fd: int, worker: RunningWorker) -> None:
        self._path = path
        self._fd = fd
        self._ended = False
        self.worker = worker

    def ended(self) -> bool:
        """Whether that process is gone; its file is removed then."""
        # A copy of that process, which a task has forked, holds the lock, too.
        is_gone = _removed(self._path, self._fd) or not _exists(self.worker.pid)
        self._ended = self._ended or is_gone
        return self._ended

    def exit_code(self) -> int | None:
        """How it ended; None if it did not say, as after a SIGKILL."""
        return _read(self._fd)[1]

    def signal(self, number: signal.Signals) -> None:
        """Signal that process and none that got its id later; nothing if it has ended.

        Raises:
            PermissionError: it belongs to another user.
        """
        try:
            process = os.pidfd_open(self.worker.pid)
        except ProcessLookupError:
            return
        except (AttributeError, OSError):  # not Linux, or a sandbox that forbids it
            if not self.ended():
                os.kill(self.worker.pid, number)
            return
        try:
            if not self.ended():  # as it lives, this is its process
                signal.pidfd_send_signal(process, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(process)

    def close(self) -> None:
        """Look at it no more."""
        os.close(self._fd)


def running(directory: Path, namespace: str, size: str | None = None) -> list[Watched]:
    """The workers of a namespace, and of one size if given, that run here now; close each.

    Raises:
        ConfigurationError: the files cannot be read.
    """
    found: list[Watched] = []
    here = place()
    try:
        for item in _opened(directory):
            worker = item.worker
            ours = (worker.namespace, worker.place) == (namespace, here)
            if ours and size in (None, worker.size):
                found.append(item)
            else:
                item.close()
    except OSError as error:
        raise ConfigurationError(
            f"run files cannot be read ({error}): be the user of the worker, and name its "
            "NONET_STATE_DIR"
        ) from None
    return found


def _opened(directory: Path) -> Iterator[Watched]:
    """All files that are held; stale ones are removed."""
    for path in sorted(directory.glob(_PATTERN)):
        try:
            fd = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue  # it has just ended
        worker, _ = _read(fd)
        if _removed(path, fd) or worker is None:
            os.close(fd)
        else:
            yield Watched(path, fd, worker)


def _read(fd: int) -> tuple[RunningWorker | None, int | None]:
    """Who holds a file, and the exit code, if it is there."""
    lines = os.pread(fd, _MOST_BYTES, 0).splitlines()
    try:
        worker = RunningWorker(**json.loads(lines[0]))
        if not worker.pid > 0:  # to a signal it would mean many processes
            raise ValueError(worker.pid)
        return worker, int(lines[1]) if len(lines) > 1 else None
    except (ValueError, TypeError, IndexError):
        return None, None


def _removed(path: Path, fd: int) -> bool:
    """Remove the file if nobody holds it."""
    if not _lock(fd):
        return False
    with suppress(OSError):
        path.unlink(missing_ok=True)
    fcntl.flock(fd, fcntl.LOCK_UN)  # others wait for this end, too
    return True


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
