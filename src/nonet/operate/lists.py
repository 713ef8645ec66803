"""What the lists of all nouns have in common: queries, pages and cursors."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Annotated, Any, Generic, Protocol, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from nonet.base.durations import duration, moment
from nonet.base.plain import few
from nonet.rules.figures import LONGEST


def _is_moment(text: str) -> str:
    if text:
        moment(text)
    return text


PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
"""A text that Redis, SQL and terminals can hold. Pydantic itself refuses lone surrogates."""

Text = Annotated[str, StringConstraints(max_length=1000, pattern=PRINTABLE)]
"""A short text; as a filter, empty: any."""
Age = Annotated[str, StringConstraints(max_length=40), AfterValidator(_is_moment)]
"""A filter by a time: ``30d`` ago, or an instant. It stays a text, so that queries are equal."""

_LEAST = timedelta(minutes=1)


def _is_recent(since: str) -> str:
    if not _LEAST <= duration(since) <= LONGEST:
        raise ValueError(f"{since!r} is not between 1m and 14d")
    return since


Recent = Annotated[
    str,
    AfterValidator(_is_recent),
    Field(max_length=40, description="Count the past of this long until now: `1m` to `14d`."),
]
"""How far back figures are counted."""

MOST_LINES = 10_000
"""How many lines the file of a list has, unless `limit` asks for fewer."""

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")
_Found_co = TypeVar("_Found_co", covariant=True)


class Selection(BaseModel):
    """What a list is asked for: options of the command, parameters of the route and the page."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, values: Any) -> Any:
        """Leave out the empty fields of a form: they were not filled in."""
        if not isinstance(values, Mapping):
            return values
        lists = {name: list(filter(None, v)) for name, v in values.items() if isinstance(v, list)}
        given = {**values, **lists}
        return {name: value for name, value in given.items() if value not in ("", [])}

    @property
    def chosen(self) -> str:
        """The filters in words, because they may contain a typo; empty: there are none."""
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude={"limit", "cursor"})
        words = ", ".join(
            f"{name} {few(value) if isinstance(value, list) else value}"
            for name, value in fields.items()
        )
        return f" with {words}" if words else ""


class ListQuery(Selection):
    """The query of a list that has pages."""

    limit: int = Field(default=100, ge=1, le=1000, description="Show at most this many.")
    cursor: str = Field(
        default="",
        max_length=4000,
        pattern=r"^[\w-]*$",
        description="`cursor` of the page before; leave it out for the first page.",
    )


@dataclass(frozen=True, slots=True)
class Page(Generic[_Item]):
    """A part of a list.

    Attributes:
        items: in the order of the list.
        cursor: send it to get what follows; null at the end of the list.
    """

    items: Sequence[_Item]
    cursor: str | None = None


def view_of(view: type[_Item], source: object, **others: object) -> _Item:
    """Make a view of a value with attributes of the same names.

    Args:
        others: the fields that `source` lacks.
    """
    names = [field.name for field in fields(view)]  # type: ignore[arg-type]
    return view(**{n: others[n] if n in others else getattr(source, n) for n in names})


@dataclass(frozen=True, slots=True)
class Searched(Page[_Item]):
    """A part of a list that is searched.

    Attributes:
        matched: how many items match, as far as they were examined.
        searched: how many were examined.
        total: how many there are where this list searches.
    """

    matched: int = 0
    searched: int = 0
    total: int = 0

    @property
    def counted(self) -> str:
        """How many match, and how many were examined; empty if the page shows all.

        >>> Searched(["a"], "b", matched=20_000, searched=5_000, total=20_000).counted
        '1 of 20,000 tasks'
        >>> Searched(["a"], "b", matched=1, searched=5_000, total=1_000_000).counted
        'found 1 among 5,000 of 1,000,000 tasks'
        """
        shown = f"{len(self.items):,}"
        if self.matched > len(self.items):
            shown += f" of {self.matched:,}"
        # Without a cursor all were searched, and some have come or gone meanwhile.
        if self.cursor and self.matched < self.total > self.searched:
            return f"found {shown} among {self.searched:,} of {self.total:,} tasks"
        return f"{shown} tasks" if self.matched > len(self.items) else ""


class _Found(Protocol[_Found_co]):
    """A page of a store."""

    @property
    def rows(self) -> Sequence[_Found_co]: ...
    @property
    def matched(self) -> int: ...
    @property
    def searched(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def cursor(self) -> str: ...


def searched(found: _Found[_Item]) -> Searched[_Item]:
    """Return a page of a store as callers get it."""
    return Searched(found.rows, sealed(found.cursor), found.matched, found.searched, found.total)


def cut(found: Sequence[_Item], query: ListQuery) -> Page[_Item]:
    """Return a page of a short list that is read as a whole, in a steady order."""
    start = number_in(query.cursor)
    return part(found[start : start + query.limit], start, len(found))


def part(items: Sequence[_Item], start: int, total: int) -> Page[_Item]:
    """Return a page of a list with `total` items, of which these begin at number `start`."""
    end = start + len(items)
    return Page(items, sealed(str(end) if end < total else ""))


def number_in(cursor: str) -> int:
    """Return the number that a sealed cursor contains; 0 for the first page.

    Raises:
        ValueError: it is the cursor of another list.
    """
    text = opened(cursor)
    if not re.fullmatch(r"\d{0,18}", text, re.ASCII):
        raise ValueError("cursor: it belongs to another list; leave it out to begin anew")
    return int(text or 0)


def sealed(cursor: str) -> str | None:
    """Return the cursor of a store as callers get it, which tells them nothing of the store."""
    if not cursor:
        return None
    data = _checksum(cursor) + cursor.encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def opened(cursor: str) -> str:
    """Undo `sealed`.

    Raises:
        ValueError: the cursor is not one of `sealed`.
    """
    if not cursor:
        return ""
    with suppress(ValueError):
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        text = data[4:].decode()
        if data[:4] == _checksum(text):  # a made-up cursor would confuse a store
            return text
    raise ValueError("cursor: it is not the cursor of a page; leave it out to begin anew")


def _checksum(cursor: str) -> bytes:
    return zlib.crc32(cursor.encode()).to_bytes(4)


class Remember(Protocol):
    """Returns a value that may be some seconds old; see `nonet.web.shared.Shared.read`."""

    async def __call__(
        self, key: Hashable, seconds: float, source: Callable[[], Awaitable[_Value]]
    ) -> _Value:
        """Return what `source` read at most `seconds` ago."""


async def always(key: Hashable, seconds: float, source: Callable[[], Awaitable[_Value]]) -> _Value:
    """Read anew each time: the `Remember` of callers that read once."""
    return await source()
