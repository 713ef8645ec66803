"""``task-run doctor``: whether everything is in its place, and the server fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.cli.common import Debug, Json, Namespace, StateDir, observer, run
from nonet.cli.output import print_json, print_rows
from nonet.daemon.service import ExitCode

if TYPE_CHECKING:
    from nonet.rules.diagnosis import Finding


def doctor(
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds for which something must be wrong to count.",
            show_default="a lease and a sweep, 59",
        ),
    ] = None,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Check that each task is in one place and nothing is left over.

    The server and its settings are checked, too. What is wrong is looked at again until it is not,
    or has been so for --wait seconds: what a killed process leaves behind is mended by the others
    in that time. Nothing is changed. Hints are no problems. Exit codes: 0 healthy, 1 problems, 3
    Redis unreachable.
    """

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            found = await nonet.doctor(wait=wait)
        if as_json:
            print_json(
                {
                    "healthy": found.is_healthy,
                    "problems": [dataclasses.asdict(item) for item in found.problems],
                    "hints": [dataclasses.asdict(item) for item in found.hints],
                    "looked_at": dict(found.looked_at),
                    "seconds": found.seconds,
                }
            )
        else:
            print_rows(_rows("problem", found.problems) + _rows("hint", found.hints), False, "")
            looked_at = ", ".join(f"{name} {n}" for name, n in sorted(found.looked_at.items()))
            verdict = "healthy" if found.is_healthy else _problems(len(found.problems))
            typer.echo(
                f"{verdict} ({looked_at or 'nothing there'}; {found.seconds:.1f} s)", err=True
            )
        return ExitCode.OK if found.is_healthy else ExitCode.FAILED

    run(debug, command)


def _problems(number: int) -> str:
    return "1 problem" if number == 1 else f"{number} problems"


def _rows(level: str, findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [
        {
            "level": level,
            "kind": item.kind,
            "what": item.what,
            "finding": item.problem,
            "next step": item.hint,
        }
        for item in findings
    ]
