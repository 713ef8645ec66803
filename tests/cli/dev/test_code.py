"""Which modules a developer means, and where Python finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nonet.base.errors import ConfigurationError
from nonet.cli.dev.code import find_code


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A project with a module, and a package with a package in it."""
    for file in ("mytasks.py", "src/shop/__init__.py", "src/shop/mail/__init__.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "src" / "shop" / "mail" / "tasks.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("file", "module", "root"),
    [
        ("mytasks.py", "mytasks", "."),
        ("src/shop", "shop", "src"),
        ("src/shop/__init__.py", "shop", "src"),
        ("src/shop/mail/tasks.py", "shop.mail.tasks", "src"),
    ],
)
def test_a_file_is_a_module_of_its_package(here: Path, file: str, module: str, root: str) -> None:
    """Python imports it from the directory of the outermost package."""
    code = find_code([Path(file)], [], here)
    assert code.modules == (module,)
    assert code.path == ((here / root).resolve(),)
    assert code.files == ((here / file).resolve(),)


def test_a_module_is_found_from_the_current_directory(here: Path) -> None:
    """This is as with ``python -m``; both files in which it may be are watched."""
    code = find_code([], ["shop.tasks"], here)
    assert (code.modules, code.path) == (("shop.tasks",), (here,))
    assert code.files == (here / "shop" / "tasks.py", here / "shop" / "tasks" / "__init__.py")
    assert find_code([], [], here).path == (here,)  # for entry points


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("absent.py", "there is no such file"),
        ("src", "is a directory without __init__.py: name a file"),
        ("notes.txt", "is no Python file"),
        ("my-tasks.py", "no module named 'my-tasks': rename it, for example to my_tasks"),
    ],
)
def test_a_file_that_is_no_module_is_refused(here: Path, file: str, problem: str) -> None:
    """The error names the file and the next step."""
    for name in ("notes.txt", "my-tasks.py"):
        (here / name).touch()
    with pytest.raises(ConfigurationError, match=f"{Path(file).name}.*{problem}"):
        find_code([Path(file)], [], here)


def test_two_files_of_one_name_are_refused(here: Path) -> None:
    """Python can load only one of them."""
    (here / "other").mkdir()
    (here / "other" / "mytasks.py").touch()
    with pytest.raises(ConfigurationError, match="can load only one: rename one"):
        find_code([Path("mytasks.py"), Path("other/mytasks.py")], [], here)
