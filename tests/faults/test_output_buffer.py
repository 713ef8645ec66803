"""Redis closes connections whose replies exceed its ``client-output-buffer-limit``."""

from __future__ import annotations

from acceptance.conftest import own_server as own_server, own_site as own_site
from acceptance.probe_tasks import Quick
from acceptance.site import Site, eventually
from faults.conftest import MakeRig
from faults.fault_tasks import Heavy, Timed
from waits import WAIT_SECONDS

_LIMIT = "client-output-buffer-limit"


async def test_replies_that_redis_does_not_send(make_rig: MakeRig) -> None:
    """A worker that asks for 6 MB finds out that 1 MB may come, and says so; all tasks end once."""
    rig = make_rig("--" + _LIMIT, "normal 1mb 1mb 1")
    async with rig.site.app() as app:
        ids = await rig.submit(app, [Heavy(b"x" * 200_000) for _ in range(60)])
        ids += await rig.submit(app, [Timed(0.0) for _ in range(50)])
        (worker,) = rig.workers(1, slots=60, NONET_THREADS="60").daemons
        await rig.settles(ids)

        async def is_named() -> bool:
            findings = (await app.overview()).findings
            return any("larger replies of Redis are lost" in item.problem for item in findings)

        await eventually(is_named)
    assert len(rig.site.journal("start")) == len(ids)
    assert 1 <= worker.log.count("the fetch reply was lost") <= 12
    await rig.judge("replies of more than 1 MB are lost")


async def test_a_task_that_redis_does_not_send(own_site: Site) -> None:
    """It is named and waits; those behind it run."""
    site = own_site
    site.settings["NONET_TASKS"] = "acceptance.probe_tasks,faults.fault_tasks"
    site.redis.config_set(_LIMIT, "normal 200kb 200kb 1")
    async with site.app() as app:
        heavy = await app.submit(Heavy(b"x" * 250_000))
        others = await app.submit_many([Quick(n) for n in range(20)])
        worker = site.worker("--concurrency", "40")
        for handle in others:
            await handle.result(timeout=WAIT_SECONDS)

        async def is_named() -> bool:
            return "too large for the connection" in (await app.explain(heavy)).text

        await eventually(is_named)
        assert f"task {heavy} set aside" in worker.log
