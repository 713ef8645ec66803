"""What both kinds of databases share here: a file of lines for each, in place of tables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from contextvars import ContextVar
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Self


class Base:
    """A database that is used inside of a context for the process and one for each attempt."""

    group: ClassVar[str]
    variable: ClassVar[str]

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._is_open = False
        self._lines: ContextVar[list[str] | None] = ContextVar("lines", default=None)

    @classmethod
    def available_implementations(cls, name: str) -> list[Any]:
        """The extension first."""
        return [entry.load() for entry in sorted(entry_points(group=cls.group, name=name))]

    @classmethod
    def available_urls(cls) -> dict[str, str]:
        names = {entry.name for entry in entry_points(group=cls.group)}
        variables = {name: f"{cls.variable}_{name.upper()}" for name in names}
        return {name: os.environ[var] for name, var in variables.items() if var in os.environ}

    @contextlib.asynccontextmanager
    async def lifetime(self) -> AsyncIterator[None]:
        assert not self._is_open
        self._is_open = True
        yield
        self._is_open = False

    async def __aenter__(self) -> Self:
        assert self._is_open and self._lines.get() is None, "cannot be nested"
        self._lines.set([])
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        lines = self._lines.get()
        assert lines is not None
        self._lines.set(None)
        if kind is None:
            with self._path.open("a") as file:
                file.writelines(f"{line}\n" for line in lines)

    def insert(self, line: str) -> int:
        """Write a line when the context ends well; how many it has written until now."""
        lines = self._lines.get()
        assert lines is not None, "used before entering"
        lines.append(line)
        return len(lines)
