"""A shop: a system of real daemons with tasks, locks and schedules in all states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import preloaded
from daemons import Daemon
from waits import wait_until

from nonet.web.access.passwords import PasswordHash

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
        self._variables = {
            "NONET_REDIS_URL": redis_url,
            "NONET_NAMESPACE": "shop",
            "NONET_STATE_DIR": str(home / "state"),
            "NONET_DB_URL": f"sqlite+aiosqlite:///{home}/nonet.db",
            "NONET_TASKS": "mailer",
            "NONET_CONFIG": str(home / "nonet.yaml"),
            "NONET_WEB_PORT": str(port),
            "NONET_WEB_USERS": str(home / "users.yaml"),
        }

    def command(self, *words: str) -> str:
        """What a command prints."""
        ended = preloaded.run(*words, variables=self._variables, cwd=self._home)
        assert ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    @contextmanager
    def open(self) -> Iterator[None]:
        """Start the daemons, and bring tasks into each state."""
        with ExitStack() as running:
            self._add_users()
            self.command("task-run", "db", "upgrade")
            small = ["task-worker", "--size", "small"]
            daemons = (["task-scheduler"], small, [*small, "--concurrency", "3"], ["task-web"])
            for number, daemon in enumerate(daemons):
                log = self._home / f"{number}-{daemon[0]}.log"
                started = Daemon(*daemon, environment=self._variables, log=log)
                running.enter_context(started).wait_ready()
            self._fill()
            yield

    def _add_users(self) -> None:
        file = self._home / "users.yaml"
        hashed = PasswordHash.of(PASSWORD)
        file.write_text(f'users:\n  - {{name: ann, role: admin, password: "{hashed}"}}\n')
        file.chmod(0o600)

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
        found = f'"state": "{state}"'
        status = ("task-run", "status", id, "--json")
        wait_until(lambda: found in self.command(*status), f"{id} is {state}")
