"""The layers that documents tell are those that `make check` enforces."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def layers() -> list[set[str]]:
    """Those of pyproject.toml, from top to bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [
        item
        for item in settings["tool"]["importlinter"]["contracts"]
        if item.get("containers") == ["nonet"]
    ]
    return [names(layer) for layer in contract["layers"]]


def names(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def test_the_architecture_names_each_layer(layers: list[set[str]]) -> None:
    """Its list has the same layers in the same order."""
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    told = text.partition("## Layers")[2].split("```")[1]
    assert [names(layer) for layer in told.split("→")] == layers


def test_the_table_for_contributors_names_each_module(layers: list[set[str]]) -> None:
    """Each is in one row of the table, whose rows go down; a layer may have several."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [names(row) for row in re.findall(r"(?m)^\| (`.+?) \|", text)]
    where = {name: depth for depth, layer in enumerate(layers) for name in layer}
    told = [name for row in rows for name in row]
    assert sorted(told) == sorted(where)
    depths = [{where[name] for name in row} for row in rows]
    assert all(len(depth) == 1 for depth in depths), rows
    assert depths == sorted(depths, key=min)
