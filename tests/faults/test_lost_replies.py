"""The reply to any one command gets lost: the server has executed it, the connection is reset."""

from __future__ import annotations

import time
from collections.abc import Sequence

from acceptance.contention import scales
from acceptance.probe_tasks import BuriedFreely
from faults.fault_tasks import FailsOnce, Family, Timed
from faults.rig import Rig, rows_of
from waits import until

from nonet import BaseTask, Nonet
from nonet.stores.sql.database import upgrade


@scales(range(1, 201, 20), range(1, 201))
async def test_reply_of_any_command_lost(
    proxied: Rig, mariadb_url: str, scale: Sequence[int]
) -> None:
    """Submit, run, retry, group and dead letter end once, whichever reply is swallowed."""
    rig, proxy = proxied, proxied.proxy
    assert proxy
    await upgrade(mariadb_url)
    fleet = rig.workers(1, slots=20, NONET_DB_URL=mariadb_url)
    scheduler = rig.site.scheduler()
    dead: list[str] = []
    slowest = 0.0
    async with rig.site.app() as app:
        for n in scale:
            proxy.drop_reply(n)
            began = time.monotonic()
            while proxy.armed:
                dead += await one_of_each(rig, app)
            slowest = max(slowest, time.monotonic() - began)
    assert proxy.dropped == len(scale)
    assert fleet.daemons[0].alive and scheduler.alive
    assert len(rig.site.journal("start", task="BuriedFreely")) == len(dead)
    await rig.judge(
        f"reply {min(scale)} to {max(scale)} lost, connection reset",
        dead=dead,
        rows=await rows_of(mariadb_url),
        recovery=slowest,
    )


async def one_of_each(rig: Rig, app: Nonet) -> list[str]:
    """Submit tasks of each kind and wait until all have ended; the ids of those that are dead."""
    before = len(rig.owed)
    families = [Family(f"family-{before}-{n}") for n in range(4)]
    others: list[BaseTask] = [Timed(0.0) for _ in range(12)]
    others += [Timed(0.0, f"lock-{n % 2}") for n in range(6)]
    others += [FailsOnce() for _ in range(6)]
    hopeless = await rig.submit(app, [BuriedFreely() for _ in range(6)])
    ids = [*hopeless, *await rig.submit(app, [*families, *others])]
    for id in ids[::4]:
        rig.accepted([await app.submit(Timed(0.0), id=f"{id}-beside")])
    await rig.settles(ids)
    names = {family.name for family in families}
    await until(lambda: names <= rig.names_reported(), "every callback has run")
    return hopeless
