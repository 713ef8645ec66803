"""The console script ``task-run``: a probe is answered at once, all else by the other commands.

A container runs `task-run probe` every few seconds on a share of a core, where half a second of
imports would be its largest cost.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point. What is no plain probe, such as its ``--help``, goes the usual way."""
    match sys.argv[1:]:
        case ["probe", ("livez" | "readyz") as path]:
            _answer(path, None)
        case ["probe", ("livez" | "readyz") as path, "--port", port] if port.isdecimal():
            _answer(path, int(port))
    from nonet.cli.run import main as run

    run()


def _answer(path: str, port: int | None) -> None:
    from nonet.cli.probing import probe

    sys.exit(probe(path, port))
