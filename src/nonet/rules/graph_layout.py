"""Lays out the steps of a workflow as a graph, in layers from left to right. Pure.

The layer of a step is the length of the longest path to it. An edge that passes layers gets a bend
in each of them, so that it goes between steps and not behind them. The order within a layer is that
of the barycentres of the neighbours, which keeps edges from crossing (Sugiyama's method).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

MOST_STEPS, MOST_EDGES = 200, 600
"""What is drawn; a larger workflow has `layer_counts`."""

WIDTH, HEIGHT = 168, 44
"""Size of a step in pixels."""
_GAP_X, _GAP_Y, _MARGIN = 56, 14, 8
# A bend is a line and needs less room than a step.
_BEND = 8
_SWEEPS = 6
ADDED = "+"
"""The letter of an edge from a step to one that it added while it ran."""

After = Mapping[str, Sequence[str]]
"""The predecessors of each step by its place, each the letter of the edge and the place. Steps come
behind their predecessors."""

Point = tuple[float, float]


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
        points: where it begins, its bends, and where it ends.
    """

    source: str
    target: str
    on: str
    points: tuple[Point, ...]

    @property
    def path(self) -> str:
        """The line as the attribute ``d`` of SVG.

        >>> Line("0", "1", "s", ((0, 10), (40, 30))).path
        'M0 10C20 10 20 30 40 30'
        """
        (x, y), *others = self.points
        parts = [f"M{x:g} {y:g}"]
        for to_x, to_y in others:
            middle = (x + to_x) / 2
            parts.append(f"C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}")
            x, y = to_x, to_y
        return "".join(parts)

    @property
    def head(self) -> str:
        """Its arrow head, likewise."""
        x, y = self.points[-1]
        return f"M{x:g} {y:g}l-8 -4v8z"


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
    graph = _Layered(layers_of(after), edges)
    graph.order()
    heights = graph.heights()
    top = min(heights.values(), default=0.0)
    bottom = max((heights[place] + HEIGHT for place in after), default=0.0)
    rows = {node: y - top + _MARGIN for node, y in heights.items()}
    boxes = [Box(place, _left(graph.layers[place]), rows[place]) for place in after]
    lines = [
        Line(source, target, on, _points(graph, rows, source, target, graph.bends[source, target]))
        for source, target, on in edges
    ]
    width = _left(max(graph.layers.values(), default=0)) + WIDTH + _MARGIN
    return Picture(width, bottom - top + 2 * _MARGIN, tuple(boxes), tuple(lines))


def _edges(after: After) -> list[tuple[str, str, str]]:
    """Return source, target and letter of each edge, with those to added steps."""
    found = []
    for place, before in after.items():
        found += [(edge[1:], place, edge[0]) for edge in before if edge[1:] in after]
        above = place.rpartition(".")[0]
        if above in after and not before:
            found.append((above, place, ADDED))
    return found


def _left(layer: int) -> int:
    return _MARGIN + layer * (WIDTH + _GAP_X)


def _points(
    graph: _Layered, rows: Mapping[str, float], source: str, target: str, bends: Sequence[str]
) -> tuple[Point, ...]:
    """Return the points of an edge: a bend passes straight through its layer."""
    points: list[Point] = [(_left(graph.layers[source]) + WIDTH, rows[source] + HEIGHT / 2)]
    for bend in bends:
        x, y = _left(graph.layers[bend]), rows[bend] + _BEND / 2
        points += [(x, y), (x + WIDTH, y)]
    return (*points, (_left(graph.layers[target]), rows[target] + HEIGHT / 2))


class _Layered:
    """Steps and bends in layers.

    Attributes:
        layers: the layer of each step and bend.
        bends: the bends of each edge, from its source to its target.
        ranks: the nodes of each layer, in their order.
    """

    def __init__(self, layers: dict[str, int], edges: Sequence[tuple[str, str, str]]) -> None:
        self.layers = layers
        self.bends: dict[tuple[str, str], list[str]] = {}
        self.ranks: list[list[str]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
        self._before: dict[str, list[str]] = defaultdict(list)
        self._behind: dict[str, list[str]] = defaultdict(list)
        for place, layer in layers.items():
            self.ranks[layer].append(place)
        for source, target, _ in edges:
            self._join(source, target)

    def _join(self, source: str, target: str) -> None:
        passed = range(self.layers[source] + 1, self.layers[target])
        bends = [f"{source}>{target}@{layer}" for layer in passed]
        for bend, layer in zip(bends, passed, strict=True):
            self.layers[bend] = layer
            self.ranks[layer].append(bend)
        self.bends[source, target] = bends
        chain = [source, *bends, target]
        for one, other in pairwise(chain):
            self._behind[one].append(other)
            self._before[other].append(one)

    def order(self) -> None:
        """Sort each layer by the barycentres of the neighbours, forwards and backwards."""
        for sweep in range(_SWEEPS):
            is_forward = sweep % 2 == 0
            neighbours = self._before if is_forward else self._behind
            for rank in self.ranks if is_forward else reversed(self.ranks):
                self._sort(rank, neighbours)

    def _sort(self, rank: list[str], neighbours: Mapping[str, list[str]]) -> None:
        at = {node: number for some in self.ranks for number, node in enumerate(some)}
        own = {node: number for number, node in enumerate(rank)}

        def barycentre(node: str) -> float:
            near = neighbours.get(node)
            return sum(map(at.__getitem__, near)) / len(near) if near else own[node]

        rank.sort(key=barycentre)

    def heights(self) -> dict[str, float]:
        """Return the upper edge of each node: near its neighbours, in the order of its layer."""
        tops: dict[str, float] = {}
        for rank in self.ranks:
            self._place(rank, tops, dict.fromkeys(rank, 0.0))
        for sweep in range(_SWEEPS):
            is_forward = sweep % 2 == 0
            neighbours = self._before if is_forward else self._behind
            for rank in self.ranks if is_forward else reversed(self.ranks):
                wanted = {node: self._wanted(node, neighbours, tops) for node in rank}
                self._place(rank, tops, wanted)
        return tops

    def _wanted(
        self, node: str, neighbours: Mapping[str, list[str]], tops: Mapping[str, float]
    ) -> float:
        near = neighbours.get(node)
        if not near:
            return tops[node]
        middles = [tops[one] + _size(one) / 2 for one in near]
        return sum(middles) / len(middles) - _size(node) / 2

    def _place(
        self, rank: Sequence[str], tops: dict[str, float], wanted: Mapping[str, float]
    ) -> None:
        """Put nodes as near as possible to where they want to be, without an overlap.

        Nodes that meet form a block, whose middle is where its nodes want to be on average.
        """
        blocks: list[tuple[list[str], float, float]] = []  # nodes, sum of wishes, height so far
        for node in rank:
            nodes, wishes, height = [node], wanted[node], float(_size(node) + _GAP_Y)
            while blocks and _top(blocks[-1]) + blocks[-1][2] > wishes / len(nodes):
                before, others, above = blocks.pop()
                wishes += others - above * len(nodes)
                nodes, height = before + nodes, above + height
            blocks.append((nodes, wishes, height))
        for block in blocks:
            at = _top(block)
            for node in block[0]:
                tops[node] = at
                at += _size(node) + _GAP_Y


def _top(block: tuple[list[str], float, float]) -> float:
    """Where a block begins: `wishes` is the sum of what its nodes want for its beginning."""
    nodes, wishes, _ = block
    return wishes / len(nodes)


def _size(node: str) -> int:
    return _BEND if ">" in node else HEIGHT
