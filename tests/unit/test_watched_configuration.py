"""How the scheduler follows a configuration file that somebody edits."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nonet import Nonet
from nonet.limits import Limit, LimitAddress

BEFORE = "common: {limits: {Job: {a: {ConcurrencyLimiter: {limit: 1}}}}}\n"
WHOLE = BEFORE.replace("1", "2")


async def test_a_file_that_still_changes_is_not_applied(redis_url: str, tmp_path: Path) -> None:
    """What stands in a file while it is written never holds, even if it could be read."""
    file = tmp_path / "config.yaml"
    file.write_text(BEFORE)
    address = LimitAddress("job", "a")
    async with Nonet.from_settings(redis_url=redis_url, config=file) as app:
        scheduler = app.scheduler(app.injector())
        scheduler._adopt(scheduler._read_config())
        file.write_text("{}")
        tick = asyncio.create_task(scheduler._watch_config())
        await asyncio.sleep(0)  # its first look
        file.write_text(WHOLE)
        await tick
        assert scheduler._configured_limits == {address: Limit(1)}
        await scheduler._watch_config()
        assert scheduler._configured_limits == {address: Limit(2)}
        file.write_text("")
        await scheduler._watch_config()
        assert scheduler._configured_limits == {address: Limit(2)}
