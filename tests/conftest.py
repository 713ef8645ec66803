"""Fixtures for every test: real servers, clean at the start of each test."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from clients import broker_at
from doors import Door
from hypothesis import settings
from preloaded import PLACES
from servers import MariaServer, PostgresServer, RedisServer, Server
from sharing import first_alone, shared

from nonet.base.keys import STRUCTURE
from nonet.stores.namespace.sandbox import leaked_keys
from nonet.stores.queue.broker import Broker
from nonet.tasks import carried, hooks, middleware

# pytest-xdist sets it, and commands would wrap their lines.
os.environ.pop("COLUMNS", None)

_databases = itertools.count(1)
_TESTS = Path(__file__).parent
# Fixtures that start a server, and folders whose tests run the product as a whole or need more
# than Python: a chart is rendered by Helm's library.
_SERVERS = {"redis_server", "maria_server", "postgres_server", "nonet_server", "servers"}
_WHOLE = {
    *("acceptance", "budget", "chart", "examples", "faults", "image"),
    *("release", "topologies", "upgrade"),
}
# How long an example takes says how busy the machine is. The same examples in each run: what a run
# finds by chance says nothing of the change that it tests.
settings.register_profile("fixed", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("fixed")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import tests of the whole product for `make quick`."""
    is_whole = collection_path.parent == _TESTS and collection_path.name in _WHOLE
    return True if is_whole and "not server" in config.option.markexpr else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None]:
    """Let one process compile the modules for all, and look for no garbage in what stays.

    In a fresh clone each process would compile them: that is half of the time that collection
    takes. Looking for garbage would be a fifth of it.
    """
    gc.disable()
    with first_alone("collection", session.config):
        yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let no test start a server that `make quick` would run."""
    Server.forbidden = item.get_closest_marker("server") is None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Mark what needs servers or daemons before `-m` selects, and begin with what takes longest."""
    for item in items:
        folder = item.path.relative_to(_TESTS).parts[0]
        if folder in _WHOLE or _SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker("server")
    yield
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    long = [item for item in items if item.get_closest_marker("long")]
    rest = [item for item in items if not item.get_closest_marker("long")]
    # Each process begins with a part of the list, and later takes tests from the end of others.
    parts = [
        (*long[n::workers], *rest[n * len(rest) // workers : (n + 1) * len(rest) // workers])
        for n in range(workers)
    ]
    items[:] = itertools.chain.from_iterable(parts)


def pytest_report_header() -> list[str]:
    """Which servers the tests run against."""
    return [RedisServer.version(), MariaServer.version(), PostgresServer.version()]


@pytest.fixture(autouse=True)
def nothing_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What modules register for their process, when tests import them, is for daemons only."""
    monkeypatch.setattr(hooks, "_registered", {})
    monkeypatch.setattr(carried, "_carried", {})
    monkeypatch.setattr(middleware, "_registered", [])
    monkeypatch.setattr(middleware.Middlewares, "are_around_submit", False)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for all tests: leave it running. To kill one, start a `RedisServer` of your own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """An empty Redis, which the namespaces of the tests have used before: locks need no rest."""
    with redis_server.client() as client:
        client.flushall()
        for namespace in ("test", "acceptance", "cli", "nonet"):
            client.hset(
                f"{{{namespace}}}:epoch", mapping={"since": 1, "seq": 1, "withheld": 0, "layout": 1}
            )
    return redis_server.url


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[Broker]:
    """An open broker of the empty namespace ``test``, with the times of production."""
    opened = broker_at(redis_url)
    yield opened
    await opened.aclose()


@pytest.fixture
def no_leaked_keys(redis_server: RedisServer, redis_url: str) -> Iterator[list[str]]:
    """Fails the test if it leaves a key without TTL that no structure owns.

    Gives a list of patterns without ``{namespace}:``, to which a test may add.
    """
    allowed = list(STRUCTURE)
    yield allowed
    with redis_server.client(decode_responses=False) as client:  # a name may be any bytes
        leaked = leaked_keys(client, allowed=allowed)
    assert not leaked, f"keys without TTL or owner are left: {leaked}"


@pytest.fixture(scope="session")
def maria_server() -> Iterator[MariaServer]:
    """One MariaDB for all tests that ask for it."""
    with MariaServer() as server:
        yield server


@pytest.fixture
def mariadb_url(maria_server: MariaServer) -> Iterator[str]:
    """An empty MariaDB database, for SQLAlchemy with aiomysql."""
    name = f"test_{next(_databases)}"
    maria_server.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    yield maria_server.url(name)
    maria_server.execute(f"DROP DATABASE {name}")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests that ask for it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty PostgreSQL database, for SQLAlchemy with asyncpg."""
    name = f"test_{next(_databases)}"
    postgres_server.execute(f"CREATE DATABASE {name}")
    yield postgres_server.url(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def mariadb_behind_a_door(mariadb_url: str) -> AsyncIterator[tuple[Door, str]]:
    """An empty MariaDB database, and the port through which its URL leads."""
    server = sa.make_url(mariadb_url)
    door = Door(server.host or "127.0.0.1", server.port or 3306)
    await door.open()
    through = server.set(host="127.0.0.1", port=door.port)
    yield door, through.render_as_string(hide_password=False)
    await door.close()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An empty SQLite database, for SQLAlchemy with aiosqlite."""
    return f"sqlite+aiosqlite:///{tmp_path / 'nonet.db'}"


@pytest.fixture(scope="session")
def example_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the package ``examples`` is installed, for ``PYTHONPATH`` of processes.

    It is not in this environment: its entry points would be in all other tests.
    """
    directory = shared(tmp_path_factory, "example", lambda place: _install(place, "examples"))
    PLACES.add(str(directory))
    return directory


@pytest.fixture(scope="session")
def shelf_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the web service in ``examples/shelf``."""
    directory = shared(tmp_path_factory, "shelf", lambda place: _install(place, "examples/shelf"))
    PLACES.add(str(directory))
    return directory


def _install(directory: Path, package: str) -> None:
    # What is built must not come from a cache, which looks at pyproject.toml alone.
    options = ("--no-cache", "--no-deps", "--no-build-isolation", "--python", sys.executable)
    uv = str(Path(sys.executable).parent / "uv")
    command = [uv, "pip", "install", "-q", *options, "--target", str(directory)]
    subprocess.run([*command, str(Path(__file__).parents[1] / package)], check=True)
