"""What an import, and a command that only tells how it is used, may cost."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SQL = ("sqlalchemy", "alembic", "aiomysql", "aiosqlite")
WEB = ("fastapi", "starlette", "http.server", "prometheus_client")
RULES = ("croniter", "dateutil", "yaml")
DAEMONS = ("nonet.worker.worker", "nonet.scheduler", "nonet.daemon.fleet", "nonet.demo", "pdb")
CLIENT = ("redis", "nonet.app", "nonet.client.client")
LOGS = ("structlog",)
# Typer has pydantic check the options of a command, but not those of a list of commands.
MODELS = ("msgspec", "nonet.messages.message", "nonet.tasks.task")
# By what brings them, and how many modules there may be in all: a tenth more than there were.
BUDGETS = [
    ("import nonet", 80, (*SQL, *WEB, *RULES, *DAEMONS, *CLIENT, *LOGS, *MODELS, "asyncio")),
    ("from nonet import BaseTask", 285, (*SQL, *WEB, *RULES, *DAEMONS, *CLIENT, "asyncio")),
    ("from nonet import Nonet", 495, (*SQL, *WEB, *RULES, *DAEMONS, *LOGS, "typer", "rich")),
]
COMMANDS = [
    ("run", ["--help"], 310, (*SQL, *WEB, *RULES, *DAEMONS, *CLIENT, *LOGS, *MODELS)),
    ("run", ["submit", "--help"], 375, (*SQL, *WEB, *RULES, *DAEMONS, *CLIENT, *LOGS, *MODELS)),
    ("run", ["call", "--help"], 375, (*SQL, *WEB, *RULES, *DAEMONS, *CLIENT, *LOGS, *MODELS)),
    ("daemons.worker", ["--help"], 265, (*SQL, *WEB, *RULES, *DAEMONS, *CLIENT, *LOGS, *MODELS)),
    ("daemons.scheduler", ["--help"], 265, (*SQL, *WEB, *RULES, *DAEMONS, *CLIENT, *LOGS, *MODELS)),
]
_TOLD = """
import atexit, json, sys
atexit.register(lambda: print("\\n" + json.dumps(sorted(sys.modules))))
"""


@pytest.mark.parametrize(("code", "most", "unwanted"), BUDGETS)
def test_an_import_brings_what_it_needs(code: str, most: int, unwanted: tuple[str, ...]) -> None:
    """Neither SQL nor the web, rules of schedules or daemons come with the names for programs."""
    check(code, most, unwanted)


@pytest.mark.parametrize(("command", "arguments", "most", "unwanted"), COMMANDS)
def test_help_brings_next_to_nothing(
    command: str, arguments: list[str], most: int, unwanted: tuple[str, ...]
) -> None:
    """Whoever asks how a command is used does not wait for Redis, SQL or the models."""
    code = f"import sys; sys.argv[1:] = {arguments!r}; from nonet.cli.{command} import main; main()"
    check(code, most, unwanted)


@pytest.mark.parametrize("name", ["base.errors", "tasks.task", "client.client", "app"])
def test_an_import_does_not_bring_sql(name: str) -> None:
    """SQL, the command line and web frameworks are imported by who needs them."""
    check(f"import nonet.{name}", 495, (*SQL, "fastapi", "starlette", "typer", "rich"))


def check(code: str, most: int, unwanted: tuple[str, ...]) -> None:
    """See what is imported after `code`, in an interpreter of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", _TOLD + code], capture_output=True, text=True, check=True
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    # redis-py imports this where it is installed, as it is for tests.
    modules = [name for name in found if not name.startswith("opentelemetry")]
    assert [name for name in unwanted if name in modules] == []
    assert len(modules) <= most, f"{len(modules)} modules; measure with python -X importtime"
