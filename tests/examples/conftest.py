"""The example package, installed apart from what all other tests see, and daemons with it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import preloaded
import pytest
import redis
from daemons import Daemon
from servers import RedisServer
from waits import wait_until

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "examples" / "nonet.yaml"


class Example:
    """One namespace with the example package: its daemons, commands, database and storage.

    Attributes:
        environment: of all of them.
        redis: a synchronous client.
    """

    def __init__(self, installed: Path, tables: Path, server: RedisServer, home: Path) -> None:
        self._home, self._database = home, home / "example.db"
        shutil.copy(tables, self._database)
        self._daemons: list[Daemon] = []
        self.redis: redis.Redis = server.client()
        self.environment = {
            "PYTHONPATH": str(installed),
            "NONET_REDIS_URL": server.url,
            "NONET_DB_URL": f"sqlite+aiosqlite:///{self._database}",
            "NONET_STATE_DIR": str(home / "state"),
            "NONET_CONFIG": str(CONFIG),
            "NONET_LOCK_TTL": "2",  # for so long locks rest after a loss of data
            "EXAMPLE_STORAGE": str(home / "storage"),
        }
        for element in ("CERN-DST", "RAL-DST"):
            (home / "storage" / element).mkdir(parents=True)

    def close(self) -> None:
        """Kill every daemon."""
        for daemon in self._daemons:
            daemon.kill()
        self.redis.close()

    def worker(self, **environment: str) -> Daemon:
        """A worker for small tasks: all of the package are."""
        return self._start("task-worker", "--size", "small", **environment)

    def scheduler(self) -> Daemon:
        """A scheduler whose configuration holds."""
        scheduler = self._start("task-scheduler")
        wait_until(lambda: " published" in scheduler.log, "the configuration is published")
        return scheduler

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        script, *arguments = map(str, command)
        return preloaded.run(script, *arguments, variables=self.environment, cwd=self._home)

    def said(self, *command: object) -> str:
        """What a command says that ends well."""
        ended = self.run(*command)
        assert ended.returncode == 0, ended.stderr + ended.stdout
        return ended.stdout

    def json(self, *command: object) -> Any:
        """The same as data."""
        return json.loads(self.said(*command, "--json"))

    def program(self, body: str) -> str:
        """What Python says to this body of a coroutine, with the application open."""
        lines = "\n".join(f"        {line}" for line in body.splitlines())
        text = (
            "import asyncio\nfrom nonet import Nonet\n"
            "from nonet_example import files, groups, pilots\n"
            f"async def main():\n    async with Nonet.from_settings() as app:\n{lines}\n"
            "asyncio.run(main())\n"
        )
        return self.said("python", "-c", text)

    def add(
        self, lfn: str, element: str, *, transformation: int = 0, state: str = "present"
    ) -> None:
        """A row, and the file if the element exists."""
        directory = self._home / "storage" / element
        if directory.exists():
            (directory / lfn.replace("/", "%2F")).write_text("abc")
        with sqlite3.connect(self._database) as rows:
            rows.execute(
                "INSERT INTO example_files (lfn, vo, storage_element, transformation, state,"
                " registered, asked) VALUES (?, 'lhcb', ?, ?, ?, '2026-01-01', '2026-01-02')",
                (lfn, element, transformation, state),
            )
        rows.close()

    def states(self) -> dict[str, str]:
        """Those of all files, by LFN."""
        with sqlite3.connect(self._database) as rows:
            found = dict(rows.execute("SELECT lfn, state FROM example_files").fetchall())
        rows.close()
        return found

    def _start(self, *command: str, **environment: str) -> Daemon:
        log = self._home / f"{len(self._daemons)}.log"
        daemon = Daemon(*command, environment={**self.environment, **environment}, log=log)
        self._daemons.append(daemon)
        return daemon.wait_ready()


@pytest.fixture(scope="session")
def tables(example_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the empty tables, made as the README says."""
    path = tmp_path_factory.mktemp("tables") / "example.db"
    variables = {
        "PYTHONPATH": str(example_package),
        "NONET_DB_URL": f"sqlite+aiosqlite:///{path}",
        "NONET_STATE_DIR": str(path.parent),
    }
    command = ("python", "-m", "nonet_example.database")
    ended = preloaded.run(*command, variables=variables, cwd=path.parent)
    assert ended.returncode == 0, ended.stderr
    return path


@pytest.fixture
def example(
    example_package: Path, tables: Path, redis_server: RedisServer, redis_url: str, tmp_path: Path
) -> Iterator[Example]:
    """The package with an empty Redis, empty tables and two storage elements."""
    made = Example(example_package, tables, redis_server, tmp_path)
    yield made
    made.close()
