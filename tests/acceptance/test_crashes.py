"""Workers that die, freeze or block: promises 2, 5, 6 and 10 in their simple form."""

from __future__ import annotations

import re

import pytest
from acceptance.probe_tasks import Alone, Backtracking, Blocking, Gated, GatedMutex, SettlesLate
from acceptance.site import LEASE, SHORT, Site, run
from waits import WAIT_SECONDS, until


@pytest.fixture(autouse=True)
def _short(site: Site) -> None:
    site.settings |= SHORT


async def test_deaths_are_no_attempts(site: Site) -> None:
    """A task whose worker died runs again as attempt 1, and the death is counted."""
    gate = site.gate()
    victim = site.worker()
    async with site.app() as app:
        handle = await site.begin(app, GatedMutex(gate))
        victim.kill()
        other = site.worker()
        first, second = await site.started(handle, 2)
        status = await handle.status()
        assert (status.attempt, status.worker_deaths) == (1, 1)
        assert (first.attempt, second.attempt) == (1, 1)
        site.open(gate)
        assert await handle.result(timeout=WAIT_SECONDS) == second.pid
        assert second.pid not in (victim.pid, other.pid), "a suspect has a process of its own"


async def test_frozen_worker_comes_back_too_late_to_settle(site: Site) -> None:
    """A worker frozen between execution and settle is STALE afterwards; the other's result stands.

    Its dependency closes without ever yielding to the event loop, so nothing but the settle
    script itself can refuse it.
    """
    settles = site.settles()
    gate, open_gate = site.gate(), site.gate()
    site.open(open_gate)
    frozen = site.worker(PROBE_GATE=gate)
    async with site.app() as app:
        handle = await app.submit(SettlesLate())
        await until(lambda: site.journal("closing"), "the attempt has closed its dependency")
        frozen.freeze()
        site.worker(PROBE_GATE=open_gate)
        winner = await handle.result(timeout=WAIT_SECONDS)
        assert winner != frozen.pid
        site.open(gate)
        frozen.thaw()
        await until(lambda: "STALE" in frozen.log, "the late settle was refused")
        assert await handle.result(timeout=1) == winner
    assert int(site.redis.hget(site.key("counters"), "settle:stale")) == 1
    first, second = site.journal("start")
    assert second.fence > first.fence
    assert settles() == {str(handle): 1}


async def test_frozen_worker_voids_what_it_held(site: Site) -> None:
    """A worker frozen for longer than its lease cancels its attempt when it wakes.

    Then it goes on working.
    """
    gate = site.gate()
    frozen = site.worker()
    async with site.app() as app:
        handle = await site.begin(app, GatedMutex(gate))
        frozen.freeze()
        other = site.worker()
        first, second = await site.started(handle, 2)
        frozen.thaw()
        await until(lambda: site.journal("cancelled"), "the voided attempt is cancelled")
        assert [event.pid for event in site.journal("cancelled")] == [frozen.pid]
        assert site.journal("end") == []
        counters = site.key("counters")
        await until(lambda: site.redis.hget(counters, "settle:stale") == "1", "it was refused")
        site.open(gate)
        assert await handle.result(timeout=WAIT_SECONDS) == second.pid
        other.kill()
        assert await run(app, Gated(gate)) == frozen.pid
    assert second.pid != first.pid == frozen.pid
    assert second.fence > first.fence


async def test_code_that_holds_the_interpreter_lock_is_named(site: Site) -> None:
    """Its task and a neighbour lose their leases: logs name the class, and no death is claimed."""
    gates = site.gate(), site.gate()
    first = site.worker()
    async with site.app() as app:
        neighbour = await site.begin(app, Gated(gates[0]))
        culprit = await site.begin(app, Backtracking(gates[1], 1.5 * LEASE))
        site.open(gates[1])
        site.worker()
        for id in (culprit, neighbour):
            loss = rf"lease lost: task_id={id} reason=.+:Backtracking held the interpreter lock"
            await until(lambda loss=loss: re.search(loss, first.log), "the loss is explained")

        key = site.key(f"w:{first.incarnation}")
        await until(lambda: "Backtracking" in str(site.redis.hgetall(key)), "it reports it")
        findings = (await app.overview()).findings
        (found,) = [item for item in findings if item.kind == "class"]
        assert "Backtracking held the interpreter lock" in found.problem
        assert "size = Size.MEDIUM" in found.hint
        assert not any("died" in item.problem for item in findings), findings
        site.open(gates[0])
        for handle in (culprit, neighbour):
            await handle.result(timeout=WAIT_SECONDS)


async def test_blocked_event_loop_keeps_lock_and_delivery(site: Site) -> None:
    """A task that blocks the loop for longer than its leases runs once, alone in its lock."""
    site.settings |= {"NONET_LEASE": "7", "NONET_LOCK_TTL": "6", "NONET_WORKER_TTL": "7"}
    first = site.worker()
    async with site.app() as app:
        long = await site.begin(app, Blocking(10.0))
        site.worker()
        after = await app.submit(Alone())
        assert await long.result(timeout=WAIT_SECONDS) == first.pid
        await after.result(timeout=WAIT_SECONDS)
    (start,) = site.journal("start", id=long)
    (end,) = site.journal("end", id=long)
    (entered,) = site.journal("start", id=after)
    assert start.attempt == 1
    assert entered.at >= end.at
