"""The example package, installed apart from what all other tests see, and daemons with it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import preloaded
import pytest
from daemons import Daemon
from waits import wait_until

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "examples" / "nonet.yaml"


class Example:
    """One namespace with the example package: its daemons, commands, database and storage.

    Attributes:
        environment: of all of them.
    """

    def __init__(self, installed: Path, tables: Path, redis_url: str, home: Path) -> None:
        self._home = home
        shutil.copy(tables, home / "example.db")
        self._daemons: list[Daemon] = []
        self.environment = {
            "PYTHONPATH": str(installed),
            "NONET_REDIS_URL": redis_url,
            "NONET_DB_URL": f"sqlite+aiosqlite:///{home}/example.db",
            "NONET_STATE_DIR": str(home / "state"),
            "NONET_CONFIG": str(CONFIG),
            "EXAMPLE_STORAGE": str(home / "storage"),
        }
        for element in ("CERN-DST", "RAL-DST"):
            (home / "storage" / element).mkdir(parents=True)

    def close(self) -> None:
        """Kill every daemon."""
        for daemon in self._daemons:
            daemon.kill()

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
            "from nonet_example import files\n"
            f"async def main():\n    async with Nonet.from_settings() as app:\n{lines}\n"
            "asyncio.run(main())\n"
        )
        return self.said("python", "-c", text)

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
    example_package: Path, tables: Path, redis_url: str, tmp_path: Path
) -> Iterator[Example]:
    """The package with an empty Redis, empty tables and two storage elements."""
    made = Example(example_package, tables, redis_url, tmp_path)
    yield made
    made.close()
