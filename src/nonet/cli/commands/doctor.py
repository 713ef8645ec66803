"""``task-run doctor``: check a namespace and its servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from nonet.base.plain import counted
from nonet.cli.findings import print_findings
from nonet.cli.options import Json
from nonet.cli.output import print_json, print_line
from nonet.cli.progress import seconds_passing
from nonet.cli.target import Target, operation
from nonet.daemon.service import ExitCode
from nonet.operate.doctor import patience

if TYPE_CHECKING:
    from nonet.rules.findings.finding import Finding


@operation
async def doctor(
    target: Target,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Report a problem only if it lasts this many seconds.",
            show_default="59: a lease and a sweep",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Find tasks, locks and keys that are lost, stuck or left over.

    The command also checks settings of the server. It checks a problem again for up to --wait
    seconds, because within that time other processes repair the state that a killed process left
    behind. It changes nothing. Hints do not affect the exit code.

    Exit codes: 0 healthy, 1 problems, 3 Redis unreachable.

    \b
    task-run doctor --json
    """

    async with target.observer() as nonet:
        seconds = patience(nonet.settings) if wait is None else wait
        async with seconds_passing("checking whether problems last", seconds):
            found = await nonet.doctor(wait=seconds)
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
        print_findings(_labelled("problem", found.problems) + _labelled("hint", found.hints))
        looked_at = ", ".join(f"{name} {n}" for name, n in sorted(found.looked_at.items()))
        verdict = "healthy" if found.is_healthy else counted(len(found.problems), "problem")
        print_line(f"{verdict} ({looked_at or 'empty namespace'}; {found.seconds:.1f} s)", err=True)
    return ExitCode.OK if found.is_healthy else ExitCode.FAILED


def _labelled(level: str, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings whose text says what they are about, and whether that does harm."""
    labelled = []
    for item in findings:
        subject = "" if item.what in item.problem else f"{item.kind} {item.what}: "
        labelled.append(dataclasses.replace(item, problem=f"{level}: {subject}{item.problem}"))
    return labelled
