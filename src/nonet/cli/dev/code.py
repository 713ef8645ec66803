"""The modules that a developer names as files or by name, and where Python finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nonet.base.errors import ConfigurationError


@dataclass(frozen=True)
class Code:
    """What a system runs.

    Attributes:
        modules: their full names; empty: those of the environment.
        path: directories that `modules` need on ``PYTHONPATH``.
        files: where these modules are or may be, to watch them before they can be loaded.
    """

    modules: tuple[str, ...]
    path: tuple[Path, ...]
    files: tuple[Path, ...] = ()


def find_code(files: Sequence[Path], modules: Sequence[str], here: Path) -> Code:
    """Return the modules of some files, and those that are named.

    Args:
        files: Python files, or directories of packages.
        modules: names of modules, which are found from `here`, as with ``python -m``.
        here: the current directory.

    Raises:
        ConfigurationError: a file does not exist, or is no module.
    """
    found: dict[str, Path] = {}
    path: list[Path] = []
    for file in files:
        name, root = _module_of(here / file)
        if found.setdefault(name, root) != root:
            raise ConfigurationError(
                f"{file}: a module {name} is in {found[name]}, too, and Python can load only one: "
                "rename one of them"
            )
        path.append(root)
    if modules or not files:
        path.append(here)
    names = dict.fromkeys([*found, *modules])
    places = [(here / file).resolve() for file in files]
    for name in modules:
        place = here.joinpath(*name.split("."))
        places += [place.with_suffix(".py"), place / "__init__.py"]
    return Code(tuple(names), tuple(dict.fromkeys(path)), tuple(places))


def _module_of(file: Path) -> tuple[str, Path]:
    """Return the full name of the module in a file, and the directory of its outermost package."""
    file = file.resolve()
    if not file.exists():
        raise ConfigurationError(f"{file}: there is no such file")
    if file.is_dir():
        if not (file / "__init__.py").exists():
            raise ConfigurationError(
                f"{file} is a directory without __init__.py: name a file of tasks in it"
            )
    elif file.suffix != ".py":
        raise ConfigurationError(f"{file} is no Python file: name a file of tasks, as mytasks.py")
    elif file.name == "__init__.py":
        file = file.parent
    parts = [file.stem]
    root = file.parent
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    for part in parts:
        if not part.isidentifier():
            raise ConfigurationError(
                f"{file}: Python can import no module named {part!r}: rename it, for example to "
                f"{part.replace('-', '_')}"
            )
    return ".".join(parts), root
