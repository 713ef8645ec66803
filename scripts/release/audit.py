"""Check uv.lock, with all extras, for known vulnerabilities: ``make audit``.

The check asks the OSV database over the network. Exit codes: 0 no known vulnerability, 1 at least
one, 2 the database did not answer.

    AUDIT_URL=…   a service with the same interface to ask instead
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
    """Return the uv of this checkout, else the one beside the interpreter or on PATH."""
    places = [ROOT / ".venv" / "bin", Path(sys.executable).parent]
    path = os.pathsep.join([*map(str, places), os.environ.get("PATH", "")])
    found = shutil.which("uv", path=path)
    if not found:
        sys.exit("uv is not installed: run 'make check', which installs it into .venv")
    return found


def audit(root: Path = ROOT) -> int:
    """Run the audit, print its findings, and return the exit code."""
    service = os.environ.get("AUDIT_URL")
    command = [find_uv(), *_COMMAND, *(["--service-url", service] if service else [])]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode not in (0, 1):  # 1: vulnerabilities found
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        print(
            f"the vulnerability database did not answer ({lines[-1] if lines else '?'}), so "
            "uv.lock was not checked: run 'make audit' where the network is available",
            file=sys.stderr,
        )
        return 2
    print(said, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(audit())
