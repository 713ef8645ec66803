"""Reads that viewers share."""

from __future__ import annotations

import asyncio

import pytest

from nonet.web import shared as shared_module
from nonet.web.shared import Shared


class Source:
    """Counts its reads."""

    def __init__(self) -> None:
        self.reads = 0
        self.error: Exception | None = None

    async def read(self) -> int:
        """Return the number of this read."""
        self.reads += 1
        number = self.reads
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return number


async def test_viewers_share_a_read_while_it_is_fresh() -> None:
    """Simultaneous callers wait for one read; later ones get it until it is too old for them."""
    shared, source = Shared(), Source()
    assert await asyncio.gather(*(shared.read("a", 60.0, source.read) for _ in range(9))) == [1] * 9
    assert await shared.read("a", 60.0, source.read) == 1
    assert await shared.read("a", 0.0, source.read) == 2
    shared.forget()
    assert await shared.read("a", 60.0, source.read) == 3


async def test_failures_are_not_kept_and_values_not_hoarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next caller reads again after a failure; of many keys, or of old ones, the oldest go."""
    monkeypatch.setattr(shared_module, "_MOST", 3)
    shared, source = Shared(), Source()
    source.error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        await shared.read("a", 60.0, source.read)
    source.error = None
    assert await shared.read("a", 60.0, source.read) == 2
    for key in "bcd":
        await shared.read(key, 60.0, source.read)
    assert await shared.read("d", 60.0, source.read) == 5
    assert await shared.read("a", 60.0, source.read) == 6
    monkeypatch.setattr(shared_module, "_KEPT_SECONDS", -1.0)  # each is old when the next is read
    assert await shared.read("e", 60.0, source.read) == 7
    assert await shared.read("a", 60.0, source.read) == 8
