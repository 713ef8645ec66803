"""What a process that loads the tasks reports of them, or why they cannot be loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nonet.cli.dev.trial_load import Loaded

TASKS = """
from helpers import SIZE
from nonet import BaseTask
print("printed while it is loaded")
class Clean(BaseTask):
    size = SIZE
    async def execute(self) -> None: ...
"""
HELPERS = "from nonet import Size\nSIZE = Size.SMALL\n"
PIPELINE = """
from nonet.pipelines import Changes, LeaseMixin, Pipeline, RowDatabase
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
class Base(DeclarativeBase): ...
class Volume(LeaseMixin, Base):
    __tablename__ = "volumes"
    id: Mapped[int] = mapped_column(primary_key=True)
class Provision(Pipeline[Volume]):
    model = Volume
    database = RowDatabase("sqlite+aiosqlite:///volumes.db")
    async def process(self, row: Volume) -> Changes:
        return Changes().finish()
"""

pytestmark = pytest.mark.server  # it starts processes


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A module of tasks, and one that it imports."""
    (tmp_path / "mytasks.py").write_text(TASKS)
    (tmp_path / "helpers.py").write_text(HELPERS)
    return tmp_path


def load(project: Path, tasks: str = "mytasks") -> Loaded:
    """Load the tasks of a project in a process of its own."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("NONET_")}
    environment = {**kept, "NONET_TASKS": tasks, "PYTHONPATH": str(project)}
    read, write = os.pipe()
    command = [sys.executable, "-P", "-m", "nonet.cli.dev.trial_load", str(write)]
    subprocess.run(command, cwd=project, env=environment, pass_fds=[write], check=True)
    os.close(write)
    with os.fdopen(read) as report:
        return Loaded(**json.load(report))


def test_tasks_pipelines_and_files_of_the_project_are_reported(project: Path) -> None:
    """Files of Python, of Nonet and of installed packages are not reported."""
    (project / "rows.py").write_text(PIPELINE)
    loaded = load(project, "mytasks,rows")
    assert (loaded.problem, loaded.tasks) == ("", ["mytasks:Clean"])
    assert loaded.pipelines == ["Provision"]
    assert loaded.files == [str(project / f"{name}.py") for name in ("helpers", "mytasks", "rows")]


def test_a_syntax_error_is_shown_with_its_line(project: Path) -> None:
    """Its file is watched, even if another module imports it."""
    (project / "helpers.py").write_text("SIZE = (\n")
    loaded = load(project)
    assert loaded.problem.endswith("SyntaxError: '(' was never closed")
    assert f'File "{project / "helpers.py"}", line 1' in loaded.problem
    assert f'File "{project / "mytasks.py"}", line 2' in loaded.problem, "who imports it"
    assert "importlib" not in loaded.problem
    assert loaded.files == [str(project / "helpers.py"), str(project / "mytasks.py")]


@pytest.mark.parametrize(
    ("tasks", "code", "problem"),
    [
        ("mytasks", "raise SystemExit('no database')", "SystemExit: no database"),
        ("mytasks", "import nothing_here", "No module named 'nothing_here'"),
        ("mytasks", "from nonet import BaseTask", "tasks module 'mytasks' defines no task"),
        (
            "",
            "",
            "there are no tasks: name a file of tasks, or a module with -m, or set NONET_TASKS",
        ),
    ],
    ids=["exit", "missing package", "empty", "no module"],
)
def test_a_module_without_tasks_is_a_problem(
    project: Path, tasks: str, code: str, problem: str
) -> None:
    """The report says why there are none."""
    (project / "mytasks.py").write_text(code)
    assert problem in load(project, tasks).problem
