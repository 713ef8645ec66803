"""config.example.yaml with real daemons: it behaves as it says."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from acceptance.site import Site, submit_all
from daemons import until
from example import EXAMPLE, example_tasks

from nonet.rules.limits import LimitAddress

MORE_THAN_ANY_LIMIT = 12


@pytest.fixture
def tasks(site: Site, tmp_path: Path) -> Iterator[Any]:
    """The tasks of the example; daemons know them, and show where they are at work."""
    (tmp_path / "place").mkdir()
    with example_tasks() as module:
        site.settings |= {"NONET_TASKS": module, "EXAMPLE_PLACE": str(tmp_path / "place")}
        site.scheduler("--config", str(EXAMPLE))
        yield importlib.import_module(module)


def at_work(place: Path) -> Counter[str]:
    """How many tasks of a class have begun with an object."""
    return Counter(item.name.rpartition(",")[0] for item in place.iterdir())


async def test_its_limits_let_as_many_run_as_they_say(
    site: Site, tasks: Any, tmp_path: Path
) -> None:
    """Per storage element with a default, per transformation, each object for itself."""
    place = tmp_path / "place"
    published = site.key("config"), site.key("limits")
    await until(lambda: site.redis.exists(*published) == 2, "the example is published")
    site.worker()
    async with site.app() as app:
        several = range(MORE_THAN_ANY_LIMIT)
        elements = ("CERN-DST", "CERN-MC_DST", "RAL-DST", "IN2P3-DST")
        removals = [tasks.RemoveFile(name, f"/{step}") for name in elements for step in several]
        creations = [tasks.CreateFile("CERN-DST", f"/{step}") for step in several]
        steps = [tasks.RunTransformation(id, step) for id in (12345, 7) for step in several]
        removing = await submit_all(app, removals)
        others = await submit_all(app, [*creations, *steps])
        checks = await submit_all(app, [tasks.CheckPilotStatus("lhcb", n) for n in several])
        wanted = {
            "RemoveFile,CERN-DST": 8,
            "RemoveFile,CERN-MC_DST": 5,
            "RemoveFile,RAL-DST": 5,
            "RemoveFile,IN2P3-DST": 5,
            "CreateFile,CERN-DST": 5,
            "RunTransformation,12345": 5,
            "RunTransformation,7": 10,
            "CheckPilotStatus,lhcb": MORE_THAN_ANY_LIMIT,
        }
        waiting = len(removing) + len(others) + len(checks) - sum(wanted.values())
        await until(
            lambda: (
                sum(at_work(place).values()) >= sum(wanted.values())
                and sum(map(site.parked, [*removing, *others])) >= waiting
            ),
            "all that may have begun, and the others wait",
        )
        assert at_work(place) == wanted
        counted = LimitAddress("task", "CheckPilotStatus", limiter="rate", vo="lhcb").counter
        assert site.redis.exists(site.key(counted))
        streams = {site.redis.hget(site.key(f"t:{id}"), "stream") for id in removing}
        assert streams == {"background:small"}, "RemoveFile runs in the background, it says"
        (place / "gate").touch()
        await site.all_ended()
        states = Counter([(await app.status(id)).state for id in [*removing, *others, *checks]])
    assert set(states) == {"done"}


async def test_its_entries_are_planned_and_run(site: Site, tasks: Any) -> None:
    """lhcb has its three, gridpp the common one; each runs with its VO and expression."""
    async with site.app() as app:
        key = site.key("periodic:next")
        await until(lambda: site.redis.hlen(key) == 4, "four entries are planned")
        found = await app.stores.periodic.statuses()
        times = [item.next for item in found if item.next is not None]
        hours = {
            (item.vo, item.name): {(time.hour, time.minute)}
            for item, time in zip(found, times, strict=True)
        }
        assert hours.keys() == {
            ("lhcb", "SubmitPilotsCERN"),
            ("lhcb", "SubmitPilotsRAL"),
            ("lhcb", "SubmitPilotsOthers"),
            ("gridpp", "default"),
        }
        assert hours["lhcb", "SubmitPilotsCERN"] <= {(hour, 0) for hour in range(0, 24, 2)}
        assert hours["lhcb", "SubmitPilotsRAL"] <= {(hour, 0) for hour in (0, 6, 12, 18)}
        assert hours["lhcb", "SubmitPilotsOthers"] == hours["gridpp", "default"] == {(0, 0)}
        site.worker()
        results = {
            item.name: await (await app.run_entry(item)).result(timeout=30) for item in found
        }
    assert results == {
        "SubmitPilotsCERN": r"lhcb: .*\.cern\.ch",
        "SubmitPilotsRAL": r"lhcb: .*\.ral\.ac\.uk",
        "SubmitPilotsOthers": r"lhcb: (?!.*\.(cern\.ch|ral\.ac\.uk)$).*",
        "default": "gridpp: .*",
    }
