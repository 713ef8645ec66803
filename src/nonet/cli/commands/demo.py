"""``task-run demo``: watch the whole system work on your own files."""

from __future__ import annotations

import logging
import sysconfig
from pathlib import Path
from typing import Annotated

import typer

from nonet.cli.commands import demo_view
from nonet.cli.demo.audit import run_demo
from nonet.cli.options import Debug, Json, StateDir
from nonet.cli.output import print_json
from nonet.cli.process import run
from nonet.config.settings import load_settings


def demo(
    path: Annotated[
        Path | None,
        typer.Argument(help="Directory to audit.", show_default="Python's standard library"),
    ] = None,
    as_json: Json = False,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Audit a directory tree for duplicate files, with real workers.

    The demo starts its own Redis server, a scheduler and workers of all sizes, and stops them
    afterwards. It counts regular files as `find -type f` does: unreadable files are retried and end
    as dead letters, symbolic links are left out, hard links count as files. The time runs from the
    submission to the report.

    Exit codes: 0 the report is complete, 1 the audit failed or was stopped, 2 the directory does
    not exist.

    \b
    task-run demo /usr/share
    """
    # slower to import than `--help` may take

    async def command() -> None:
        state = load_settings(state_dir=state_dir).state_dir
        tree = path or Path(sysconfig.get_path("stdlib"))
        if not debug:  # files that cannot be read are in the summary
            logging.getLogger("nonet").setLevel(logging.CRITICAL)
        summary = await run_demo(tree, state, demo_view.progress(silent=as_json))
        if as_json:
            print_json(summary.document())
        else:
            demo_view.print_summary(summary)
        demo_view.print_warnings(summary)

    run(debug, command)
