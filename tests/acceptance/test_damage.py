"""Whatever somebody damages of a live task: the others go on, and it ends. Promise 16."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import astuple

import pytest
from acceptance.damage import Batch, Violation, damaged
from acceptance.damage_faults import FAULTS, Fault
from acceptance.damage_tasks import break_scripts
from acceptance.site import Site

import nonet.stores.connection.redis
from nonet.stores.connection.redis import script

_MANY = 10_000
_SOON = 25.0


async def test_a_damaged_task_costs_no_other(site: Site) -> None:
    """80 of 160 tasks in all states are damaged; the rest is done, and nothing is left."""
    async with damaged(site) as app:
        await Batch(site, app, 80, random.Random(16)).run()


@pytest.mark.soak
async def test_ten_thousand_damages(site: Site) -> None:
    """The same for 10,000 damages, hundreds at a time."""
    begun, number, ends = time.monotonic(), 0, Counter[str]()
    async with damaged(site) as app:
        while ends.total() < _MANY:
            ends += await Batch(site, app, 600, random.Random(number)).run()
            number += 1
            print(f"batch {number}: {dict(ends)}", flush=True)
    print(f"{ends.total()} damages in {time.monotonic() - begun:.0f} s: {dict(ends)}")


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
async def test_each_deliberate_fault_is_caught(
    site: Site, no_leaked_keys: list[str], fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch notices each of the listed errors in the scripts."""
    no_leaked_keys.append("*")  # what it leaves behind is how it is noticed
    environment = {"PROBE_FAULT": json.dumps(astuple(fault)[1:4])}
    if fault.is_ours:
        environment = {}
        monkeypatch.setattr(nonet.stores.connection.redis, "script", script)  # put back at the end
        break_scripts(fault.script, fault.old, fault.new)
    with pytest.raises(Violation) as caught:
        async with damaged(site, **environment) as app:
            for number in range(5):
                await Batch(site, app, 160, random.Random(number), _SOON).run()
    print(f"{fault.name}: {str(caught.value)[:200]}")


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_each_deliberate_fault_fits(fault: Fault) -> None:
    """The text that it replaces is there."""
    assert fault.old in script(fault.script or "mend")[0]
