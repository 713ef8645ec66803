"""Parse YAML with the line of each value, and reject values that YAML silently reinterprets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import yaml

Path: TypeAlias = tuple[Any, ...]

MOST_VALUES = 200_000
# The limits of a file. Arguments of tasks have one of their own: `base.messages.message.MAX_DEPTH`.
MOST_LEVELS = 100

_INTEGER = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_PLAIN_KEY = re.compile("0|-?[1-9][0-9]*")
# YAML reads these as base 8 and base 60, though they look like decimal numbers or times.
_OTHER_NUMBER = re.compile(r"[-+]?0[0-7_]+|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")


class Document:
    """One YAML document.

    Attributes:
        value: the parsed document; None if it is empty or invalid.
        problems: the problems, each with its line (counted from 1; 0: unknown).
        lines: the line of each value, by the path of keys and indices to it.
    """

    def __init__(self, text: str) -> None:
        self.value: Any = None
        self.problems: list[tuple[int, str]] = []
        self.lines: dict[Path, int] = {}
        loader: _Loader | None = None
        try:
            loader = _Loader(text, self.problems)
            self._read(loader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 0
            self.problems.append((line, str(error.problem or error.context)))
        except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
            self.problems.append((0, f"is not valid YAML: {' '.join(str(error).split())}"))
        if loader is not None and not loader.is_mapping:
            # It may be a file of passwords: report where reading failed, and quote nothing.
            failed = self.problems[-1:] if self.value is None else []
            self.problems = [(line, _QUOTED.sub("", why)) for line, why in failed]

    def _read(self, loader: _Loader) -> None:
        node = loader.get_single_node()
        if node is None:
            return
        _Expansion().check(node)
        self.value = loader.construct_document(node)
        # The constructor has resolved `<<`, so merged values have lines in their new place, too.
        self.lines.update(_lines(node, (), loader))

    def line_of(self, path: Path) -> int:
        """Return the line of the longest known prefix of `path`; 0: unknown."""
        found = (self.lines.get(path[:length]) for length in range(len(path), 0, -1))
        return next((line for line in found if line), 0)


def _lines(node: yaml.Node, at: Path, loader: _Loader) -> Iterator[tuple[Path, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            # The models reject a key that is not a scalar.
            here = (
                (*at, loader.construct_object(key, deep=True))
                if isinstance(key, yaml.ScalarNode)
                else at
            )
            yield here, key.start_mark.line + 1
            yield from _lines(value, here, loader)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*at, index), item.start_mark.line + 1
            yield from _lines(item, (*at, index), loader)


# A quotation from the document in an error, but not a single character or the name of a token.
_QUOTED = re.compile(r" '[^'<\\][^']+'")


class _Expansion:
    """Rejects anchors that contain themselves or expand to too many values."""

    def __init__(self) -> None:
        self._sizes: dict[yaml.Node, int] = {}
        self._open: set[yaml.Node] = set()

    def check(self, root: yaml.Node) -> None:
        if self._size(root) > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES} values, aliases resolved")

    def _size(self, node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if node in self._open:
            raise ValueError(
                f"the value in line {node.start_mark.line + 1} contains itself by an alias"
            )
        if node not in self._sizes:
            self._open.add(node)
            self._sizes[node] = 1 + sum(map(self._size, _children(node)))
            self._open.discard(node)
        return self._sizes[node]


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    for item in node.value:
        yield from item if isinstance(item, tuple) else (item,)


class _Loader(yaml.SafeLoader):
    """The safe loader, which also reports values that it would silently reinterpret."""

    def __init__(self, text: str, problems: list[tuple[int, str]]) -> None:
        super().__init__(text)
        self._problems = problems
        self.is_mapping = False
        self._level = 0
        self._heights: dict[yaml.Node, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Reject deep nesting as soon as it is found: parsing all of it could take minutes."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # the stubs have no types
        self._level += 1
        if self._level == 1:
            self.is_mapping = self.check_event(yaml.MappingStartEvent)
        self._check_level(1, mark)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.CollectionNode):  # an alias adds the levels of its anchor
            below = (self._heights.get(child, 1) for child in _children(node))
            self._heights[node] = 1 + max(below, default=0)
            self._check_level(self._heights[node], mark)
        self._level -= 1
        return node

    def _check_level(self, height: int, mark: yaml.Mark) -> None:
        if self._level - 1 + height > MOST_LEVELS:
            reason = f"is nested more than {MOST_LEVELS} levels deep"
            raise yaml.MarkedYAMLError(problem=reason, problem_mark=mark)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Check here because nodes are still as written; `<<` is resolved later. (`anchor` is a name
        # or None, unlike in the type stubs.)
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, value in node.value:
            identity = (key.tag, str(key.value))
            if identity in seen:
                self._problem(key, f"the key {key.value!r} is written twice")
            seen.add(identity)
            if key.tag == _INTEGER and not _PLAIN_KEY.fullmatch(str(key.value)):
                reason = f"is the number {self.construct_object(key)} in YAML: write it in quotes"
                self._problem(key, f"the key {key.value!r} {reason}")
            self._check_number(value)
        return node

    def compose_sequence_node(self, anchor: Any) -> yaml.SequenceNode:
        node: yaml.SequenceNode = super().compose_sequence_node(anchor)
        for item in node.value:
            self._check_number(item)
        return node

    def _check_number(self, node: yaml.Node) -> None:
        if node.tag in (_INTEGER, _FLOAT) and _OTHER_NUMBER.fullmatch(str(node.value)):
            number = self.construct_object(node)
            self._problem(
                node,
                f"{node.value} is the number {number} in YAML: write that, or the text in quotes",
            )

    def _problem(self, node: yaml.Node, reason: str) -> None:
        self._problems.append((node.start_mark.line + 1, reason))
