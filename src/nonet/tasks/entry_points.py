"""Find and load the entry points of installed packages."""

from __future__ import annotations

import importlib.metadata
import sys
import traceback
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, cast

from nonet.base.errors import NonetError, RegistrationError

# Importing an author's module can raise anything, sys.exit() included.
IMPORT_ERRORS = (Exception, SystemExit)


def entries(prefixes: Iterable[str], group: str) -> Iterator[EntryPoint]:
    """The entry points of the groups ``<prefix>.<group>``, by prefix and then by name."""
    for prefix in dict.fromkeys(prefixes):
        found = installed().select(group=f"{prefix}.{group}")
        yield from sorted(found, key=lambda entry: entry.name)


def installed() -> EntryPoints:
    """Return the entry points of all packages on ``sys.path``."""
    return _on_path(tuple(sys.path))


@lru_cache(maxsize=1)
def _on_path(path: tuple[str, ...]) -> EntryPoints:
    # To read the files of all packages again for each group is a tenth of the start of a command.
    # Python 3.11 returns another class with the same methods.
    return cast(EntryPoints, importlib.metadata.entry_points())


def load(entry: EntryPoint, title: str = "") -> Any:
    """Import what an entry point names.

    Args:
        title: of the entry point in an error.

    Raises:
        RegistrationError: it cannot be imported.
    """
    try:
        return entry.load()
    except IMPORT_ERRORS as error:
        raise RegistrationError(
            f"{title or f'entry point {entry.name!r}'}: {entry.value} cannot be loaded: "
            f"{import_problem(error, entry.module)}; fix or remove it in {entry.group}"
        ) from error


def import_problem(error: BaseException, module_name: str) -> str:
    """Describe an error of foreign code, with its last line in the package of the module."""
    # Our own errors explain themselves.
    text = str(error) if isinstance(error, NonetError) else f"{type(error).__name__}: {error}"
    return text + _line_in(module_name, error)


def _line_in(module_name: str, error: BaseException) -> str:
    """The last line in a package that an error passed through, as ``" (file.py:12)"``; or empty."""
    top = module_name.partition(".")[0]
    lines = [
        f" ({Path(frame.f_code.co_filename).name}:{number})"
        for frame, number in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == top
    ]
    # The text of a SyntaxError names the line already.
    return lines[-1] if lines and not isinstance(error, SyntaxError) else ""
