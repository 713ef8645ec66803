"""``task-run demo``: watch the whole system work on your own files."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Annotated

import typer

from nonet.base.errors import NonetError
from nonet.base.plain import printable
from nonet.cli.options import Debug, Json, StateDir
from nonet.cli.output import print_json
from nonet.cli.process import run
from nonet.daemon.service import ExitCode


def demo(
    path: Annotated[
        Path | None,
        typer.Argument(help="Directory to audit.", show_default="Python's standard library"),
    ] = None,
    web: Annotated[
        bool,
        typer.Option(
            "--web",
            help="Audit nothing: start the dashboard on a system that works until Ctrl-C.",
        ),
    ] = False,
    as_json: Json = False,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Audit a directory tree for duplicate files, with real daemons.

    The demo starts its own Redis server, a scheduler and workers of all sizes, and stops them
    afterwards. It counts regular files as `find -type f` does: unreadable files are retried and end
    as dead letters, symbolic links are left out, hard links count as files. The time runs from the
    submission to the report.

    With --web the daemons run the tasks of a web shop that only pretends to work: some fail, some
    wait for each other. The command prints the address of the dashboard, opens a browser if there
    is a display, and deletes everything at the end.

    Exit codes: 0 the report is complete, 1 the audit failed or was stopped, 2 the directory does
    not exist.

    \b
    task-run demo /usr/share
    task-run demo --web
    """
    if web and (path is not None or as_json):
        raise typer.BadParameter("takes neither a directory nor --json", param_hint="--web")
    # slower to import than `--help` may take
    from nonet.cli.commands import demo_view
    from nonet.config.settings import load_settings
    from nonet.demo.audit import run_demo

    async def command() -> int:
        state = load_settings(state_dir=state_dir).state_dir
        if web:
            from nonet.demo.live import run_live

            await run_live(state.absolute(), lambda line: typer.echo(line, err=True))
            return ExitCode.OK
        with demo_view.silence() if as_json else demo_view.progress() as progress:
            try:
                summary = await run_demo(
                    path or Path(sysconfig.get_path("stdlib")), state, progress
                )
            except NonetError as error:
                for line in getattr(error, "__notes__", ()):
                    typer.echo(f"  {printable(line)}", err=True)
                raise
        if as_json:
            print_json(summary.document())
        else:
            demo_view.print_summary(summary)
        demo_view.print_warnings(summary)
        return ExitCode.OK

    run(debug, command)
