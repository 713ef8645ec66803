"""What an import, and a command that only tells how it is used, may cost; where imports stand."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

SQL = ("sqlalchemy", "alembic", "aiomysql", "aiosqlite")
WEB = ("fastapi", "starlette", "uvicorn", "jinja2", "http.server", "prometheus_client")
RULES = ("croniter", "dateutil", "yaml")
DAEMONS = ("nonet.worker.worker", "nonet.scheduler", "nonet.daemon.fleet", "nonet.cli.demo", "pdb")
CLIENT = ("redis", "nonet.app", "nonet.client.client")
LOGS = ("structlog",)
# Values of what operators read and schedulers do: each dataclass takes most of a millisecond.
VALUES = (
    "nonet.rules.figures",
    "nonet.rules.letters",
    "nonet.rules.limits",
    "nonet.tasks.schedules",
)
# Typer has pydantic check the options of a command, but not those of a list of commands.
MODELS = ("msgspec", "nonet.base.messages.message", "nonet.tasks.task")
# By what brings them, and how many modules there may be in all: a twentieth more than there were.
BUDGETS = [
    ("import nonet", 72, (*SQL, *WEB, *RULES, *DAEMONS, *CLIENT, *LOGS, *MODELS, "asyncio")),
    (
        "from nonet import BaseTask",
        215,
        (*SQL, *WEB, *RULES, *VALUES, *DAEMONS, *CLIENT, "asyncio", "pydantic"),
    ),
    (
        "from nonet import Nonet",
        465,
        (*SQL, *WEB, *RULES, *VALUES, *DAEMONS, *LOGS, "typer", "rich", "pydantic"),
    ),
]
# A command is imported when it is called; the list of commands is not.
OTHERS = ("nonet.cli.commands", "nonet.rules", "nonet.stores", "pydantic")
COMMANDS = [
    ("run", ["--help"], 237, (*SQL, *WEB, *RULES, *DAEMONS, *CLIENT, *LOGS, *MODELS, *OTHERS)),
    ("run", ["submit", "--help"], 360, (*SQL, *WEB, *RULES, *DAEMONS, *CLIENT, *LOGS)),
    ("daemons.worker", ["--help"], 240, (*SQL, *WEB, *RULES, *DAEMONS, *CLIENT, *LOGS, *MODELS)),
]
# Those that only read what Redis keeps, until they find that none answers.
READERS = ["list", "status unknown", "limits list"]
_READER = ("nonet.app", "nonet.client", "nonet.tasks.registry", "nonet.rules.outcomes", "rich")
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
    """The help of a command imports neither Redis nor SQL nor the models."""
    code = f"import sys; sys.argv[1:] = {arguments!r}; from nonet.cli.{command} import main; main()"
    check(code, most, unwanted)


@pytest.mark.parametrize("command", READERS)
def test_a_command_that_only_reads_needs_no_client(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It brings neither the client nor the classes of tasks, nor what draws tables."""
    monkeypatch.setenv("NONET_REDIS_URL", f"unix://{tmp_path}/none.sock")
    words = ["task-run", *command.split()]
    code = f"import sys; sys.argv = {words!r}; from nonet.cli.entry import main; main()"
    check(code, 545, (*SQL, *WEB, *RULES, *DAEMONS, *LOGS, *_READER), ends_with=3)


def test_a_worker_brings_what_it_needs() -> None:
    """Neither the scheduler nor SQL, nor what answers probes or checks models, comes with it."""
    unwanted = (
        *SQL,
        *WEB,
        *RULES,
        *VALUES,
        *LOGS,
        "typer",
        "rich",
        "pydantic",
        "nonet.scheduler",
        "pdb",
    )
    check("import nonet.cli.daemons.working", 535, unwanted)


def test_imports_inside_functions_have_a_reason() -> None:
    """An import is at the top of its module, or a comment beside it says why it is not."""
    number, bare = 0, list[str]()
    for path in sorted((Path(__file__).parents[2] / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        functions = ast.FunctionDef | ast.AsyncFunctionDef
        inside = {
            item.lineno
            for function in ast.walk(ast.parse(text))
            if isinstance(function, functions)
            for item in ast.walk(function)
            if isinstance(item, ast.Import | ast.ImportFrom)
        }
        lines = text.splitlines()
        bare += [f"{path}:{line}" for line in sorted(inside) if "#" not in lines[line - 1]]
        number += len(inside)
    assert bare == []
    assert 0 < number <= 61, "use the module in more places, or import it at the top"


def check(code: str, most: int, unwanted: tuple[str, ...], *, ends_with: int = 0) -> None:
    """See what is imported after `code`, in an interpreter of its own."""
    ran = subprocess.run([sys.executable, "-c", _TOLD + code], capture_output=True, text=True)
    assert ran.returncode == ends_with, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    # redis-py imports this where it is installed, as it is for tests.
    modules = [name for name in found if not name.startswith("opentelemetry")]
    assert [name for name in unwanted if name in modules] == []
    assert len(modules) <= most, f"{len(modules)} modules; measure with python -X importtime"
