"""Shrink a PNG, without a library, so that this example needs none; use Pillow for real ones.

It reads pictures with 8 bits a channel, grey or in colour, with or without transparency, that are
not interlaced: what most programs write.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by colour type
_MOST_BYTES = 100_000_000


class NotAPicture(ValueError):
    """These bytes are not a PNG that this module reads."""


@dataclass(frozen=True)
class Picture:
    """Rows of pixels, each `channels` bytes."""

    width: int
    colour: int
    rows: list[bytes]

    @property
    def channels(self) -> int:
        """Bytes per pixel."""
        return _CHANNELS[self.colour]


def shrink(png: bytes, side: int) -> bytes:
    """Return a PNG that is at most `side` pixels wide and high; a smaller one stays as it is.

    Raises:
        NotAPicture: `png` cannot be read.
    """
    picture = read(png)
    step = max(1, -(-max(picture.width, len(picture.rows)) // side))  # rounded up
    return write(_averaged(picture, step)) if step > 1 else png


def read(png: bytes) -> Picture:
    """Decode a PNG.

    Raises:
        NotAPicture: it cannot be read.
    """
    try:
        chunks = _chunks(png)
        head = next(data for kind, data in chunks if kind == b"IHDR")
        width, height, bits, colour, *_, interlaced = struct.unpack(">IIBBBBB", head)
        if bits != 8 or colour not in _CHANNELS or interlaced or not width or not height:
            raise NotAPicture("only 8 bits a channel, no palette, not interlaced")
        line = width * _CHANNELS[colour]
        if height * (line + 1) > _MOST_BYTES:
            raise NotAPicture(f"{width} x {height} pixels are too many")
        packed = b"".join(data for kind, data in chunks if kind == b"IDAT")
        raw = zlib.decompressobj().decompress(packed, height * (line + 1))
        if len(raw) < height * (line + 1):
            raise NotAPicture("it is cut off")
    except (StopIteration, struct.error, zlib.error) as error:
        raise NotAPicture(str(error) or "no header") from None
    return Picture(width, colour, _unfiltered(raw, line, _CHANNELS[colour]))


def write(picture: Picture) -> bytes:
    """Encode a PNG."""
    head = struct.pack(">IIBBBBB", picture.width, len(picture.rows), 8, picture.colour, 0, 0, 0)
    packed = zlib.compress(b"".join(b"\0" + row for row in picture.rows))
    return _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def _averaged(picture: Picture, step: int) -> Picture:
    """Each pixel of the result is the mean of a square of `step` pixels."""
    channels = picture.channels
    rows: list[bytes] = []
    for top in range(0, len(picture.rows), step):
        square = picture.rows[top : top + step]
        row = bytearray()
        for left in range(0, picture.width, step):
            parts = [line[left * channels : (left + step) * channels] for line in square]
            for channel in range(channels):
                values = [value for part in parts for value in part[channel::channels]]
                row.append(sum(values) // len(values))
        rows.append(bytes(row))
    return Picture(len(rows[0]) // channels, picture.colour, rows)


def _chunks(png: bytes) -> list[tuple[bytes, bytes]]:
    if not png.startswith(_SIGNATURE):
        raise NotAPicture("it is no PNG")
    found: list[tuple[bytes, bytes]] = []
    at = len(_SIGNATURE)
    while at + 8 <= len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        found.append((kind, png[at + 8 : at + 8 + size]))
        at += size + 12
    return found


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _unfiltered(raw: bytes, line: int, channels: int) -> list[bytes]:
    """Undo the five filters of PNG, which store differences to the left and upper pixels."""
    rows: list[bytes] = []
    above = bytearray(line)
    for start in range(0, len(raw), line + 1):
        kind, row = raw[start], bytearray(raw[start + 1 : start + 1 + line])
        for at in range(line):
            left = row[at - channels] if at >= channels else 0
            corner = above[at - channels] if at >= channels else 0
            if kind == 1:
                change = left
            elif kind == 2:
                change = above[at]
            elif kind == 3:
                change = (left + above[at]) // 2
            else:
                change = _paeth(left, above[at], corner) if kind == 4 else 0
            row[at] = (row[at] + change) & 255
        rows.append(bytes(row))
        above = row
    return rows


def _paeth(left: int, up: int, corner: int) -> int:
    """Whichever of the three is next to ``left + up - corner``, as the standard says."""
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))
