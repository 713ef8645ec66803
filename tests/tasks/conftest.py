"""Fixtures of the tests of tasks: small distributions, and injectors that know nothing yet."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from nonet.tasks.injection import REGISTRY, DependencyRegistry, Injector

HEADER = """
from dataclasses import dataclass
from nonet import BaseTask
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a small distribution: a module with source, and its entry points."""

    def install(dist: str, source: str = "", entry_points: str = "", header: str = HEADER) -> None:
        module = dist.replace("-", "_").replace(".", "_").lower()
        site = tmp_path / dist
        info = site / f"{module}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
        (site / f"{module}.py").write_text(header + textwrap.dedent(source))
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


@pytest.fixture
async def injector() -> AsyncIterator[Injector]:
    """Of a registry without providers."""
    async with Injector(registry=DependencyRegistry()) as injector:
        yield injector


@pytest.fixture
def global_registry() -> Iterator[DependencyRegistry]:
    """That of this process, which is empty before and after."""
    REGISTRY.clear()
    yield REGISTRY
    REGISTRY.clear()
