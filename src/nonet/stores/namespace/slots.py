"""Read what workers and the leader have counted by slots of time: see `nonet.rules.figures`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import msgspec

from nonet.rules.figures import RESOLUTIONS, resolution_for
from nonet.rules.vectors import merged
from nonet.stores.connection.clock import correction, instant, logical_now
from nonet.stores.connection.redis import AsyncRedis
from nonet.stores.connection.unreadable import readable

_FLAT = msgspec.msgpack.Decoder(list[int])
_MINUTE, _HOUR = (resolution.slot for resolution in RESOLUTIONS)
_MINUTES = RESOLUTIONS[0].kept // _MINUTE

Vectors = dict[str, dict[datetime, dict[int, int]]]
# By number of the slot instead of its start.
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
        before: those of the hours that overlap this period a day earlier, if asked for.
        first: begin of the first slot, or of the data of Redis if that is later.
        now: end of the period.
        seconds: length of a slot.
    """

    vectors: Vectors
    before: Vectors
    first: datetime
    now: datetime
    seconds: int


async def read_slots(
    client: AsyncRedis,
    prefix: str,
    kind: Kind,
    since: timedelta,
    name: str | None = None,
    *,
    compares: bool = False,
) -> Slots:
    """Read the slots of a period that ends now.

    Args:
        since: how far to look back, as far as figures are kept.
        name: read only those of this class, tenant or stream; None: of all.
        compares: read the day before, too.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    resolution = resolution_for(since)
    slot, span = resolution.slot, min(since.total_seconds(), resolution.kept)
    set_by = await correction(client, prefix)
    now = await logical_now(client, prefix)
    reader = _Reader(client, prefix, kind, name, int(now.timestamp()) // _MINUTE)
    last = int(now.timestamp()) // slot
    number = last - int(span) // slot
    hours = range(number * slot // _HOUR - 24, last * slot // _HOUR - 23)
    if slot == _HOUR and compares:  # the two periods overlap
        found = before = await reader.read(range(hours[0], last + 1), slot)
    else:
        found = await reader.read(range(number, last + 1), slot)
        before = await reader.read(hours, _HOUR) if compares else {}

    def by_start(numbered: _Numbered, numbers: range, slot: int) -> Vectors:
        return {
            one: {
                instant(at * slot * 1_000_000) - set_by: slots[at] for at in slots if at in numbers
            }
            for one, slots in numbered.items()
        }

    began = await client.hget(f"{prefix}epoch", "since")
    first = number * slot * 1_000_000
    if began and began.isdigit():
        first = min(max(first, int(began)), int(now.timestamp() * 1_000_000))
    own, earlier = by_start(found, range(number, last + 1), slot), by_start(before, hours, _HOUR)
    return Slots(own, earlier, instant(first) - set_by, now - set_by, slot)


class _Reader(NamedTuple):
    """Reads slots by their numbers.

    Attributes:
        name: only of this; None: of all.
        minute: the number of this minute.
    """

    client: AsyncRedis
    prefix: str
    kind: Kind
    name: str | None
    minute: int

    async def read(self, numbers: range, slot: int) -> _Numbered:
        """Read what the leader has added, and the minutes since then.

        A minute may be added meanwhile, but each item says which minute was the last.
        """
        kind, prefix, one_minute = self.kind, self.prefix, slot // _MINUTE
        added = await self.client.hget(f"{prefix}figures:added", kind)
        members = [(self.name or "").encode()]
        if self.name is None:
            members = await self.client.zrange(f"{prefix}{kind}hours", 0, -1)
            if slot == _MINUTE and len(members) > len(numbers):  # this takes fewer commands
                return await self._reported(numbers)
        names = [member.decode(errors="replace") for member in members]
        found, newest = await self._lists(names, numbers, one_minute)
        first = 1 + (int(added) if added and added.isdigit() else 0)
        first = max(first, self.minute - _MINUTES, numbers[0] * one_minute)
        last = min(self.minute, numbers[-1] * one_minute + one_minute - 1)
        for name, minutes in (await self._reported(range(first, last + 1))).items():
            for number, vector in minutes.items():
                if number > newest.get(name, 0):
                    _add(found.setdefault(name, {}), number // one_minute, vector)
        return found

    async def _lists(
        self, names: Sequence[str], numbers: range, size: int
    ) -> tuple[_Numbered, dict[str, int]]:
        """Read the lists of names; return also the last minute that is in each.

        Args:
            size: minutes of a slot.
        """
        key, most = f"{self.kind}{'hours' if size > 1 else 'minutes'}:", self.minute // size
        async with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.lrange(f"{self.prefix}{key}{name}", numbers[0] - most - 1, -1)
            lists = await pipe.execute()
        found: _Numbered = {}
        newest: dict[str, int] = {}
        for name, items in zip(names, lists, strict=True):
            for last, vector in readable(f"{key}{name}", "", zip(items), _item):
                newest[name] = max(last, newest.get(name, 0))
                if last // size in numbers:
                    _add(found.setdefault(name, {}), last // size, vector)
        return found, newest

    async def _reported(self, minutes: Sequence[int]) -> _Numbered:
        """Read what workers have reported in some minutes."""
        name, key = self.name, f"{self.kind}{_MINUTE}:"
        async with self.client.pipeline(transaction=False) as pipe:
            for number in minutes:
                at = f"{self.prefix}{key}{number}"
                pipe.hgetall(at) if name is None else pipe.hmget(at, name)
            slots = await pipe.execute()
        found: _Numbered = {}
        for number, those in zip(minutes, slots, strict=True):
            fields = those if name is None else {name.encode(): those[0]} if those[0] else {}
            for one, vector in vectors_of(f"{key}{number}", fields).items():
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
