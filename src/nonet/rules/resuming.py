"""Decide which steps of a failed workflow run again: `runs_again`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def above(place: str) -> str:
    """Return the place of the step that added this one, or an empty string.

    >>> above("3.0"), above("3")
    ('3', '')
    """
    return place.rpartition(".")[0]


def runs_again(failed: Collection[str], after: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the failed steps whose failure failed the workflow, directly or through other steps.

    The failures of the other steps were taken over: an edge on failure leads from the step, or from
    each step that it failed. A step counts as failed if a step that it added failed.

    Args:
        failed: places of failed steps without an edge on failure.
        after: the predecessors of every step, each the letter of the edge and the place.

    >>> after = {"pay": (), "ship": ("spay",), "refund": ("fship",), "fill": (), "mail": ("sfill",)}
    >>> sorted(runs_again({"pay", "fill", "mail"}, after))
    ['fill', 'mail']
    """
    passes_on = {edge[1:] for edges in after.values() for edge in edges if edge[0] == "s"}
    ends = [place for place in failed if place not in passes_on]
    added: dict[str, list[str]] = {}
    for place in ends:
        added.setdefault(above(place), []).append(place)
    found, left = set[str](), added.get("", [])
    while left:
        place = left.pop()
        if place not in found:
            found.add(place)
            before = (edge[1:] for edge in after[place] if edge[0] == "s")
            left += [one for one in before if one in failed]
            left += added.get(place, ())
    return found
