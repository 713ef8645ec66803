"""`Verdict`: what came of one scenario, and the table of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

HEADINGS = ("scenario", "faults", "tasks", "executions", "lost", "doubled", "recovery s", "verdict")


@dataclass(frozen=True)
class Verdict:
    """One row of the table.

    Attributes:
        faults: what was done.
        lost: tasks that were accepted and never ended.
        doubled: ends, callbacks and SQL rows beyond one, and overlaps under a mutex.
        recovery: seconds until what a fault had hit went on; None: not measured.
        problems: what is wrong, in words.
    """

    scenario: str
    faults: str
    tasks: int
    executions: int
    lost: int
    doubled: int
    recovery: float | None = None
    problems: Sequence[str] = field(default_factory=tuple)

    def row(self, *, failed: bool) -> tuple[str, ...]:
        """As text; `failed` if the test says so for another reason."""
        return (
            self.scenario,
            self.faults,
            f"{self.tasks:,}",
            f"{self.executions:,}",
            f"{self.lost}",
            f"{self.doubled}",
            "" if self.recovery is None else f"{self.recovery:.1f}",
            "FAILED" if failed or self.problems else "kept",
        )


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, the first row its headings."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(
        f"| {' | '.join(map(str.ljust, row, widths))} |" for row in (rows[0], rule, *rows[1:])
    )
