"""`docs/reference/screens.md`: what commands print at 80 columns, made by a system that runs.

Each ``console`` block of the page is a command with what it prints. ``make screens`` writes that
anew; a new screen is a new block of one line, the command.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import preloaded
import pytest
import records
from daemons import Daemon
from docs.pages import DOCS
from servers import RedisServer
from waits import WAIT_SECONDS, wait_until

_PAGE = DOCS / "reference" / "screens.md"
_COLUMNS = 80
_TESTS = Path(__file__).parents[1]
_SCREEN = re.compile(r"(?ms)^```console\n\$ (task-run [^\n]*)\n(.*?)^```\n")


class System:
    """Real daemons with tasks in all states."""

    def __init__(self, server: RedisServer, home: Path) -> None:
        self._server, self._home = server, home
        self._variables = {
            "NONET_REDIS_URL": server.url,
            "NONET_NAMESPACE": "screens",
            "NONET_STATE_DIR": str(home / "state"),
            "NONET_DB_URL": f"sqlite+aiosqlite:///{home}/nonet.db",
            "NONET_TASKS": "mailer",
        }

    def screens(self, commands: list[str]) -> list[str]:
        """Return what commands print at a terminal of 80 columns, without colours."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        more = {"COLUMNS": str(_COLUMNS), "PYTHONPATH": str(_TESTS)}
        command, forks = preloaded.shim("python")
        ended = subprocess.run(
            [*command, str(Path(__file__).with_name("stable.py"))],
            env={**kept, **self._variables, **more, **forks},
            cwd=self._home,
            input=json.dumps([command.split() for command in commands]),
            stdout=subprocess.PIPE,
            text=True,
            timeout=len(commands) * WAIT_SECONDS,
            check=True,
        )
        printed: list[str] = json.loads(ended.stdout)
        return printed

    def run(self) -> Iterator[None]:
        """Start the daemons, and bring tasks into each state."""
        with ExitStack() as running:
            self._command("db upgrade")
            for daemon in (["task-scheduler"], ["task-worker", "--size", "small"]):
                log = self._home / f"{daemon[0]}.log"
                started = Daemon(*daemon, environment=self._variables, log=log)
                running.enter_context(started).wait_ready()
            wait_until(lambda: "config-published" in self._command("events"), "it is published")
            self._command("pause --task Greet --reason maintenance")
            self._reach("invoice-7", "running", "SendInvoice --args [7]")
            self._reach("invoice-7-again", "waiting", "SendInvoice --args [7]")
            with self._server.client() as redis:  # only a long wait is a finding
                records.hincrby(redis, "{screens}:t:invoice-7-again", "since", -60_000_000)
            self._reach("users", "dead", 'ImportUsers --args ["/data/users.csv"]')
            self._reach("archive", "queued", "RenderArchive --args [2025]")
            self._reach("greet-ann", "delayed", 'Greet --args ["ann"] --at 2099-01-01')
            wait_until(lambda: "lock:mutex:invoice:7" in self._command("overview"), "it waits long")
            yield

    def _reach(self, id: str, state: str, task: str) -> None:
        """Submit a task, and wait until it has this state."""
        assert self._command(f"submit {task} --id {id}") == f"{id}\n"
        wait_until(
            lambda: f'"state": "{state}"' in self._command(f"status {id} --json"),
            f"{id} is {state}",
        )

    def _command(self, words: str) -> str:
        ended = preloaded.run("task-run", *words.split(), variables=self._variables, cwd=self._home)
        return ended.stdout


@pytest.fixture(scope="module")
def system(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """The system of all screens."""
    made = System(redis_server, tmp_path_factory.mktemp("screens"))
    yield from (made for _ in made.run())


def test_the_page_shows_what_commands_print(system: System) -> None:
    """Ten commands and more, on a system with a task in each state; no line is too long."""
    page = _PAGE.read_text(encoding="utf-8")
    commands = [command for command, _ in _SCREEN.findall(page)]
    printed = iter(system.screens(commands))
    made = _SCREEN.sub(lambda found: f"```console\n$ {found[1]}\n{next(printed)}```\n", page)
    if os.environ.get("SCREENS") == "write":
        _PAGE.write_text(made, encoding="utf-8")
        page = made
    assert len(commands) >= 10
    for command, output in _SCREEN.findall(made):
        assert max(map(len, output.splitlines())) <= _COLUMNS, command
    assert page == made, "run make screens"
