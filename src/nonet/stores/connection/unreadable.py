"""Parse entries that another program may have damaged; skip those that cannot be read.

One damaged entry must not hide the others, so stores parse lists with these functions. A process
warns once for each kind of key; ``task-run doctor`` collects and names all entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from nonet.base.errors import MalformedMessageError

logger = logging.getLogger(__name__)

_R = TypeVar("_R")


class Unreadable(NamedTuple):
    """An entry that was skipped.

    Attributes:
        key: its key, without the prefix of the namespace.
        entry: its field, member or id; for a whole key, the name of the key.
        verb: the command that removes it: ``HDEL``, ``XDEL``, ``ZREM``, ``SREM`` or, for the
            whole key, ``DEL``; ``DISCARD`` for a dead letter; empty: newer entries displace it;
            ``BINARY``: its name cannot be typed.
        why: class of the error. Its text could quote data that the reader must not see.
    """

    key: str
    entry: str
    verb: str
    why: str


_collected: ContextVar[set[Unreadable] | None] = ContextVar("unreadable", default=None)
_warned: set[str] = set()


@contextmanager
def collecting() -> Iterator[set[Unreadable]]:
    """Collect the entries that are skipped in the block, instead of warning."""
    found = set[Unreadable]()
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def readable(
    key: str, verb: str, entries: Iterable[tuple[Any, ...]], parse: Callable[..., _R]
) -> list[_R]:
    """Parse entries; skip those that cannot be parsed.

    Args:
        key, verb: see `Unreadable`.
        entries: the arguments of `parse` for each entry; the first identifies it.
        parse: does no I/O, so that every exception is the fault of the entry.

    >>> with collecting() as skipped:
    ...     numbers = readable("k", "ZREM", [(b"7",), (b"x",)], int)
    >>> numbers, [(item.entry, item.why) for item in skipped]
    ([7], [('x', 'ValueError')])
    """
    found = list[_R]()
    for entry in entries:
        try:
            found.append(parse(*entry))
        except Exception as error:
            _skip(_named(key, verb, entry[0], type(error).__name__))
    return found


def readable_hash(
    key: str, found: Mapping[bytes, bytes], parse: Callable[[str], _R]
) -> dict[str, _R]:
    """Parse the values of a hash; skip the fields that cannot be parsed."""
    return dict(
        readable(
            key, "HDEL", found.items(), lambda name, value: (name.decode(), parse(value.decode()))
        )
    )


def readable_value(
    key: str, verb: str, entry: str | bytes, parse: Callable[[], _R], otherwise: _R
) -> _R:
    """Parse one entry; return `otherwise` if that fails."""
    found = readable(key, verb, [(entry,)], lambda _: parse())
    return found[0] if found else otherwise


def whole(text: str | bytes) -> int:
    """Parse a whole number that Redis can count with: 64 bits.

    >>> whole(b"-7")
    -7
    >>> whole("9" * 400)
    Traceback (most recent call last):
    ValueError: a number of more than 64 bits
    """
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError("a number of more than 64 bits")
    return number


def sound(key: str, parse: Callable[[], _R]) -> _R:
    """Parse a single value that was asked for; unlike an entry of a list it cannot be skipped.

    Raises:
        MalformedMessageError: it cannot be parsed.

    >>> sound("g:a", lambda: int("x"))
    Traceback (most recent call last):
    nonet.base.errors.MalformedMessageError: key g:a is malformed: 'task-run doctor' names it
    """
    try:
        return parse()
    except Exception as error:
        problem = f"key {key} is malformed: 'task-run doctor' names it"
        raise MalformedMessageError(problem) from error


def _skip(entry: Unreadable) -> None:
    collected = _collected.get()
    if collected is not None:
        collected.add(entry)
    elif (kind := entry.key.partition(":")[0]) not in _warned:
        _warned.add(kind)
        logger.warning(
            "skipped what cannot be read, see 'task-run doctor': key=%s entry=%.100s error=%s",
            entry.key,
            entry.entry,
            entry.why,
        )


def _named(key: str, verb: str, entry: str | bytes, why: str) -> Unreadable:
    if isinstance(entry, bytes):
        name = entry.decode(errors="backslashreplace")
        return Unreadable(key, name, verb if name.encode() == entry else verb and "BINARY", why)
    return Unreadable(key, entry, verb, why)
