"""Amounts of memory: what is accepted, what it means, and the error for everything else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nonet.base.amounts import format_bytes, parse_bytes

UNITS = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [
        *((0, 0), (4096, 4096), ("4096", 4096), ("12B", 12), ("1kB", 1000), ("1KiB", 1024)),
        *(("2 MB", 2_000_000), ("0.5GB", 500_000_000), ("2TiB", 2 * 2**40), ("1.9B", 1)),
        *((" 512 MiB ", 512 * 2**20), ("1.5GiB", 1536 * 2**20)),
    ],
)
def test_an_amount_is_bytes_or_a_number_with_a_unit(written: int | str, bytes_: int) -> None:
    assert parse_bytes(written) == bytes_


WRONG = ["4Gb", "512mib", "512M", "2g", "1PB", "1MiB/s", "", "MiB", "-1MiB", "1e3", "1,5GiB"]
WRONG += ["1 000", "1  MiB", "0x10", "٣MiB", "9" * 19]


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        *((wrong, f"{wrong!r} is not an amount of memory: write bytes") for wrong in WRONG),
        *((wrong, f"{wrong!r} is not an amount of") for wrong in (True, 1.5, None, b"1", [])),
        (-1, "-1 is out of range: write 0 to"),
        (2**60 + 1, f"{2**60 + 1} is out of range: write 0 to {2**60} bytes"),
        ("999999999999999999GiB", "is out of range: write 0 to"),
    ],
)
def test_anything_else_is_no_amount(written: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_bytes(written)


@given(st.integers(0, 10**6), st.sampled_from(list(UNITS)), st.sampled_from(["", " "]))
def test_a_unit_multiplies(number: int, unit: str, blank: str) -> None:
    assert parse_bytes(f"{number}{blank}{unit}") == number * UNITS[unit]
    assert parse_bytes(f"{number}.50{unit}") == number * UNITS[unit] + UNITS[unit] // 2


@given(st.text())
def test_any_text_is_an_amount_or_refused(text: str) -> None:
    try:
        assert 0 <= parse_bytes(text) <= 2**60
    except ValueError as error:
        assert re.search("not an amount of memory|is out of range", str(error))


@given(st.integers(0, 2**49))
def test_a_formatted_amount_is_right_within_five_percent(amount: int) -> None:
    shown = parse_bytes(format_bytes(amount))
    assert abs(shown - amount) <= amount * 0.05
