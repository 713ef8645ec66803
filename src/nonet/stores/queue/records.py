"""Read the envelopes of live tasks, wherever their release has stored them."""

from __future__ import annotations

from collections.abc import Sequence

from nonet.stores.connection.redis import AsyncRedis


async def read_envelopes(client: AsyncRedis, prefix: str, ids: Sequence[str]) -> list[bytes | None]:
    """Read the envelopes of live tasks; None for a task that has none.

    Args:
        prefix: of all keys of the namespace.
    """
    found = dict(zip(ids, await client.mget([f"{prefix}b:{id}" for id in ids]), strict=True))
    if missing := [id for id, envelope in found.items() if envelope is None]:
        async with client.pipeline(transaction=False) as pipe:
            for id in missing:
                pipe.hmget(f"{prefix}t:{id}", "name", "b")
            records = await pipe.execute()
        for id, (name, kept) in zip(missing, records, strict=True):
            found[id] = whole_envelope(id, name or b"", kept) if kept else None
    return [found[id] for id in ids]


def whole_envelope(id: str, name: bytes, kept: bytes) -> bytes:
    """Restore an envelope that a release before 0.1.0 shortened to keep it in a record.

    ``envelope_of`` in ``lib/record.lua`` describes the layout, and when both may be removed.
    """
    mark = kept[0]
    if mark == ord("+"):
        return kept[1:]
    head = _packed(id.encode()) + _packed(name) if max(len(id), len(name)) < 256 else b""
    if mark >= ord("A"):
        return b"\x99\x01" + head + kept[1:] + b"\xa0" * (mark - ord("A"))
    return kept[1:3] + head + kept[3:] + b"\xa0" * (mark - ord("0"))


def _packed(text: bytes) -> bytes:
    """Encode a string as MessagePack does."""
    return (bytes((160 + len(text),)) if len(text) < 32 else bytes((217, len(text)))) + text
