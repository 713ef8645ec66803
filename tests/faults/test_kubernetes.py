"""Pods are deleted as a kubelet does it: nothing is lost, and no attempt is used."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass

from acceptance.contention import scales
from daemons import Daemon
from faults.fault_tasks import FailsOnce, Timed
from faults.pod_tasks import LargeTimed, MediumTimed
from faults.rig import PRODUCTION, TASKS, Load, Rig

# Fast and slow ones of all sizes, under locks or not, and one that is retried.
MIX = [
    *[Timed(0.05) for _ in range(12)],
    *[Timed(0.2, lock=f"lock-{n}") for n in range(3)],
    *[Timed(1.5) for _ in range(2)],
    MediumTimed(0.3),
    LargeTimed(0.3),
    FailsOnce(),
]


@dataclass(frozen=True)
class Rollout:
    small: int
    others: int
    rounds: int
    backlog: int


@scales(Rollout(1, 1, 1, 100), Rollout(3, 1, 3, 2000))
async def test_rolling_restarts(rig: Rig, scale: Rollout) -> None:
    """All pods are replaced one by one under load: each attempt of each task ran once."""
    rig.site.settings |= PRODUCTION | {"NONET_TASKS": f"{TASKS},faults.pod_tasks"}
    sizes = ["small"] * scale.small + ["medium", "large"] * scale.others
    pods = [_pod(rig, size) for size in sizes]
    deletions: list[Deletion] = []
    in_hand = 0
    async with rig.site.app() as app:
        ids = await rig.submit(app, itertools.islice(itertools.cycle(MIX), scale.backlog))
        load = Load(rig, app, lambda number: MIX[number % len(MIX)], clients=4)
        async with load.running():
            for _, place in itertools.product(range(scale.rounds), range(len(pods))):
                new = _pod(rig, sizes[place])
                await asyncio.gather(
                    *(asyncio.to_thread(pod.wait_ready) for pod in (new, pods[place]))
                )
                in_hand += rig.site.pending()
                deletions.append(await asyncio.to_thread(delete, pods[place], 40.0))
                pods[place] = new
        await rig.settles([*ids, *load.accepted], seconds=120)
    attempts: dict[str, list[int]] = defaultdict(list)
    for event in rig.site.journal("start"):
        attempts[event.id].append(event.attempt)
    kinds = Counter((item.task, *attempts[item.id]) for item in rig.site.journal("end"))
    once = {(name, 1) for name in ("Timed", "MediumTimed", "LargeTimed")}
    assert set(kinds) == once | {("FailsOnce", 1, 2)}, kinds
    assert {(item.code, item.killed) for item in deletions} == {(0, False)}
    assert in_hand > 0, "no pod had anything to drain"
    longest = max(item.seconds for item in deletions)
    print(f"\n{len(deletions)} pods deleted, {in_hand} deliveries in hand, {longest:.1f} s at most")
    await rig.judge(f"{len(deletions)} pods replaced one by one")


def _pod(rig: Rig, size: str, slots: int = 0) -> Daemon:
    slots = slots or (20 if size == "small" else 2)
    return rig.site.worker("--concurrency", str(slots), size=size, wait=False)


@dataclass(frozen=True)
class Deletion:
    code: int  # of the worker
    killed: bool  # whether SIGKILL was needed
    seconds: float  # how long all of it took


def delete(pod: Daemon, period: float) -> Deletion:
    """SIGTERM, terminationGracePeriodSeconds, SIGKILL; returns when it has ended."""
    began, killed = time.monotonic(), False
    with suppress(ProcessLookupError):
        pod.terminate()
    try:
        pod.wait(period)
    except subprocess.TimeoutExpired:
        killed = True
        pod.kill()
    return Deletion(pod.wait(), killed, time.monotonic() - began)
