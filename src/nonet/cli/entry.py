"""Entry points of task-run, task-scheduler and task-web: what runs before their slow imports.

`task-run probe` is answered at once: a container runs it every few seconds on a fraction of a
core, where half a second of imports would be its largest cost. A scheduler handles SIGTERM before
it imports anything.
"""

from __future__ import annotations

import sys
from importlib import import_module

from nonet.daemon.starting import collect_later, end_on_sigterm


def schedule() -> None:
    """Entry point of ``task-scheduler``."""
    end_on_sigterm()
    _run("daemons.scheduler")


def serve() -> None:
    """Entry point of ``task-web``."""
    end_on_sigterm()
    _run("daemons.web")


def main() -> None:
    """Entry point of ``task-run``."""
    match sys.argv[1:]:
        case ["probe", ("livez" | "readyz") as path]:
            _answer(path, None)
        case ["probe", ("livez" | "readyz") as path, "--port", port] if port.isdecimal():
            _answer(path, int(port))
    _run("run")


def _run(module: str) -> None:
    collect_later()
    import_module(f"nonet.cli.{module}").main()


def _answer(path: str, port: int | None) -> None:
    from nonet.cli.daemons.probing import probe  # only this command needs it

    sys.exit(probe(path, port))
