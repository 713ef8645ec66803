"""Show the version, or set it wherever it stands.

``python scripts/release/version.py [NEW] [--root DIR]``

Its home is pyproject.toml; uv.lock and the chart's appVersion repeat it.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

# File, and what stands before and behind the version in it.
PLACES = {
    "pyproject.toml": (r'(?m)(^name = "nonet"\nversion = ")([^"]+)(")'),
    "uv.lock": (r'(?m)(^name = "nonet"\nversion = ")([^"]+)(")'),
    "charts/nonet/Chart.yaml": (r'(?m)(^appVersion: ")([^"]+)(")'),
}


def versions(root: Path) -> dict[str, str]:
    """The version that each file names."""
    found = {}
    for name, pattern in PLACES.items():
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"))
        found[name] = match[2] if match else "none"
    return found


def set_version(root: Path, version: str) -> None:
    """Write another one into all of them."""
    for name, pattern in PLACES.items():
        file = root / name
        text, count = re.subn(pattern, rf"\g<1>{version}\g<3>", file.read_text(encoding="utf-8"))
        if count != 1:
            raise SystemExit(f"{name} names the version {count} times, not once")
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
