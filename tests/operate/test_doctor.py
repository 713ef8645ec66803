"""What the doctor reports if it may not look at everything."""

from __future__ import annotations

from pathlib import Path

import records
from stores.namespace.test_inspection import user_without

from nonet import Nonet
from nonet.stores.queue.broker import Broker


async def test_a_missing_permission_is_the_only_problem(broker: Broker, tmp_path: Path) -> None:
    """What the user cannot read would look like problems."""
    await records.hset(broker.client, "{test}:t:damaged", "state", "queued")
    async with (
        user_without(broker, "hgetall") as url,
        Nonet.from_settings(redis_url=url, namespace="test", state_dir=tmp_path) as app,
    ):
        found = await app.doctor(wait=0)
    assert [(problem.kind, problem.what) for problem in found.problems] == [
        ("server", "permissions")
    ]
    assert "+hgetall" in found.problems[0].next_step and found.looked_at == {}
