"""What the fork server makes once for its children."""

from __future__ import annotations

from nonet import Nonet
from nonet.worker.child_process.set_up import prepare


async def test_children_share_no_wake_list(redis_url: str) -> None:
    """The broker was made before the fork; what wakes one child is not read by another."""
    app = Nonet.from_settings(redis_url=redis_url, namespace="test")
    prepare(app)
    names = []
    for _ in range(2):  # as in two children
        async with app:
            assert app.broker is app.made_broker
            with app.broker.wakes.expecting("id"):
                assert app.broker.wakes._key == f"{{test}}:wake:{app.broker.wakes.client}"
            names.append(app.broker.wakes.client)
    assert len(set(names)) == 2
