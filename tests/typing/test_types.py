"""What mypy and pyright make of the public interface.

The modules beside this one are never run. Pyright is that of basedpyright, in its strict mode: the
same checker, whose wheels bring the JavaScript engine that it needs, so that no test downloads
anything (the package `pyright` fetches its program from npm when it is first called).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nonet

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODULES = sorted(path for path in HERE.glob("*.py") if path != Path(__file__))
# Of each other module, what its own `__all__` names is public.
OTHERS = ("nonet.testing", "nonet.contrib.fastapi")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_mypy_sees_the_types_of_results(tmp_path: Path) -> None:
    """What tasks give is typed, and what is wrong is refused, by ``mypy --strict``."""
    names = [str(path) for path in MODULES]
    done = run("mypy", "--strict", "--cache-dir", str(tmp_path), *names)
    assert done.returncode == 0, done.stdout


def test_pyright_sees_the_types_of_results() -> None:
    """The same, by pyright in its strict mode."""
    done = run("basedpyright", "--project", str(HERE))
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def symbols() -> dict[str, dict[str, Any]]:
    """What pyright says of each public name of the package and its members."""
    done = run("basedpyright", "--verifytypes", "nonet", "--ignoreexternal", "--outputjson")
    report = json.loads(done.stdout)
    return {item["name"]: item for item in report["typeCompleteness"]["symbols"]}


def names() -> dict[str, str]:
    """Each public name, and where it is defined."""
    homes = nonet._HOME
    found = {f"nonet.{name}": f"{homes[name]}.{name}" for name in nonet.__all__}
    return found


@pytest.mark.parametrize("public", sorted(names()))
def test_the_types_of_public_names_are_complete(
    public: str, symbols: dict[str, dict[str, Any]]
) -> None:
    """Type checkers have to guess at nothing of it, its attributes and methods included."""
    home = names()[public]
    about = {
        name: item for name, item in symbols.items() if name == home or name.startswith(f"{home}.")
    }
    guessed = [
        f"{name}: {message['message']}"
        for name, item in about.items()
        if not item["isTypeKnown"] or item["isTypeAmbiguous"]
        for message in item["diagnostics"]
    ]
    assert about
    assert guessed == []
