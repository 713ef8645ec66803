"""Select the dead letters of a ``task-run dlq`` command: named rows, or filters."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nonet.base.errors import ConfigurationError
from nonet.cli.completion import classes
from nonet.cli.durations import duration

if TYPE_CHECKING:
    from nonet.cli.target import CodeTarget
    from nonet.stores.sql.dead_letters import DeadLetters, LetterFilter

Age = typer.Option(
    parser=duration, metavar="AGE", help="Only letters older than this: 30d, 12h, 90m or 3600s."
)
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing; print what would be acted on.")
]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Filters by state, class and reason. An option that is not given matches every letter."""

    status: Annotated[
        Literal["PENDING", "DISPATCHED", "FAILED"] | None,
        typer.Option(
            help="Only letters in this state: PENDING (not resubmitted), DISPATCHED "
            "(resubmitted), FAILED (the resubmitted task died too).",
            show_default=False,
        ),
    ] = None
    task: Annotated[
        str | None,
        typer.Option(
            metavar="CATEGORY:CLASS",
            help="Only letters of this class; a bare name will do.",
            autocompletion=classes,
        ),
    ] = None
    reason: Annotated[
        str | None,
        typer.Option(help="Only letters with this reason: retries, arguments, worker-lost …"),
    ] = None
    error: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="Only letters whose exception has this in its name."),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(metavar="CLUSTER", help="Only letters of this cluster, see 'dlq clusters'."),
    ] = None

    def fields(self, target: CodeTarget) -> dict[str, Any]:
        """The given filters as fields of a `LetterFilter`.

        Args:
            target: loads the classes if the task is given by its bare name.
        """
        from nonet.operate.dead_letters import letter_fields

        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(Kind)}
        return letter_fields(lambda: target.application().registry, **given)


@dataclass(frozen=True, kw_only=True)
class Filters(Kind):
    """Filters by state, class, reason and age."""

    older_than: Annotated[timedelta | None, Age] = None
    newer_than: Annotated[
        timedelta | None,
        typer.Option(parser=duration, metavar="AGE", help="Only letters newer than this."),
    ] = None

    def fields(self, target: CodeTarget) -> dict[str, Any]:
        """See `Kind.fields`."""
        now, filters = datetime.now(UTC), super().fields(target)
        if self.older_than is not None:
            filters["died_before"] = now - self.older_than
        if self.newer_than is not None:
            filters["died_after"] = now - self.newer_than
        return filters


@dataclass(frozen=True, kw_only=True)
class Selection(Filters):
    """Named rows, or filters."""

    rows: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[ROW...]", help="Numbers of rows, see 'dlq list'.", show_default=False
        ),
    ] = None
    every: Annotated[
        bool, typer.Option("--all", help="All letters that match, even without a filter.")
    ] = False
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Act on at most this many, the oldest first.", show_default="no limit"
        ),
    ] = None
    dry_run: DryRun = False

    def resolve(self, target: CodeTarget, **defaults: Any) -> LetterFilter | None:
        """Return the filter that the options name; None if they name rows.

        Args:
            defaults: fields of the `LetterFilter` that hold unless an option sets them.

        Raises:
            ConfigurationError: both rows and filters are given, or neither: a typo must not select
                every letter.
        """
        from nonet.stores.sql.dead_letters import LetterFilter

        given = self.fields(target)
        if self.rows and (self.every or given or self.limit is not None or self.dry_run):
            raise ConfigurationError(
                "named rows exclude --all, filters, --limit and --dry-run: leave out the rows or "
                "the options"
            )
        if not (self.rows or self.every or given):
            raise ConfigurationError(
                "which letters? Name rows (see 'task-run dlq list'), or give a filter (--status, "
                "--task, --reason, --error, --cluster, --older-than, --newer-than), or --all"
            )
        return None if self.rows else LetterFilter(**{**defaults, **given})

    async def pages(
        self, letters: DeadLetters, chosen: LetterFilter | None
    ) -> AsyncIterator[list[int]]:
        """Yield row numbers in batches, the oldest first; `chosen` is that of `resolve`."""
        if chosen is None:
            yield list(dict.fromkeys(self.rows or []))
            return
        left = self.limit
        async for page in letters.pages(chosen):
            yield page[:left]
            if left is not None and (left := left - len(page)) <= 0:
                return
