"""Whether a known vulnerability is in what uv.lock has, all extras included: ``make audit``.

It asks the OSV database, so it needs the network. Exit codes: 0 none is known, 1 some are,
2 nobody could be asked: then nothing is known.

    AUDIT_URL=…   another service of the same kind
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COMMAND = ["audit", "--preview-features", "audit-command", "--frozen", "--no-dev"]


def find_uv() -> str:
    """The uv of this checkout, else the one beside the interpreter or on PATH."""
    places = [ROOT / ".venv" / "bin", Path(sys.executable).parent]
    path = os.pathsep.join([*map(str, places), os.environ.get("PATH", "")])
    found = shutil.which("uv", path=path)
    if not found:
        sys.exit("there is no uv: 'make check' sets .venv up, which has one")
    return found


def audit(root: Path = ROOT) -> int:
    """Ask, and say what was found; the exit code."""
    service = os.environ.get("AUDIT_URL")
    command = [find_uv(), *_COMMAND, *(["--service-url", service] if service else [])]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode not in (0, 1):  # 1: it has found some
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        print(
            f"the database of vulnerabilities could not be asked ({lines[-1] if lines else '?'}): "
            "whether one is known of what uv.lock has is not known. Run this where the network is",
            file=sys.stderr,
        )
        return 2
    print(said, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(audit())
