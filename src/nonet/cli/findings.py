"""Print findings: each with its number, its cause, and below it the command that comes next."""

from __future__ import annotations

from collections.abc import Sequence

from nonet.cli.output import echo, print_table
from nonet.rules.findings.finding import Finding

# Findings that fit on a screen.
_MOST = 20


def print_findings(findings: Sequence[Finding], *, more: str = "") -> None:
    """Print findings, numbered from 1.

    The command stays in one line, so that it can be copied.

    Args:
        more: the command that shows all of them; then only the first ones are printed.
    """
    shown = findings[:_MOST] if more else findings
    for number, finding in enumerate(shown, 1):
        seen = finding.seen
        mark = f" (seen by {seen.who} until {seen.until:%Y-%m-%d %H:%MZ})" if seen else ""
        print_table([], [(f"{number}.", f"{finding.problem}{mark}")])
        if finding.hint:
            colon = ":" if finding.command else ""
            print_table([], [("  ", f"{finding.hint}{colon}")])
        if finding.command:
            echo(f"    -> {finding.command}")
    if len(shown) < len(findings):
        print_table([], [("", f"{len(findings) - len(shown)} more, not as bad: {more}")])
