"""Read what workers and the leader have counted by slots of time: see `nonet.rules.figures`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import msgspec

from nonet.rules.figures import DAY, RESOLUTIONS, resolution_for
from nonet.rules.vectors import merged
from nonet.stores.connection.clock import correction, instant, logical_now
from nonet.stores.connection.redis import AsyncRedis
from nonet.stores.connection.unreadable import readable

_FLAT = msgspec.msgpack.Decoder(list[int])
_MINUTE, _HOUR = (resolution.slot for resolution in RESOLUTIONS)
_MINUTES = RESOLUTIONS[0].kept // _MINUTE

# Vectors by name and number of the slot.
_Numbered = dict[str, dict[int, dict[int, int]]]


class Kind(StrEnum):
    """What has figures; the value begins its keys."""

    CLASS = "figures:"
    TENANT = "figures:tenants:"
    STREAM = "figures:streams:"


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


async def read_slots(
    client: AsyncRedis, prefix: str, kind: Kind, since: timedelta, name: str | None = None
) -> Slots:
    """Read the slots of a period that ends now.

    Args:
        since: how far to look back, as far as figures are kept.
        name: read only those of this class, tenant or stream; None: of all.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    resolution = resolution_for(since)
    slot, span = resolution.slot, min(since.total_seconds(), resolution.kept)
    set_by = await correction(client, prefix)
    now = await logical_now(client, prefix)
    last = int(now.timestamp()) // slot
    number = last - int(span) // slot
    numbers = range(number, last + 1)
    found = await _numbered(client, prefix, kind, numbers, slot, name, now)
    vectors = {
        name: {instant(at * slot * 1_000_000) - set_by: vector for at, vector in slots.items()}
        for name, slots in found.items()
    }
    began = await client.hget(f"{prefix}epoch", "since")
    first = number * slot * 1_000_000
    if began and began.isdigit():
        first = min(max(first, int(began)), int(now.timestamp() * 1_000_000))
    return Slots(vectors, instant(first) - set_by, now - set_by, slot)


async def read_day_before(
    client: AsyncRedis, prefix: str, kind: Kind, slots: Slots, name: str | None = None
) -> dict[str, dict[datetime, dict[int, int]]]:
    """Read the hours that overlap a period a day earlier, by name; arguments as `read_slots`."""
    first, end = slots.first - DAY, slots.now - DAY
    found = await read_slots(client, prefix, kind, slots.now - first, name)
    hour = timedelta(seconds=_HOUR)
    return {
        name: {at: vector for at, vector in those.items() if first - hour < at < end}
        for name, those in found.vectors.items()
    }


async def _numbered(
    client: AsyncRedis,
    prefix: str,
    kind: Kind,
    numbers: range,
    slot: int,
    name: str | None,
    now: datetime,
) -> _Numbered:
    """Read slots by their numbers: what the leader has added, and the minutes since then.

    A minute may be added meanwhile, but each item says which minute was the last.
    """
    index, minute = f"{kind}hours", int(now.timestamp()) // _MINUTE
    added = await client.hget(f"{prefix}figures:added", kind)
    members = [(name or "").encode()]
    if name is None:
        members = await client.zrange(f"{prefix}{index}", 0, -1)
        if slot == _MINUTE and len(members) > len(numbers):  # this takes fewer commands
            return await _minutes(client, prefix, kind, numbers, name)
    names = [member.decode(errors="replace") for member in members]
    list_of = index if slot == _HOUR else f"{kind}minutes"
    async with client.pipeline(transaction=False) as pipe:
        for one in names:
            pipe.lrange(f"{prefix}{list_of}:{one}", -len(numbers), -1)
        lists = await pipe.execute()
    found: _Numbered = {}
    newest: dict[str, int] = {}
    for one, items in zip(names, lists, strict=True):
        for last, vector in readable(f"{list_of}:{one}", "", zip(items), _item):
            _add(found.setdefault(one, {}), last * _MINUTE // slot, vector)
            newest[one] = max(last, newest.get(one, 0))
    first = 1 + (int(added) if added and added.isdigit() else 0)
    first = max(first, minute - _MINUTES, numbers[0] * slot // _MINUTE)
    left = await _minutes(client, prefix, kind, range(first, minute + 1), name)
    for one, minutes in left.items():
        for number, vector in minutes.items():
            if number > newest.get(one, 0):
                _add(found.setdefault(one, {}), number * _MINUTE // slot, vector)
    return {
        one: slots
        for one, those in found.items()
        if (slots := {at: vector for at, vector in those.items() if at in numbers})
    }


async def _minutes(
    client: AsyncRedis, prefix: str, kind: Kind, numbers: Sequence[int], name: str | None
) -> _Numbered:
    """Read what workers have reported in some minutes."""
    async with client.pipeline(transaction=False) as pipe:
        for number in numbers:
            key = f"{prefix}{kind}{_MINUTE}:{number}"
            pipe.hgetall(key) if name is None else pipe.hmget(key, name)
        slots = await pipe.execute()
    found: _Numbered = {}
    for number, those in zip(numbers, slots, strict=True):
        fields = those if name is None else {name.encode(): those[0]} if those[0] else {}
        for one, vector in vectors_of(f"{kind}{_MINUTE}:{number}", fields).items():
            found.setdefault(one, {})[number] = vector
    return found


def _add(slots: dict[int, dict[int, int]], number: int, vector: dict[int, int]) -> None:
    slots[number] = merged([slots[number], vector]) if number in slots else vector


def vectors_of(key: str, fields: Mapping[bytes, bytes]) -> dict[str, dict[int, int]]:
    """Unpack the vectors of a hash by name."""
    return dict(readable(key, "HDEL", fields.items(), _named_vector))


def _named_vector(name: bytes, packed: bytes) -> tuple[str, dict[int, int]]:
    return name.decode(errors="replace"), _vector(_FLAT.decode(packed))


def _item(packed: bytes) -> tuple[int, dict[int, int]]:
    """Parse an item of a list: the last minute that is in it, and what was counted."""
    last, _, vector = packed.partition(b" ")
    return int(last), _vector(_FLAT.decode(vector))


def _vector(flat: Sequence[int]) -> dict[int, int]:
    return dict(zip(flat[::2], flat[1::2], strict=False))
