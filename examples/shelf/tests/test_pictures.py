"""Reading, shrinking and writing pictures."""

from __future__ import annotations

import struct
import zlib

import pytest
from conftest import png

from shelf.pictures import NotAPicture, Picture, read, shrink, write


def test_a_picture_becomes_as_small_as_wanted() -> None:
    """The longer side counts, and the pixels are means."""
    wide = Picture(4, 2, [bytes([0, 10, 20, 100, 110, 120] * 2), bytes([0, 10, 20] * 4)])
    small = read(shrink(write(wide), 2))
    assert (small.width, len(small.rows)) == (2, 1)
    assert small.rows[0] == bytes([25, 35, 45] * 2)


def test_a_small_picture_stays_as_it_is() -> None:
    """Not even a byte changes."""
    assert shrink(png(8, 1), 8) == png(8, 1)


def _filtered(kind: int, lines: list[bytes]) -> bytes:
    """A grey PNG of three pixels a line, whose lines are stored with a filter."""
    whole = write(Picture(3, 0, [b"\0\0\0"] * len(lines)))
    data = zlib.compress(b"".join(bytes([kind]) + line for line in lines))
    start = whole.index(b"IDAT") - 4
    chunk = struct.pack(">I", len(data)) + b"IDAT" + data
    return whole[:start] + chunk + struct.pack(">I", zlib.crc32(b"IDAT" + data)) + whole[-12:]


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (0, [b"\x01\x02\x03", b"\x04\x05\x06"]),
        (1, [b"\x01\x01\x01", b"\x04\x01\x01"]),
        (2, [b"\x01\x02\x03", b"\x03\x03\x03"]),
        (3, [b"\x01\x02\x02", b"\x04\x02\x02"]),
        (4, [b"\x01\x01\x01", b"\x03\x01\x01"]),
    ],
)
def test_all_filters_are_understood(kind: int, lines: list[bytes]) -> None:
    """The same two lines, in the five ways in which a PNG may store them."""
    assert read(_filtered(kind, lines)).rows == [b"\x01\x02\x03", b"\x04\x05\x06"]


@pytest.mark.parametrize("content", [b"", b"GIF89a", png(9, 1)[:40], png(9, 1)[:-30]])
def test_what_is_no_picture_is_refused(content: bytes) -> None:
    """Other formats, and what is cut off."""
    with pytest.raises(NotAPicture):
        read(content)
