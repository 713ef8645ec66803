"""Amounts of memory: as people write them, and as they read them."""

from __future__ import annotations

import re
from decimal import Decimal

UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_BINARY = ("GiB", "MiB", "KiB")
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([A-Za-z]{0,9})", re.ASCII)
_MOST = 2**60  # far beyond any machine, and any sum of a few is a 64-bit number


def parse_bytes(amount: int | str) -> int:
    """An amount of memory in bytes.

    Args:
        amount: bytes, or a number with a unit: B, kB, MB, GB (powers of 1000), KiB, MiB, GiB
            (powers of 1024).

    Raises:
        ValueError: it is none; the message begins with the amount and names the nearest unit.

    >>> parse_bytes("512MiB"), parse_bytes("1.5 GB"), parse_bytes(4096)
    (536870912, 1500000000, 4096)
    """
    if isinstance(amount, bool) or not isinstance(amount, int | str):
        raise ValueError(_refusal(amount))
    found = _whole(amount) if isinstance(amount, str) else amount
    if not 0 <= found <= _MOST:
        raise ValueError(f"{amount!r:.40} is no amount of memory: expected 0 to {_MOST} bytes")
    return found


def format_bytes(amount: int) -> str:
    """`amount` for people, in the largest unit of which it has at least one.

    >>> format_bytes(536870912), format_bytes(1_600_000_000), format_bytes(12)
    ('512 MiB', '1.5 GiB', '12 B')
    """
    for unit in _BINARY:
        if amount >= UNITS[unit]:
            return f"{amount / UNITS[unit]:.1f}".removesuffix(".0") + f" {unit}"
    return f"{amount} B"


def _whole(text: str) -> int:
    found = _AMOUNT.fullmatch(text.strip(" "))
    if found is None:
        raise ValueError(_refusal(text))
    number, unit = found.groups()
    if (unit or "B") not in UNITS:
        raise ValueError(f"{text!r:.40} has an unknown unit: write {_near(unit)}")
    size = Decimal(number) * UNITS[unit or "B"]
    return int(size)


def _refusal(amount: object) -> str:
    return (
        f"{amount!r:.40} is no amount of memory: write bytes, or a number with one of the units "
        + ", ".join(UNITS)
    )


def _near(unit: str) -> str:
    """The units that somebody who wrote `unit` may mean.

    >>> _near("Gb"), _near("gib")
    ('GB or GiB', 'GiB')
    """
    low = unit.lower()
    same = [known for known in UNITS if low in (known.lower(), known.lower().replace("i", ""))]
    begin = [known for known in UNITS if known[0].lower() == low[0]]
    return " or ".join(same or begin or UNITS)
