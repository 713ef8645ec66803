"""Nothing grows: what many tasks leave behind is what few leave, once the TTLs have passed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from acceptance.contention import scales
from faults.fault_tasks import FailsOnce, Tallied, Timed
from faults.rig import Rig
from waits import until

DEDUP_TTL = 20.1


@dataclass(frozen=True)
class Many:
    tasks: int
    waits: bool


@scales(Many(3000, False), Many(100_000, True))
async def test_many_tasks_leave_nothing(rig: Rig, scale: Many) -> None:
    """Streams are empty, keys and memory are those of before; in small, all that is left ends."""
    site = rig.site
    site.settings |= {"NONET_RESULT_TTL": "1", "NONET_DEDUP_TTL": str(DEDUP_TTL)}
    site.settings["NONET_HISTORY"] = "100"  # full before it is compared
    if scale.waits:  # nothing is to run twice on a busy machine
        site.settings |= {"NONET_LEASE": "20", "NONET_LOCK_TTL": "15", "NONET_WORKER_TTL": "15"}
    rig.workers(2, slots=100)
    site.scheduler()
    async with site.app(result_ttl=1.0, dedup_ttl=DEDUP_TTL) as app:
        await rig.settles(await rig.submit(app, [FailsOnce(), Timed(0.0, "lock"), Tallied()]))
        told = [site.key("config"), site.key("desired")]
        await until(lambda: site.redis.exists(*told) == len(told), "the leader has published both")
        keys, memory = await rest(rig, scale.waits)
        for start in range(0, scale.tasks, 5000):
            count = min(5000, scale.tasks - start)
            ids = await rig.submit(app, [Tallied() for _ in range(count)])
            ids += await rig.submit(app, [Timed(0.0, f"lock-{n % 50}") for n in range(100)])
            ids += await rig.submit(app, [FailsOnce() for _ in range(50)])
            await rig.settles(ids, seconds=120)
        assert (site.entries(), site.pending()) == (0, 0)
        after, more = await rest(rig, scale.waits)
    tally = _executions(rig)
    print(f"\n{tally} executions; memory {memory} → {more} bytes, keys {len(keys)} → {len(after)}")
    assert tally == scale.tasks + 1
    assert after == keys
    assert not scale.waits or more <= memory + 2**20
    await rig.judge(f"{tally:,} more executions without a journal; keys as before")


async def rest(rig: Rig, wait: bool) -> tuple[set[str], int]:
    """Keys and memory in use once what ends by itself has ended; without waiting for that: the
    keys that last longer than the TTLs."""
    client, key = rig.site.redis, rig.site.key
    # What the walk over all records notes, which may be under way, and a slot of figures a minute.
    others = key("active:"), key("figures:")
    await until(lambda: client.exists(key("promoted")), "the leader has promoted")
    await until(lambda: not client.exists(key("watch")), "no lock is watched")
    if wait:
        passed = client.time()[0] + DEDUP_TTL + 1
        await until(lambda: client.time()[0] > passed, "the TTLs have passed", seconds=60)
        client.execute_command("MEMORY", "PURGE")
        found = {key for key in client.scan_iter(count=1000) if not key.startswith(others)}
        return found, int(client.info("memory")["used_memory"])
    keys = list(client.scan_iter(count=1000))
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.pttl(key)
        left = dict(zip(keys, pipe.execute(), strict=True))
    lasting = {key for key, ttl in left.items() if ttl == -1 or ttl > DEDUP_TTL * 1000}
    return {key for key in lasting if not key.startswith(others)}, 0


def _executions(rig: Rig) -> int:
    return os.path.getsize(rig.site.settings["PROBE_JOURNAL"] + ".tally")
