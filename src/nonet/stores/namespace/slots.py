"""Read what workers have counted by slots of time: see `nonet.rules.figures`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from nonet.rules.figures import resolution_for
from nonet.stores.connection.clock import correction, instant, logical_now
from nonet.stores.connection.redis import AsyncRedis
from nonet.stores.connection.unreadable import readable

_FLAT = msgspec.msgpack.Decoder(list[int])


class Slots(NamedTuple):
    """What was counted in a period.

    Attributes:
        vectors: by name and start of the slot.
        first: begin of the first slot, or of the data of Redis if that is later.
        now: end of the period.
        seconds: length of a slot.
    """

    vectors: dict[str, dict[datetime, dict[int, int]]]
    first: datetime
    now: datetime
    seconds: int


async def read_slots(client: AsyncRedis, prefix: str, key: str, since: timedelta) -> Slots:
    """Read the slots of a period that ends now.

    Args:
        key: the keys are ``KEY:SECONDS:NUMBER``.
        since: how far to look back, as far as figures are kept.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    resolution = resolution_for(since)
    slot, span = resolution.slot, min(since.total_seconds(), resolution.kept)
    set_by = await correction(client, prefix)
    now = await logical_now(client, prefix)
    last = int(now.timestamp()) // slot
    numbers = range(last - int(span) // slot, last + 1)
    async with client.pipeline(transaction=False) as pipe:
        for number in numbers:
            pipe.hgetall(f"{prefix}{key}:{slot}:{number}")
        pipe.hget(f"{prefix}epoch", "since")
        *slots, began = await pipe.execute()
    vectors: dict[str, dict[datetime, dict[int, int]]] = {}
    for number, fields in zip(numbers, slots, strict=True):
        at = instant(number * slot * 1_000_000) - set_by
        for name, vector in vectors_of(f"{key}:{slot}:{number}", fields).items():
            vectors.setdefault(name, {})[at] = vector
    first = numbers[0] * slot * 1_000_000
    if began and began.isdigit():
        first = min(max(first, int(began)), int(now.timestamp() * 1_000_000))
    return Slots(vectors, instant(first) - set_by, now - set_by, slot)


def vectors_of(key: str, fields: Mapping[bytes, bytes]) -> dict[str, dict[int, int]]:
    """Unpack the vectors of a hash by name."""
    return dict(readable(key, "HDEL", fields.items(), _named_vector))


def _named_vector(name: bytes, packed: bytes) -> tuple[str, dict[int, int]]:
    flat = _FLAT.decode(packed)
    return name.decode(errors="replace"), dict(zip(flat[::2], flat[1::2], strict=False))
