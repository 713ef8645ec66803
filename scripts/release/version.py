"""Print the version, or set it in every file that contains it.

``python scripts/release/version.py [NEW] [--root DIR]``

pyproject.toml defines the version; uv.lock and the chart's appVersion repeat it.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

# By file, a pattern of the version with the text before and after it.
PLACES = {
    "pyproject.toml": (r'(?m)(^name = "nonet"\nversion = ")([^"]+)(")'),
    "uv.lock": (r'(?m)(^name = "nonet"\nversion = ")([^"]+)(")'),
    "charts/nonet/Chart.yaml": (r'(?m)(^appVersion: ")([^"]+)(")'),
}


def versions(root: Path) -> dict[str, str]:
    """Return the version in each file."""
    found = {}
    for name, pattern in PLACES.items():
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"))
        found[name] = match[2] if match else "none"
    return found


def set_version(root: Path, version: str) -> None:
    """Write a new version to all files."""
    for name, pattern in PLACES.items():
        file = root / name
        text, count = re.subn(pattern, rf"\g<1>{version}\g<3>", file.read_text(encoding="utf-8"))
        if count != 1:
            raise SystemExit(f"{name} must contain the version once, but contains it {count} times")
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("new", nargs="?")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2])
    options = parser.parse_args()
    if options.new:
        set_version(options.root, options.new)
    for name, version in versions(options.root).items():
        print(f"{version}  {name}")
