"""Parse and format amounts of memory, such as 512MiB."""

from __future__ import annotations

import re

from nonet.base import late_pydantic as pydantic

# The JSON Schema of the configuration has the same pattern.
AMOUNT = r"[0-9]{1,18}(\.[0-9]{1,18})? ?([kMGT]B|[KMGT]iB|B)?"
_MOST = 2**60  # more than any machine has; a sum of several still fits in 64 bits


def parse_bytes(amount: int | str) -> int:
    """Return an amount of memory in bytes.

    Args:
        amount: bytes, or a number with a unit: B, kB, MB, GB, TB (powers of 1000), KiB, MiB,
            GiB, TiB (powers of 1024).

    Raises:
        ValueError: `amount` has another form, or is out of range.

    >>> parse_bytes("512MiB"), parse_bytes("1.5 GB"), parse_bytes(4096)
    (536870912, 1500000000, 4096)
    """
    found: object = amount
    # Pydantic ignores text after the part that it understands: it reads "1,5GiB" as 1 byte.
    if isinstance(amount, str) and re.fullmatch(AMOUNT, amount.strip(" ")):
        found = int(pydantic.TypeAdapter(pydantic.ByteSize).validate_python(amount))
    if type(found) is not int:  # a bool is an int, too
        raise ValueError(
            f"{amount!r:.40} is not an amount of memory: write bytes, or a number with a unit "
            "(kB, MB, GB, TB, KiB, MiB, GiB or TiB)"
        )
    if not 0 <= found <= _MOST:
        raise ValueError(f"{amount!r:.40} is out of range: write 0 to {_MOST} bytes")
    return found


def format_bytes(amount: int) -> str:
    """Return `amount` in the largest binary unit that fits.

    >>> format_bytes(536870912), format_bytes(1_600_000_000), format_bytes(12)
    ('512 MiB', '1.5 GiB', '12 B')
    """
    return pydantic.ByteSize(amount).human_readable(separator=" ").replace(".0 ", " ")
