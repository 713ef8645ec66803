"""Commands of typer that report usage errors in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from nonet.cli.process import print_error_as_json


class PlainCommand(TyperCommand):
    """A command whose usage errors omit pydantic's prefix."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """See `typer.core.TyperCommand`."""
        with _plain_words():
            return super().make_context(*args, **options)


class PlainGroup(TyperGroup):
    """A group whose commands report usage errors without pydantic's prefix."""

    def invoke(self, ctx: Any) -> Any:
        """See `typer.core.TyperGroup`."""
        with _plain_words():
            return super().invoke(ctx)


@contextmanager
def _plain_words() -> Iterator[None]:
    """Remove the prefix that pydantic, with which typer checks choices, puts before a message."""
    try:
        yield
    except TyperException as error:
        error.message = error.message.removeprefix("Value error, ")
        print_error_as_json(type(error).__name__, error.format_message(), error.exit_code)
        raise
