"""Tasks that wait for the result of others."""

from __future__ import annotations

import pytest
from acceptance.probe_tasks import AwaitsItsLike
from acceptance.site import Site

from nonet import TaskFailed


async def test_a_parent_that_awaits_a_child_of_its_own_lock_is_told(site: Site) -> None:
    """It fails with the reason instead of hanging; the child runs once the lock is free."""
    site.worker()
    async with site.app() as app:
        parent = await app.submit(AwaitsItsLike(1))
        with pytest.raises(TaskFailed, match=r"DeadlockError: .*lock:mutex:job:family"):
            await parent.result(timeout=30)
        await site.all_ended()
        assert await (await app.submit(AwaitsItsLike(0))).result(timeout=30) == "alone"
