"""Print findings: each with its number, its cause, and below it the command that comes next."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from nonet.base.plain import printable
from nonet.cli.output import print_table
from nonet.rules.diagnosis import Finding


def print_findings(findings: Iterable[Finding]) -> None:
    """Print findings, numbered from 1.

    The command stays in one line, so that it can be copied.
    """
    for number, finding in enumerate(findings, 1):
        print_table([], [(f"{number}.", finding.problem)])
        if finding.hint:
            typer.echo(f"    -> {printable(finding.hint)}")
