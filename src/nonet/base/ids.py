"""Ids of tasks: random, short, and cheap to make."""

from __future__ import annotations

import os

# 32 characters, so that each says 5 bits of a random byte: 100 bits in all. Nobody can guess one,
# and two of 10^12 are the same with a probability of 10^-7.
_ALPHABET = b"abcdefghijkmnpqrstuvwxyz23456789"
_TABLE = bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in range(256))
LENGTH = 20
_AT_A_TIME = 256

_made: list[str] = []


def new_id() -> str:
    """An id that nothing has had before: 20 lower-case letters and digits, from `os.urandom`.

    >>> len(new_id()), new_id() == new_id()
    (20, False)
    """
    try:
        return _made.pop()  # atomic: threads share the list
    except IndexError:
        text = os.urandom(LENGTH * _AT_A_TIME).translate(_TABLE).decode()
        first, *others = (text[at : at + LENGTH] for at in range(0, len(text), LENGTH))
        _made.extend(others)
        return first


def id_of(data: bytes) -> str:
    """The id that is made of given bytes, at least 20 of them, instead of random ones.

    >>> id_of(bytes(20))
    'aaaaaaaaaaaaaaaaaaaa'
    """
    return data[:LENGTH].translate(_TABLE).decode()


# A child would make the ids that its parent makes, too.
os.register_at_fork(after_in_child=_made.clear)
