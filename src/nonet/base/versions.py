"""Versions of distributions (PEP 440): which one brought a module, and whether it is too old."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# A folder, or a file, at the top of a RECORD.
_TOP = re.compile(r"^[^/,\n]+[/,]", re.MULTILINE)
_LONGEST = 60  # beyond that no message carries it


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution and its version."""

    name: str
    version: str


def is_version(text: str) -> bool:
    """Whether `text` is a version, as PEP 440 has them.

    >>> is_version("1.4.0rc1"), is_version("latest")
    (True, False)
    """
    from packaging.version import InvalidVersion, Version  # takes 3 ms; few processes compare

    try:
        return len(text) <= _LONGEST and bool(Version(text))
    except InvalidVersion:
        return False


def is_older(version: str, least: str) -> bool:
    """Whether a version is not known to be at least `least`.

    >>> is_older("1.9", "1.10"), is_older("2.0", "1.10"), is_older("", "1.10")
    (True, False, True)
    """
    if not is_version(version) or not is_version(least):
        return True
    from packaging.version import Version  # as above

    return Version(version) < Version(least)


def distribution_named(name: str) -> Distribution | None:
    """The installed distribution of this name, or None."""
    try:
        return Distribution(name, importlib.metadata.version(name))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def distribution_of(module: str) -> Distribution | None:
    """The distribution that a module belongs to, or None: it was not installed with one.

    Of a package that several distributions share it is the one that has this module's file. One
    that was installed in place (``pip install -e``) is found if it has the name of the package.
    """
    top = module.partition(".")[0]
    found = _names_of(top)
    if len(found) > 1:
        file = _file_of(module)
        found = tuple(name for name in found if file and file in _files(name))
    return distribution_named(found[0] if found else top)


def _names_of(package: str) -> tuple[str, ...]:
    """The distributions that brought a top-level package or module."""
    return tuple(dict.fromkeys(item.metadata["Name"] for item in _distributions().get(package, ())))


@cache
def _distributions() -> dict[str, list[importlib.metadata.Distribution]]:
    """Distributions by package; reads what everything that is installed says it has, once.

    `importlib.metadata.packages_distributions` also parses the names and all files of each
    distribution: 90 ms where a hundred are installed, instead of 15.
    """
    found: dict[str, list[importlib.metadata.Distribution]] = {}
    for item in importlib.metadata.distributions():
        declared = item.read_text("top_level.txt")
        packages = declared.split() if declared else _packages(item.read_text("RECORD") or "")
        for package in packages:
            found.setdefault(package, []).append(item)
    return found


def _packages(record: str) -> set[str]:
    """The packages and modules at the top of a list of installed files.

    >>> sorted(_packages("a/b.py,,\\nc.py,,\\nd.so,,\\na-1.dist-info/RECORD,,\\n"))
    ['a', 'a-1.dist-info', 'c', 'd']
    """
    tops = set(_TOP.findall(record))
    return {top[:-1] if top.endswith("/") else top.partition(".")[0] for top in tops}


@cache
def _files(distribution: str) -> frozenset[Path]:
    listed = importlib.metadata.files(distribution) or ()
    return frozenset(Path(str(file.locate())).resolve() for file in listed)


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).resolve() if file else None
