"""docs/how-to/deploy-with-helm.md: what it shows can be installed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from docs.pages import Block, Page
from rendering import CHART, Charts, Object

PAGE = Page.read("how-to/deploy-with-helm.md")
_KEYS = set(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))


def _installs() -> Iterator[str]:
    for block in PAGE.blocks:
        lines = block.text.replace("\\\n", " ").splitlines()
        yield from (line for line in lines if re.match(r"helm .*\binstall ", line))


def _values(command: str) -> Object:
    """What ``--set`` says: ``a.b=c`` and ``a={b,c}``, with commas between."""
    words = shlex.split(command, comments=True)
    values: Object = {}
    for at, word in enumerate(words):
        if word != "--set":
            continue
        for path, value in re.findall(r"([\w.]+)=(\{[^}]*\}|[^,]*)", words[at + 1]):
            place = values
            *above, last = path.split(".")
            for name in above:
                place = place.setdefault(name, {})
            is_list = value.startswith("{")
            place[last] = value[1:-1].split(",") if is_list else {"true": True}.get(value, value)
    return values


def _secrets(item: Any) -> Iterator[str]:
    """Names of those that pods see as files or environment."""
    if isinstance(item, dict):
        for key, value in item.items():
            if key in ("secret", "secretKeyRef") and isinstance(value, dict):
                yield value.get("secretName") or value["name"]
            yield from _secrets(value)
    elif isinstance(item, list):
        for value in item:
            yield from _secrets(value)


def _blocks() -> list[Block]:
    """Those that are values of the chart."""
    found = [block for block in PAGE.blocks if block.language == "yaml"]
    return [block for block in found if set(yaml.safe_load(block.text)) <= _KEYS]


@pytest.mark.parametrize("command", list(_installs()))
def test_the_commands_install_daemons(charts: Charts, command: str) -> None:
    """Workers of each size and schedulers; their secrets are those that the page makes."""
    found = charts.render(_values(command))
    assert {name.split("-", 2)[-1] for name, _, _ in found.daemons()} >= {
        "worker-small",
        "worker-medium",
        "worker-large",
        "scheduler",
    }
    made = set(re.findall(r"create secret generic (\S+)", PAGE.source))
    own = {item["metadata"]["name"] for item in found.objects if item["kind"] == "Secret"}
    named = set(_secrets([*found.objects, *found.hooks]))
    assert named and named <= made | own


@pytest.mark.parametrize("block", _blocks(), ids=str)
def test_the_values_are_taken(charts: Charts, block: Block) -> None:
    """Each block of values, with a Redis where it names none."""
    values = yaml.safe_load(block.text)
    charts.render({"redis": {"url": "redis://redis:6379/0"}, **values})


def test_the_page_has_commands_and_values() -> None:
    """Both are found, or the tests above say nothing."""
    assert len(list(_installs())) == 2
    assert len(_blocks()) >= 3
