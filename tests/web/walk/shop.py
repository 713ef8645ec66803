"""A shop: a system of real daemons with tasks, locks and schedules in all states."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from daemons import Daemon
from waits import WAIT_SECONDS, wait_until

_TESTS = Path(__file__).parents[2]
_CONFIG = """
vos: [acme, globex]
common:
  periodic-tasks:
    NightlyReport:
      - {}
  limits:
    MailHost:
      default:
        ConcurrencyLimiter: { limit: 2 }
"""
PASSWORD = "correct horse battery staple"


class Shop:
    """The daemons of a shop.

    Args:
        redis_url: of an empty Redis.
        home: an empty directory.
        port: of the dashboard.
    """

    def __init__(self, redis_url: str, home: Path, port: int) -> None:
        self._home = home
        self.url = f"http://127.0.0.1:{port}"
        (home / "nonet.yaml").write_text(_CONFIG, encoding="utf-8")
        self.variables = {
            "NONET_REDIS_URL": redis_url,
            "NONET_NAMESPACE": "shop",
            "NONET_STATE_DIR": str(home / "state"),
            "NONET_DB_URL": f"sqlite+aiosqlite:///{home}/nonet.db",
            "NONET_TASKS": "mailer",
            "NONET_CONFIG": str(home / "nonet.yaml"),
            "NONET_WEB_PORT": str(port),
            "NONET_WEB_USERS": str(home / "users.yaml"),
            "PYTHONPATH": f"{_TESTS}:{Path(__file__).parent}",
        }

    def command(self, *words: str, text: str = "") -> str:
        """What a command prints."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        ended = subprocess.run(
            [str(Path(sys.executable).parent / words[0]), *words[1:]],
            env={**kept, **self.variables},
            cwd=self._home,
            input=text,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    @contextmanager
    def open(self) -> Iterator[None]:
        """Start the daemons, and bring tasks into each state."""
        with ExitStack() as running:
            self._add_users()
            self.command("task-run", "db", "upgrade")
            small = ["task-worker", "--size", "small"]
            for daemon in (["task-scheduler"], small, [*small, "--concurrency", "3"], ["task-web"]):
                log = self._home / f"{len(os.listdir(self._home))}-{daemon[0]}.log"
                started = Daemon(*daemon, environment=self.variables, log=log)
                running.enter_context(started).wait_ready()
            self._fill()
            yield

    def _add_users(self) -> None:
        file = self._home / "users.yaml"
        file.write_text("users:\n", encoding="utf-8")
        file.chmod(0o600)
        words = ("task-run", "web", "password", "ann", "--role", "admin")
        line = self.command(*words, text=f"{PASSWORD}\n")
        with file.open("a", encoding="utf-8") as users:
            users.write(line)

    def _fill(self) -> None:
        self.submit("invoice-7", "running", "SendInvoice", 7)
        self.submit("invoice-7-again", "waiting", "SendInvoice", 7)
        self.submit("mail", "done", "SendMail", "ann@example.org")
        for number in range(3):
            self.submit(f"users-{number}", "dead", "ImportUsers", f"/data/users{number}.csv")
        self.submit("archive", "queued", "RenderArchive", 2025, "--label", "customer=acme")
        self.submit("campaign", "done", "Campaign", 5)
        self.submit("later", "delayed", "SendMail", "bob@example.org", "--at", "2099-01-01")

    def submit(self, id: str, state: str, task: str, argument: Any, *options: str) -> None:
        """Submit a task, and wait until it has this state."""
        arguments = ("--args", json.dumps([argument]), *options, "--id", id)
        self.command("task-run", "submit", task, *arguments)
        self.reach(id, state)

    def reach(self, id: str, state: str) -> None:
        """Wait until a task has this state."""
        wait_until(lambda: self.state(id) == state, f"{id} is {state}")

    def state(self, id: str) -> str:
        """The state of a task."""
        state: str = json.loads(self.command("task-run", "status", id, "--json"))["state"]
        return state

    def quarantine(self) -> None:
        """Put a message that is no task into the stream of small tasks, and wait for its end."""
        with redis.Redis.from_url(self.variables["NONET_REDIS_URL"]) as client:
            client.xadd("{shop}:tasks:normal:small", {"x": "nothing of ours"})
        wait_until(lambda: self.command("task-run", "quarantine", "list", "--json") != "[]\n", "q")
