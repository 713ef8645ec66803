"""Versions of distributions (PEP 440): which one brought a module, and whether it is too old."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
    found = _distributions().get(top, ())
    if len(found) > 1:
        file = _file_of(module)
        found = tuple(name for name in found if file and file in _files(name))
    return distribution_named(found[0] if found else top)


@cache
def _distributions() -> dict[str, tuple[str, ...]]:
    """Distributions by package; reads the metadata of everything that is installed, once."""
    found = importlib.metadata.packages_distributions()
    return {package: tuple(dict.fromkeys(names)) for package, names in found.items()}


@cache
def _files(distribution: str) -> frozenset[Path]:
    listed = importlib.metadata.files(distribution) or ()
    return frozenset(Path(str(file.locate())).resolve() for file in listed)


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).resolve() if file else None
