"""Act on many dead letters or quarantine entries: report each one, and derive the exit code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nonet.base.errors import NonetError, ServerUnreachableError
from nonet.cli.output import print_json, print_rows
from nonet.cli.process import exit_code, named, print_error
from nonet.cli.progress import Progress
from nonet.daemon.service import ExitCode

_Id = TypeVar("_Id", int, str)
_PRINTED_AT_ONCE = 500


async def one_by_one(
    act: Callable[[_Id], Awaitable[dict[str, Any]]], pages: AsyncIterator[list[_Id]]
) -> AsyncIterator[tuple[_Id, dict[str, Any] | NonetError]]:
    """Act on each item, and yield what became of it.

    Raises:
        ServerUnreachableError: a server does not answer; other errors concern one item only.
    """
    async for page in pages:
        for id in page:
            try:
                yield id, await act(id)
            except ServerUnreachableError:
                raise
            except NonetError as error:
                yield id, error


@dataclass
class Report:
    """The outcome of each item: tables page by page, or one JSON array at the end.

    Attributes:
        thing: the noun for an item in messages: ``dead letter``.
        key: the name of an item in tables and JSON: ``row``.
        as_json: print JSON.
        are_named: the user named the items; the error of a single named item sets the exit code.
    """

    thing: str
    key: str
    as_json: bool
    are_named: bool
    items: list[dict[str, Any]] = field(default_factory=list)
    failures: list[ExitCode] = field(default_factory=list)
    _printed: int = 0

    async def follow(
        self, outcomes: AsyncIterator[tuple[_Id, dict[str, Any] | NonetError]]
    ) -> None:
        """Print each outcome, a result or the error of one item, even if an error ends them."""
        try:
            with Progress(f"{self.thing}s") as progress:
                async for id, outcome in outcomes:
                    if isinstance(outcome, NonetError):
                        progress.clear()
                        self.failed(id, outcome)
                    else:
                        self.done(id, outcome)
                    progress.advance()
                    if len(self.items) - self._printed >= _PRINTED_AT_ONCE:
                        progress.clear()
                        self._print_page()
        finally:
            self.close()

    def done(self, id: int | str, result: dict[str, Any]) -> None:
        """Record a success."""
        self.items.append({self.key: id, **result})

    def failed(self, id: int | str, error: NonetError) -> None:
        """Record a failure, and print it on stderr."""
        self.items.append({self.key: id, "error": str(error)})
        self.failures.append(exit_code(error))
        print_error(named(f"{self.thing} {id}", str(error)))

    def close(self) -> None:
        """Print the items that are not printed yet."""
        self._print_page()
        if self.as_json:
            print_json(self.items)

    def code(self) -> ExitCode:
        """The exit code of the command."""
        if not self.failures:
            return ExitCode.OK
        if self.are_named and len(self.items) == 1:
            return self.failures[0]
        return ExitCode.FAILED

    def _print_page(self) -> None:
        page = [item for item in self.items[self._printed :] if "error" not in item]
        self._printed = len(self.items)
        if page and not self.as_json:
            print_rows(page, False, "")
