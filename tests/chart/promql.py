"""`fires`: what an alert says of given samples, by the rules of Prometheus that our alerts use.

    fires('increase(nonet_losses_total{pod="a"}[10m]) > 1', '''
        nonet_losses_total{pod="a"} 3 5
        nonet_losses_total{pod="b"} 3 9
    ''')                            # [{"pod": "a"}]

A line is a series as Prometheus writes it, with its value now; of a counter the value at the begin
of the range stands before it. A counter that had none then has not increased, as far as anybody can
tell. Nothing is extrapolated or interpolated.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser

NOW = 1_800_000_000.0

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (?:(\S+) )?(\S+)")
_COMPARE = {">": operator.gt, "==": operator.eq}
_COUNT = {"-": operator.sub, "/": operator.truediv}
_REDUCE: dict[str, Callable[[list[float]], float]] = {"max": max, "sum": sum}


def fires(expression: str, samples: str) -> list[dict[str, str]]:
    """The labels of each alert that there is now."""
    found = _Samples(samples).of(promql_parser.parse(expression))
    assert isinstance(found, dict)
    return [dict(labels) for labels in found]


@dataclass
class _Series:
    name: str
    labels: dict[str, str]
    before: float | None
    now: float


class _Samples:
    """Evaluates expressions for the series that there are."""

    def __init__(self, text: str) -> None:
        self._all: list[_Series] = []
        for line in filter(None, map(str.strip, text.splitlines())):
            match = _LINE.fullmatch(line)
            assert match, line
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            before = None if match[3] is None else float(match[3])
            self._all.append(_Series(match[1], labels, before, float(match[4])))

    def of(self, node: Any) -> Vector | float:
        kind = type(node).__name__
        evaluate: Callable[[Any], Vector | float] = getattr(self, f"_{kind}")
        return evaluate(node)

    def _NumberLiteral(self, node: Any) -> float:
        return float(node.val)

    def _ParenExpr(self, node: Any) -> Vector | float:
        return self.of(node.expr)

    def _VectorSelector(self, node: Any) -> Vector:
        return {frozenset(item.labels.items()): item.now for item in self._selected(node)}

    def _selected(self, node: Any) -> Iterator[_Series]:
        wanted = {item.name: item.value for item in node.matchers.matchers}
        assert all(str(item.op) == "MatchOp.Equal" for item in node.matchers.matchers)
        for item in self._all:
            if item.name == node.name and wanted.items() <= item.labels.items():
                yield item

    def _increases(self, node: Any) -> Vector:
        return {
            frozenset(item.labels.items()): item.now - item.before
            for item in self._selected(node.vector_selector)
            if item.before is not None
        }

    def _Call(self, node: Any) -> Vector | float:
        match node.func.name:
            case "time":
                return NOW
            case "absent":
                return {} if self.of(node.args[0]) else {frozenset(): 1.0}
            case "increase":
                return self._increases(node.args[0])
            case "rate":
                seconds = node.args[0].range.total_seconds()
                return {key: n / seconds for key, n in self._increases(node.args[0]).items()}
            case "histogram_quantile":
                part, buckets = self.of(node.args[0]), self.of(node.args[1])
                assert isinstance(part, float) and isinstance(buckets, dict)
                return _quantile(part, buckets)
        raise NotImplementedError(node.func.name)

    def _AggregateExpr(self, node: Any) -> Vector:
        found = self.of(node.expr)
        assert isinstance(found, dict)
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in found.items():
            named: Collection[str] = node.modifier.labels if node.modifier else ()
            is_kept = node.modifier is None or str(node.modifier.type) == "AggModifierType.By"
            groups[_only(labels, named, is_kept)].append(value)
        return {labels: _REDUCE[str(node.op)](values) for labels, values in groups.items()}

    def _BinaryExpr(self, node: Any) -> Vector | float:
        left, right, sign = self.of(node.lhs), self.of(node.rhs), str(node.op)
        matching = node.modifier.matching if node.modifier else None
        named: Collection[str] = matching.labels if matching else ()
        is_on = matching is not None and str(matching.type) == "LabelModifierType.Include"

        def key(labels: Labels) -> Labels:
            return _only(labels, named, is_on)

        if sign in ("or", "unless"):
            assert isinstance(left, dict) and isinstance(right, dict)
            if sign == "unless":
                others = set(map(key, right))
                return {labels: n for labels, n in left.items() if key(labels) not in others}
            ours = set(map(key, left))
            return left | {labels: n for labels, n in right.items() if key(labels) not in ours}
        if not isinstance(left, dict):
            if not isinstance(right, dict):
                return _COUNT[sign](left, right)
            assert sign in _COUNT, "the constant of a comparison stands on the right"
            return {labels: _COUNT[sign](left, n) for labels, n in right.items()}
        if isinstance(right, dict):
            matched = {key(labels): n for labels, n in right.items()}
            pairs = {
                labels: (n, matched[key(labels)])
                for labels, n in left.items()
                if key(labels) in matched
            }
        else:
            pairs = {labels: (n, right) for labels, n in left.items()}
        if sign in _COMPARE:
            return {labels: n for labels, (n, m) in pairs.items() if _COMPARE[sign](n, m)}
        return {labels: _COUNT[sign](n, m) for labels, (n, m) in pairs.items()}


def _only(labels: Labels, named: Collection[str], is_kept: bool) -> Labels:
    """The labels that are named, or those that are not."""
    return frozenset(item for item in labels if (item[0] in named) == is_kept)


def _quantile(part: float, buckets: Vector) -> Vector:
    """The bound of the bucket in which it is; Prometheus looks between the bounds, too."""
    by_labels: dict[Labels, dict[float, float]] = defaultdict(dict)
    for labels, count in buckets.items():
        by_labels[_only(labels, ["le"], is_kept=False)][float(dict(labels)["le"])] = count
    return {
        labels: min(bound for bound, count in counts.items() if count >= part * counts[math.inf])
        for labels, counts in by_labels.items()
        if counts[math.inf]
    }
