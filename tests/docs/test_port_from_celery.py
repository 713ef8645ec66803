"""A Celery application of five tasks, ported with the page "Coming from Celery" alone, runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import preloaded
import pytest
from daemons import Daemon
from docs.pages import Page

SHOP = Path(__file__).parent / "celery_shop"
PAGE = Page.read("how-to/from-celery.md")
_WORDS = set(re.findall(r"\w+", PAGE.source))
# Methods of Python's own objects.
_PYTHON = {"get", "glob", "open", "read_text", "write", "write_text", "join", "Path", "environ"}


def used(source: str, package: str) -> Iterator[str]:
    """The names of a package that a module imports, the methods and the options that it uses."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Call):
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def arguments(source: str) -> set[str]:
    """The names of arguments of the functions of a module."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return {argument.arg for node in nodes for argument in node.args.args}


@pytest.mark.parametrize(("name", "package"), [("before", "celery"), ("shop", "nonet")])
def test_the_page_has_all_words(name: str, package: str) -> None:
    """What the application uses of Celery is on the page, and what its port uses of Nonet."""
    source = (SHOP / f"{name}.py").read_text()
    names = set(used(source, package)) - _PYTHON - arguments(source)
    assert {word for word in names if word not in _WORDS} == set()


def test_both_have_the_same_tasks() -> None:
    """Five, with the same arguments; Celery's `self` is `context()`."""

    def tasks(name: str) -> dict[str, list[str]]:
        tree = ast.parse((SHOP / f"{name}.py").read_text())
        return {
            node.name: [argument.arg for argument in node.args.args if argument.arg != "self"]
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.decorator_list
        }

    assert tasks("shop") == tasks("before")
    assert len(tasks("shop")) == 5


@pytest.mark.server
def test_the_port_runs(redis_url: str, tmp_path: Path) -> None:
    """With the daemons that the page names: paid after a retry, refused, archived, reminded."""
    environment = {
        "PYTHONPATH": str(SHOP),
        "NONET_TASKS": "shop",
        "NONET_REDIS_URL": redis_url,
        "NONET_STATE_DIR": str(tmp_path / "state"),
        "SHOP": str(tmp_path),
    }
    worker = Daemon(
        *("task-worker", "--size", "medium"), environment=environment, log=tmp_path / "worker.log"
    )
    scheduler = Daemon("task-scheduler", environment=environment, log=tmp_path / "scheduler.log")
    with worker, scheduler:
        worker.wait_ready()
        scheduler.wait_ready()
        program = ("python", "-c", "import shop; shop.main()")
        ended = preloaded.run(*program, variables=environment, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr + worker.log
        planned = ("task-run", "schedules", "list")
        schedules = preloaded.run(*planned, variables=environment, cwd=tmp_path).stdout
    assert ended.stdout.split() == ["done", "done", "3", "4"]
    assert set((tmp_path / "mails.txt").read_text().splitlines()) == {
        "ann@example.org: thank you",
        "bob@example.org: come back",
        "eve@example.org: we are sorry",
    }
    assert (tmp_path / "archive.txt").read_text().split("\n") == ["70 paid", "80 paid", "90 paid"]
    assert "daily_report" in schedules
