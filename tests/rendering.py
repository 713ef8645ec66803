"""`Charts`: the chart of Nonet, rendered by Helm itself, for tests.

with Charts() as charts:
    charts.render({"redis": {"bundled": {"enabled": True}}}).of_kind("Deployment")
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

CHART = Path(__file__).parents[1] / "charts" / "nonet"
MATRIX = sorted(CHART.glob("ci/*.yaml"))
RELEASE, NAMESPACE = "prod", "tasks"
# Ten times as quick, where it was built.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LIBRARY = Path(sys.prefix) / "helm" / "libhelm.so"

Object = dict[str, Any]


class Refused(Exception):
    """Helm does not render the chart with these values; the text is what it says."""


@dataclass(frozen=True)
class Rendered:
    """What Helm would send to a cluster.

    Attributes:
        objects: of the release.
        hooks: objects that run before it, or as its test.
        notes: what it would tell the user.
    """

    objects: list[Object]
    hooks: list[Object]
    notes: str

    def of_kind(self, *kinds: str) -> list[Object]:
        return [item for item in self.objects if item["kind"] in kinds]

    def named(self, kind: str, name: str) -> Object:
        """The object of this name, without the beginning that all names of the release have."""
        found = [
            item for item in self.of_kind(kind) if item["metadata"]["name"] == f"prod-nonet{name}"
        ]
        assert len(found) == 1, f"{kind} {name}: {len(found)}"
        return found[0]

    def pods(self, *, hooks: bool = True) -> Iterator[tuple[str, Object]]:
        """Name and pod template of everything that makes pods."""
        for item in [*self.objects, *(self.hooks if hooks else ())]:
            if item["kind"] == "Pod":
                yield item["metadata"]["name"], item
            elif "template" in item.get("spec", {}):
                yield item["metadata"]["name"], item["spec"]["template"]

    def daemons(self) -> Iterator[tuple[str, Object, Object]]:
        """Name, pod template and container of each worker, scheduler and dashboard."""
        for name, pod in self.pods(hooks=False):
            container = pod["spec"]["containers"][0]
            if container.get("args", [""])[0] in ("task-worker", "task-scheduler", "task-web"):
                yield name, pod, container


class Charts:
    """Renders while its ``with`` block runs; what was rendered once is remembered."""

    def __init__(self) -> None:
        self._rendered: dict[str, Rendered] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, str(CHART.parents[1] / "tests" / "chart" / "helm.py"), str(_LIBRARY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ci(self, name: str) -> Rendered:
        """With the values of ``ci/NAME.yaml``."""
        return self.render(values_of(CHART / "ci" / f"{name}.yaml"))

    def render(self, values: Object, existing: dict[str, Object] | None = None) -> Rendered:
        """With these values.

        Args:
            existing: what the cluster has already, by path.

        Raises:
            Refused: by the schema, or by the templates.
        """
        request = {
            "chart": str(CHART),
            "values": values,
            "name": RELEASE,
            "namespace": NAMESPACE,
            "existing": existing or {},
        }
        line = json.dumps(request)
        if line not in self._rendered:
            self._rendered[line] = self._ask(line)
        return self._rendered[line]

    def _ask(self, line: str) -> Rendered:
        assert self._process.stdin and self._process.stdout
        print(line, file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise Refused(answer["error"])
        return Rendered(
            objects=_read(answer["manifest"]),
            hooks=[item for text in answer["hooks"] for item in _read(text)],
            notes=answer["notes"],
        )


def _read(text: str) -> list[Object]:
    return [item for item in yaml.load_all(text, _LOADER) if item]


def values_of(path: Path) -> Object:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def environment(container: Object) -> dict[str, str]:
    """Name → value of what the manifest itself sets."""
    return {item["name"]: item["value"] for item in container.get("env", ())}


def library_problem() -> str:
    """Why nothing can be rendered; empty: it can."""
    if _LIBRARY.exists():
        return ""
    return f"no Helm library: run scripts/helm {sys.executable}"
