"""Ids of tasks: random ones, and ids that only Nonet makes."""

from __future__ import annotations

import os
import re

# An id has 20 of these 32 characters, that is 100 bits: too many to guess. The probability that two
# of 10^12 ids are equal is below 10^-6.
_ALPHABET = b"abcdefghijkmnpqrstuvwxyz23456789"
_TABLE = bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in range(256))
LENGTH = 20
_AT_A_TIME = 256

# Ids that Nonet derives: of occurrences, quarantined messages, requests with a key and other
# repeats; of children of groups; of steps of workflows and rows of pipelines. A known id is the
# same task, so a caller who used such an id first would suppress Nonet's own task.
_RESERVED = re.compile(
    r"(?:p-[0-9a-f]{32}|q-\d+-\d+|(?:key|dlq|again|copy)-[a-z2-9]{20}"
    r"|[0-9a-f]{32}[.:].*|row:.*)\Z"
)

_made: list[str] = []


def new_id() -> str:
    """Return a new id: 20 lower-case letters and digits, from `os.urandom`.

    >>> len(new_id()), new_id() == new_id()
    (20, False)
    """
    try:
        return _made.pop()  # one atomic call, because threads share the list
    except IndexError:
        text = os.urandom(LENGTH * _AT_A_TIME).translate(_TABLE).decode()
        first, *others = (text[at : at + LENGTH] for at in range(0, len(text), LENGTH))
        _made.extend(others)
        return first


def id_of(data: bytes) -> str:
    """Return the id for given bytes (at least 20) instead of random ones.

    >>> id_of(bytes(20))
    'aaaaaaaaaaaaaaaaaaaa'
    """
    return data[:LENGTH].translate(_TABLE).decode()


def reserved_problem(id: str) -> str:
    """Return why a caller may not choose an id that looks like Nonet's own; else empty.

    >>> reserved_problem("copy-7"), reserved_problem("q-1767225600000-0")[:33]
    ('', "id 'q-1767225600000-0' looks like")
    """
    if _RESERVED.match(id) is None:
        return ""
    return (
        f"id {id!r} looks like an id of Nonet's own, of an occurrence (p-…), a repeat (key-…), a "
        "child of a group or a step: choose another"
    )


# Without this, a forked child would return the same ids as its parent.
os.register_at_fork(after_in_child=_made.clear)
