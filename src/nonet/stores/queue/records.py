"""What a record keeps in few bytes: the envelope of a small task."""

from __future__ import annotations

from collections.abc import Sequence

from nonet.stores.connection.redis import AsyncRedis


async def read_envelopes(client: AsyncRedis, prefix: str, ids: Sequence[str]) -> list[bytes | None]:
    """The envelopes of live tasks; None where there is none.

    Args:
        prefix: of all keys of the namespace.
    """
    async with client.pipeline(transaction=False) as pipe:
        pipe.mget([f"{prefix}b:{id}" for id in ids])
        for id in ids:
            pipe.hmget(f"{prefix}t:{id}", "name", "b")
        apart, *records = await pipe.execute()
    return [
        whole_envelope(id, name or b"", kept) if kept else other
        for id, other, (name, kept) in zip(ids, apart, records, strict=True)
    ]


def whole_envelope(id: str, name: bytes, kept: bytes) -> bytes:
    """The envelope as the record of a task keeps it, see `kept_envelope` in ``lib/record.lua``."""
    mark, head = kept[0], _head(id.encode(), name)
    if mark == ord("+"):
        return kept[1:]
    if mark >= ord("A"):
        return b"\x99\x01" + head + kept[1:] + b"\xa0" * (mark - ord("A"))
    return kept[1:3] + head + kept[3:] + b"\xa0" * (mark - ord("0"))


def _head(id: bytes, name: bytes) -> bytes:
    """The id and the name as they stand in an envelope; longer ones were not left out."""
    if max(len(id), len(name)) > 255:
        return b""
    return _packed(id) + _packed(name)


def _packed(text: bytes) -> bytes:
    """As MessagePack writes a string that is not long."""
    return (bytes((160 + len(text),)) if len(text) < 32 else bytes((217, len(text)))) + text
