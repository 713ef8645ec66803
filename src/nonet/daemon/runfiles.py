"""Run files: let a command find the workers of this machine, stop them, and read their exit codes.

A worker holds a lock on its file until its process is gone, however it ends. A file without a lock
is stale: its process id may belong to another process by now, which is never signalled.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from nonet.base.errors import ConfigurationError

_PATTERN = "worker-*.run"
_MOST_BYTES = 65_536


def place() -> str:
    """Return the machine, boot and container within which a process id is unique."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # not on Linux
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
        parts.append(str(os.readlink("/proc/self/ns/pid")))
    return " ".join(parts)


class RunningWorker(Struct, frozen=True):
    """The content of a run file.

    Attributes:
        incarnation: id of the worker in Redis.
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
        self.path = path
        self._fd = fd

    def ended(self, code: int) -> None:
        """Write the exit code, just before the process ends."""
        # If the disk is full, the waiting command reports that there is no exit code.
        with suppress(OSError):
            os.write(self._fd, b"%d\n" % code)


@contextmanager
def announced(directory: Path, worker: RunningWorker) -> Iterator[RunFile]:
    """Keep a locked run file of this process during the block.

    Raises:
        OSError: the directory cannot be written, or does not support locks.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for stale in _opened(directory):
        stale.close()
    made = _make(directory, worker)
    try:
        yield made
    finally:
        # A command that has opened the file can still wait for the end and read the exit code.
        with suppress(OSError):
            made.path.unlink(missing_ok=True)


def _make(directory: Path, worker: RunningWorker) -> RunFile:
    name = f"worker-{worker.incarnation}-{secrets.token_hex(4)}"
    unfinished = directory / f"{name}.new"
    fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        os.write(fd, msgspec.json.encode(worker) + b"\n")
        fcntl.flock(fd, fcntl.LOCK_EX)
        # Rename it only now: other processes must see a complete and locked file, not a stale one.
        return RunFile(unfinished.rename(directory / f"{name}.run"), fd)
    except OSError:
        unfinished.unlink(missing_ok=True)
        os.close(fd)
        raise


class Watched:
    """The run file of another process, open to wait for its end.

    Attributes:
        worker: the content of the file.
    """

    def __init__(self, path: Path, fd: int, worker: RunningWorker) -> None:
        self._path = path
        self._fd = fd
        self._ended = False
        self.worker = worker

    def ended(self) -> bool:
        """Whether that process is gone; its file is then removed."""
        # A forked copy of that process may still hold the lock.
        is_gone = _removed(self._path, self._fd) or not _exists(self.worker.pid)
        self._ended = self._ended or is_gone
        return self._ended

    def exit_code(self) -> int | None:
        """The exit code; None if the process did not write one, as after a SIGKILL."""
        return _read(self._fd)[1]

    def signal(self, number: signal.Signals) -> None:
        """Signal that process, but never another one with the same id; do nothing if it has ended.

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
            if not self.ended():  # alive: the id still belongs to it
                signal.pidfd_send_signal(process, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(process)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def running(directory: Path, namespace: str, size: str | None = None) -> list[Watched]:
    """Find the workers of a namespace, and optionally of one size, that run here now.

    Close each of them.

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
            f"cannot read run files ({error}): run this as the user of the worker, and set its "
            "NONET_STATE_DIR"
        ) from None
    return found


def _opened(directory: Path) -> Iterator[Watched]:
    """Yield all locked run files; remove stale ones."""
    for path in sorted(directory.glob(_PATTERN)):
        try:
            fd = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue  # the worker has just ended
        worker, _ = _read(fd)
        if _removed(path, fd) or worker is None:
            os.close(fd)
        else:
            yield Watched(path, fd, worker)


def _read(fd: int) -> tuple[RunningWorker | None, int | None]:
    """Return the worker and, if it has ended, its exit code."""
    lines = os.pread(fd, _MOST_BYTES, 0).splitlines()
    try:
        worker = msgspec.json.decode(lines[0], type=RunningWorker)
        if not worker.pid > 0:  # a signal to 0 or less reaches many processes
            raise ValueError(worker.pid)
        return worker, int(lines[1]) if len(lines) > 1 else None
    except (ValueError, IndexError):
        return None, None


def _removed(path: Path, fd: int) -> bool:
    """Remove the file if it is not locked; return whether it was removed."""
    if not _lock(fd):
        return False
    with suppress(OSError):
        path.unlink(missing_ok=True)
    fcntl.flock(fd, fcntl.LOCK_UN)  # other commands wait for this end, too
    return True


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        pass
    return True


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
