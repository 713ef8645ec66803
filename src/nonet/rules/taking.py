"""Which of its task classes a worker takes, and which it leaves to other workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase


def left_to_others(
    names: Iterable[str], only: Collection[str], excluded: Collection[str]
) -> frozenset[str]:
    """Return the classes that a worker does not take.

    Args:
        names: full names of the classes that it has loaded.
        only: patterns such as ``ml:*`` or a bare class name; empty: it takes all.
        excluded: patterns of classes that it does not take in any case.

    >>> sorted(left_to_others(["ml:Train", "ml:Score", "mail:Send"], ["ml:*"], ["Score"]))
    ['mail:Send', 'ml:Score']
    """
    return frozenset(
        name
        for name in names
        if (only and not _is_one_of(name, only)) or _is_one_of(name, excluded)
    )


def unmatched(names: Collection[str], patterns: Iterable[str]) -> list[str]:
    """Return the patterns that match no class: probably they are misspelt."""
    return [each for each in patterns if not any(_is_one_of(name, [each]) for name in names)]


def _is_one_of(name: str, patterns: Iterable[str]) -> bool:
    bare = name.rpartition(":")[2]
    return any(fnmatchcase(name if ":" in each else bare, each) for each in patterns)
