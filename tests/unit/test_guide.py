"""The recipes for authors: their examples are code that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = (
    "add-a-task",
    "submit-and-cancel",
    "long-tasks",
    "locks-and-limits",
    "inject-dependencies",
    "durable-tasks",
    "recover-from-a-lost-redis",
    "callbacks",
    "periodic-tasks",
)


def test_the_examples_are_one_module(tmp_path: Path) -> None:
    """Copied into one file below each other, as the guide says, they can be imported."""
    guide = "\n".join((HOW_TO / f"{page}.md").read_text() for page in PAGES)
    examples = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    module = [text for text in examples if not text.startswith("# submit.py")]
    assert len(module) >= 5
    (tmp_path / "mytasks.py").write_text("\n".join(module))
    # A process of its own: the examples register a lock type.
    ended = subprocess.run(
        [sys.executable, "-c", "import mytasks"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
