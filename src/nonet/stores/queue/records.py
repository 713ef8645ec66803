"""Read the records of tasks. Only scripts read and write them: see ``lib/records.lua``."""

from __future__ import annotations

from collections.abc import Sequence

from nonet.stores.connection.redis import Scripts

Record = dict[str, bytes]
# Envelopes may be as long as NONET_MESSAGE_LIMIT.
_AT_A_TIME, _WITH_ENVELOPES = 500, 20


async def read_records(
    scripts: Scripts, ids: Sequence[str], *, envelope_bytes: int = 0
) -> list[Record]:
    """Return the record of each task by the names of its fields; empty without one.

    Args:
        envelope_bytes: so much of each envelope is among the fields, as ``envelope``.
    """
    found: list[Record] = []
    step = _WITH_ENVELOPES if envelope_bytes else _AT_A_TIME
    for start in range(0, len(ids), step):
        some = ids[start : start + step]
        found += map(as_record, await scripts.run("show_records", envelope_bytes, *some))
    return found


def as_record(flat: Sequence[bytes]) -> Record:
    """Return the fields of a flat list of names and values."""
    return dict(zip((name.decode() for name in flat[::2]), flat[1::2], strict=True))


def in_text(record: Record) -> dict[str, str]:
    """Return the fields as text. Other programs, and cut lines, leave bytes that are no UTF-8."""
    return {name: value.decode(errors="replace") for name, value in record.items()}
