"""What mypy and pyright make of the public interface.

The modules beside this one are never run. Pyright is that of basedpyright, in its strict mode: the
same checker, whose wheels bring the JavaScript engine that it needs, so that no test downloads
anything (the package `pyright` fetches its program from npm when it is first called).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from public import public_names

pytestmark = pytest.mark.static

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODULES = sorted(path for path in HERE.glob("*.py") if path != Path(__file__))
EXAMPLES = ROOT / "examples" / "src"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    # Pyright asks the first `python` of the PATH where packages are: let it be this one.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_mypy_sees_the_types_of_results() -> None:
    """What tasks give is typed, and what is wrong is refused, by ``mypy --strict``.

    It finds nothing in the package of examples either, which is as authors write.
    """
    done = run("mypy", "--strict", *map(str, MODULES), str(EXAMPLES))
    assert done.returncode == 0, done.stdout


def test_pyright_sees_the_types_of_results() -> None:
    """The same, by pyright in its strict mode, which is told to look at the examples, too."""
    done = run("basedpyright", "--project", str(HERE))
    assert done.returncode == 0, done.stdout


def test_the_readme_has_sound_types(tmp_path: Path) -> None:
    """Its first task passes ``mypy --strict`` and pyright, as it stands."""
    blocks = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1:]
    (tmp_path / "mytasks.py").write_text(blocks[0].partition("```")[0], encoding="utf-8")
    for checker in (("mypy", "--strict"), ("basedpyright", "--level", "error")):
        done = run(*checker, str(tmp_path / "mytasks.py"))
        assert done.returncode == 0, done.stdout


def homes() -> dict[str, str]:
    """Each public name, and where it is defined."""
    found = {}
    for public, value in public_names().items():
        name = public.rpartition(".")[2]
        is_own = getattr(value, "__qualname__", "") == name
        found[public] = f"{value.__module__}.{name}" if is_own else public
    return found


def test_the_types_of_public_names_are_complete() -> None:
    """Type checkers have to guess at nothing of them, their attributes and methods included."""
    done = run("basedpyright", "--verifytypes", "nonet", "--ignoreexternal", "--outputjson")
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    known = {item["name"]: item["isTypeKnown"] and not item["isTypeAmbiguous"] for item in symbols}
    wanted = homes()
    assert [public for public, home in wanted.items() if home not in known] == []
    whole = tuple(f"{home}." for home in wanted.values())
    guessed = [name for name, is_known in known.items() if not is_known]
    assert [name for name in guessed if f"{name}.".startswith(whole)] == []
