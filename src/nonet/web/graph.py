"""Lay out the steps of a workflow as a graph, in layers from left to right. Pure.

The layer of a step is the length of the longest path to it. A layer is sorted by where the steps
before it are, so that few edges cross. An edge that passes a layer goes behind its steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_STEPS, MOST_EDGES = 200, 600
"""What is drawn; a larger workflow has `layer_counts`."""

WIDTH, HEIGHT = 168, 44
"""Size of a step in pixels."""
_GAP_X, _GAP_Y, _MARGIN = 56, 14, 8
ADDED = "+"
"""The letter of an edge from a step to one that it added while it ran."""

After = Mapping[str, Sequence[str]]
"""The predecessors of each step by its place, each the letter of the edge and the place. Steps come
behind their predecessors."""


@dataclass(frozen=True, slots=True)
class Box:
    """A step in the picture: its upper left corner in pixels."""

    place: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Line:
    """An edge in the picture.

    Attributes:
        on: letter of the edge: ``s``, ``f``, ``a``, or `ADDED`.
    """

    source: Box
    target: Box
    on: str

    @property
    def path(self) -> str:
        """The line as the attribute ``d`` of SVG.

        >>> Line(Box("0", 0, 0), Box("1", 200, 50), "s").path
        'M168 22C184 22 184 72 200 72'
        """
        x, y = self.source.x + WIDTH, self.source.y + HEIGHT / 2
        to_x, to_y = self.target.x, self.target.y + HEIGHT / 2
        middle = (x + to_x) / 2
        return f"M{x:g} {y:g}C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}"

    @property
    def head(self) -> str:
        """Its arrow head, likewise."""
        return f"M{self.target.x:g} {self.target.y + HEIGHT / 2:g}l-8 -4v8z"


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph, with its size in pixels."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class LayerCount:
    """How many steps a layer has, by class and by state."""

    number: int
    steps: int
    classes: Mapping[str, int]
    states: Mapping[str, int]


def layers_of(after: After) -> dict[str, int]:
    """Return the layer of each step, from 0.

    What a step adds comes behind it, and before the steps that come after it.

    >>> layers_of({"0": [], "0.0": [], "1": ["s0"], "2": ["s0", "a1"]})
    {'0': 0, '0.0': 1, '1': 2, '2': 3}
    """
    layers: dict[str, int] = {}
    last: dict[str, int] = {}  # the last layer of a step and of what it added
    for place, before in after.items():
        above = place.rpartition(".")[0]
        behind = [last[edge[1:]] for edge in before if edge[1:] in last]
        if above in layers:
            behind.append(layers[above])
        layers[place] = last[place] = 1 + max(behind, default=-1)
        while above in last:
            last[above] = max(last[above], layers[place])
            above = above.rpartition(".")[0]
    return layers


def layer_counts(
    after: After, names: Mapping[str, str], states: Mapping[str, str]
) -> list[LayerCount]:
    """Count the steps of each layer, for a workflow that is too large for a picture.

    Args:
        names, states: class and state of each step, by place.

    >>> layer_counts({"0": [], "1": []}, {"0": "a", "1": "a"}, {"0": "done", "1": "queued"})
    [LayerCount(number=0, steps=2, classes={'a': 2}, states={'done': 1, 'queued': 1})]
    """
    places: dict[int, list[str]] = defaultdict(list)
    for place, layer in layers_of(after).items():
        places[layer].append(place)
    return [
        LayerCount(
            layer,
            len(some),
            dict(Counter(names[place] for place in some).most_common()),
            dict(Counter(states[place] for place in some).most_common()),
        )
        for layer, some in sorted(places.items())
    ]


def is_too_large(after: After) -> bool:
    """Return whether a workflow has too many steps or edges for a picture."""
    return len(after) > MOST_STEPS or sum(map(len, after.values())) > MOST_EDGES


def picture(after: After) -> Picture:
    """Lay out a workflow.

    >>> [(box.place, box.x, box.y) for box in picture({"0": [], "1": ["s0"]}).boxes]
    [('0', 8, 8.0), ('1', 232, 8.0)]
    """
    edges = _edges(after)
    ranks: dict[int, list[str]] = defaultdict(list)
    for place, layer in layers_of(after).items():
        ranks[layer].append(place)
    height = _extent(max(map(len, ranks.values()), default=0), HEIGHT, _GAP_Y)
    boxes: dict[str, Box] = {}
    for layer in sorted(ranks):
        rank = _sorted(ranks[layer], edges, boxes)
        top = _MARGIN + (height - _extent(len(rank), HEIGHT, _GAP_Y)) / 2
        for row, place in enumerate(rank):
            x, y = _MARGIN + layer * (WIDTH + _GAP_X), top + row * (HEIGHT + _GAP_Y)
            boxes[place] = Box(place, x, y)
    return Picture(
        width=_extent(len(ranks), WIDTH, _GAP_X),
        height=height,
        boxes=tuple(boxes[place] for place in after),
        lines=tuple(Line(boxes[source], boxes[target], on) for source, target, on in edges),
    )


def _extent(number: int, size: int, gap: int) -> int:
    """Return the room of some steps in a row, with the margins around them."""
    return max(0, number * (size + gap) - gap) + 2 * _MARGIN


def _edges(after: After) -> list[tuple[str, str, str]]:
    """Return source, target and letter of each edge, with those to added steps."""
    found = []
    for place, before in after.items():
        found += [(edge[1:], place, edge[0]) for edge in before if edge[1:] in after]
        above = place.rpartition(".")[0]
        if above in after and not before:
            found.append((above, place, ADDED))
    return found


def _sorted(
    rank: Sequence[str], edges: Sequence[tuple[str, str, str]], placed: Mapping[str, Box]
) -> list[str]:
    """Return the steps of a layer, each as near as possible to the middle of those before it."""
    heights: dict[str, list[float]] = defaultdict(list)
    for source, target, _ in edges:
        if source in placed:
            heights[target].append(placed[source].y)
    return sorted(rank, key=lambda place: sum(heights[place]) / max(1, len(heights[place])))
