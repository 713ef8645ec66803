"""Private real servers for tests, on loopback ports of their own: Redis, MariaDB and PostgreSQL.

    with RedisServer() as server:       # a Redis that this test alone may kill
        server.kill()
        server.start()                  # same port, same data

A server is gone when its test process is, and its files too, also when that one was killed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self

import asyncpg
import pymysql
import redis
from ports import free_port

_START_TIMEOUT = 30
_STOP_TIMEOUT = 20
_PORT_TRIES = 5
# As an option of a server: another port that is free, at each try to start.
FREE_PORT = "a free port"
_MEMORY = "/dev/shm"
_ROOM_BYTES = 2 << 30
# Where distributions put servers that an ordinary user's PATH does not show.
_PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin:/usr/sbin:/usr/libexec"])


class Server:
    """A server process: what the two kinds have in common."""

    binary_name: ClassVar[str]
    # Whether the test that runs lacks the mark `server`.
    forbidden: ClassVar[bool] = False

    def __init__(self, place: str | None = None) -> None:
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: Mapping[str, str] = {}
        self._user: str | None = None  # another one than the user of this process
        self._home = Path(tempfile.mkdtemp(prefix="nonet-test-", dir=place))
        _reaper.watch(self._home)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._home)
        _reaper.forget(self._home)

    @classmethod
    def find(cls) -> str | None:
        """Path of the installed server."""
        return shutil.which(cls.binary_name, path=_PLACES)

    @classmethod
    def version(cls) -> str:
        """What the server calls itself, with its path: for the header of a test run."""
        if not (binary := cls.find()):
            return f"{cls.binary_name}: not installed (`make test` does, or says what to install)"
        words = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
        return f"{binary}: {words.stdout.removeprefix(binary).strip()}"

    @property
    def pid(self) -> int:
        """The running server's process."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether it was started, and not ended since."""
        return self._process is not None

    @property
    def data(self) -> Path:
        """Where the server keeps its data."""
        return self._home / "data"

    def start(self) -> None:
        """Start and wait until it answers; the port of the first start is kept."""
        assert not self.forbidden, "it starts a server: mark this test `server`, for `make quick`"
        assert self._process is None, "the server runs already"
        binary = self.find()
        if not binary:
            raise FileNotFoundError(f"{self.binary_name} is not installed: see `make test`")
        if not self.data.exists():
            self._make_data()
        for _ in range(1 if self.port else _PORT_TRIES):
            port = self.port or free_port()
            if self._try_start([binary, *self._options(port)], port):
                self.port = port
                return
        raise RuntimeError(f"{binary} did not start:\n{self._log.read_text(errors='replace')}")

    def stop(self) -> None:
        """Ask the server to end, as an administrator would."""
        if self._process:
            self._process.terminate()
            self._ended()

    def kill(self) -> None:
        """End the server as a crash would."""
        if self._process:
            self._process.kill()
            self._ended()

    def restart(self, *, keep_data: bool = True) -> None:
        """Stop, and start on the same port, with the data or without."""
        self.stop()
        if not keep_data:
            shutil.rmtree(self.data)
        self.start()

    @property
    def _log(self) -> Path:
        return self._home / "log"

    def _try_start(self, command: list[str], port: int) -> bool:
        """False if the server ended while it started: perhaps somebody else took the port."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=self._user,
            )
        _reaper.watch(self._process.pid)
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._ended()
                return False
            if self._answers(port):
                return True
            time.sleep(0.02)
        self.kill()
        return False

    def _ended(self) -> None:
        assert self._process
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _reaper.forget(self._process.pid)
        self._process = None

    def _make_data(self) -> None:
        self.data.mkdir()

    def _options(self, port: int) -> list[str]:
        raise NotImplementedError

    def _answers(self, port: int) -> bool:
        raise NotImplementedError


class RedisServer(Server):
    """A private redis-server; its data survives `stop` and `kill`, as with AOF in production.

    Args:
        options: of its command line, beside its own.
        environment: variables, beside those of this process.
    """

    binary_name = "redis-server"

    def __init__(self, *options: str, environment: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._more_options = options
        self._environment = environment or {}

    @property
    def url(self) -> str:
        """For redis-py."""
        return f"redis://127.0.0.1:{self.port}/0"

    def url_for(self, command: str) -> str:
        """What a daemon or a client, by the name of its command, is given as its URL."""
        return self.url

    @property
    def nodes(self) -> list[RedisServer]:
        """The servers that it consists of."""
        return [self]

    @property
    def announcers(self) -> list[Callable[..., redis.Redis]]:
        """Each makes a client of a server that announces what happens to keys."""
        return [self.client]

    def client(self, **options: Any) -> redis.Redis:
        """A synchronous client, to look at the data; close it."""
        return self._connect(self.port, **{"decode_responses": True, **options})

    def _options(self, port: int) -> list[str]:
        options = f"{self._listen(port)} --bind 127.0.0.1 --dir {self.data} --appendonly yes"
        more = [str(free_port()) if one == FREE_PORT else one for one in self._more_options]
        return [*options.split(), "--appendfsync", "no", "--save", "", *more]

    def _listen(self, port: int) -> str:
        return f"--port {port}"

    def _connect(self, port: int, **options: Any) -> redis.Redis:
        return redis.Redis(port=port, **options)

    def _answers(self, port: int) -> bool:
        with self._connect(port, decode_responses=True, socket_timeout=1) as client:
            try:
                # Another server may have taken the port: ours runs in our directory.
                return client.config_get("dir")["dir"] == os.path.realpath(self.data)
            except redis.RedisError:
                return False


class MariaServer(Server):
    """A private MariaDB server; user root without password."""

    binary_name = "mariadbd"

    def __init__(self) -> None:
        super().__init__(_in_memory())

    def url(self, database: str) -> str:
        """For SQLAlchemy, through aiomysql."""
        return f"mysql+aiomysql://root@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str) -> None:
        """Run one statement as root, and commit it."""
        with contextlib.closing(self._connect(self.port)) as connection:
            connection.cursor().execute(statement)
            connection.commit()

    def _make_data(self) -> None:
        installer = shutil.which("mariadb-install-db", path=_PLACES)
        assert installer, "mariadb-install-db is not installed beside mariadbd"
        (self._home / "tmp").mkdir(exist_ok=True)
        made = subprocess.run(
            [
                *(installer, "--no-defaults", *self._directories(), *self._as_user()),
                *("--auth-root-authentication-method=normal", "--skip-test-db"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if made.returncode:
            raise RuntimeError(made.stdout.decode(errors="replace"))

    def _directories(self) -> list[str]:
        # A server that starts deletes the temporary tables of all others in its tmpdir.
        return [f"--datadir={self.data}", f"--tmpdir={self._home}/tmp"]

    def _options(self, port: int) -> list[str]:
        return [
            *("--no-defaults", *self._as_user(), *self._directories()),
            *(f"--port={port}", "--bind-address=127.0.0.1", f"--socket={self._home}/socket"),
            *("--skip-name-resolve", "--innodb-flush-log-at-trx-commit=2"),
            *("--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M"),
        ]

    def _answers(self, port: int) -> bool:
        try:
            self._connect(port).close()
        except (pymysql.Error, OSError):
            return False
        # Ours has made its socket by then; another server would not.
        return (self._home / "socket").exists()

    def _connect(self, port: int) -> pymysql.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(host="127.0.0.1", port=port, user="root", connect_timeout=2)

    @staticmethod
    def _as_user() -> list[str]:
        return ["--user=root"] if os.getuid() == 0 else []


class PostgresServer(Server):
    """A private PostgreSQL server; user postgres without password."""

    binary_name = "postgres"

    def __init__(self) -> None:
        super().__init__(_in_memory())
        if os.getuid() == 0:  # as root it refuses to run
            self._user = "nobody"
            shutil.chown(self._home, self._user)

    @classmethod
    def find(cls) -> str | None:
        """Path of the installed server; Debian keeps it outside of PATH."""
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        return str(found[-1]) if found else super().find()

    def url(self, database: str) -> str:
        """For SQLAlchemy, through asyncpg."""
        return f"postgresql+asyncpg://postgres@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str) -> None:
        """Run one statement as the administrator."""
        _in_own_loop(self._execute(statement))

    async def _execute(self, statement: str) -> None:
        connection = await self._connect(self.port)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    def _make_data(self) -> None:
        binary = self.find()
        assert binary
        made = subprocess.run(
            [
                *(str(Path(binary).resolve().with_name("initdb")), f"--pgdata={self.data}"),
                *("--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-sync"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._home,
            user=self._user,
        )
        if made.returncode:
            raise RuntimeError(made.stdout.decode(errors="replace"))

    def _options(self, port: int) -> list[str]:
        settings = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self._home,
            "fsync": "off",  # the machine does not crash; kills of the server lose nothing
            "max_connections": 200,
            "dynamic_shared_memory_type": "mmap",  # in its data: a kill leaves nothing behind
        }
        options = (f"--{name}={value}" for name, value in settings.items())
        return [f"-D{self.data}", *options]

    def _answers(self, port: int) -> bool:
        try:
            _in_own_loop(self._ping(port))
        except (asyncpg.PostgresError, OSError):
            return False
        # Ours has made its socket by then; another server would not.
        return (self._home / f".s.PGSQL.{port}").exists()

    async def _ping(self, port: int) -> None:
        await (await self._connect(port)).close()

    async def _connect(self, port: int) -> asyncpg.Connection:
        return await asyncpg.connect(
            host="127.0.0.1", port=port, user="postgres", database="postgres", timeout=2
        )


def _in_own_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread: the caller's thread may have an event loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


class _Reaper:
    """Kills the watched processes, and removes the watched directories, when this process ends.

    A helper process reads what they are from a pipe, whose end tells it that this process is gone.
    (The kernel's parent death signal would come when the *thread* that started a server ends.)
    """

    _SCRIPT = """
import os, shutil, signal, sys, time
watched = set()
for line in sys.stdin:
    verb, item = line.rstrip("\\n").split(" ", 1)
    watched.add(item) if verb == "watch" else watched.discard(item)
for pid in filter(str.isdigit, watched):
    try:
        os.kill(int(pid), signal.SIGKILL)
    except ProcessLookupError:
        pass
for directory in filter(os.path.isabs, watched):
    for _ in range(100):  # who was killed may write a last time
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            break
        time.sleep(0.1)
"""

    def __init__(self) -> None:
        self._helper: subprocess.Popen[str] | None = None

    def watch(self, item: int | Path) -> None:
        """A process, by its id, or a directory."""
        if self._helper is None:
            self._helper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", self._SCRIPT],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,  # outlives Ctrl-C
            )
            atexit.register(self._helper.communicate)  # its end, which ends what is left
        self._tell("watch", item)

    def forget(self, item: int | Path) -> None:
        self._tell("forget", item)

    def _tell(self, verb: str, item: int | Path) -> None:
        assert self._helper and self._helper.stdin
        self._helper.stdin.write(f"{verb} {item}\n")
        self._helper.stdin.flush()


_reaper = _Reaper()


def _in_memory() -> str | None:
    """Where files never reach a disk, if there is room: no test cuts the power, so none waits."""
    try:
        room = shutil.disk_usage(_MEMORY).free
    except OSError:
        return None
    return _MEMORY if room >= _ROOM_BYTES and os.access(_MEMORY, os.W_OK) else None
