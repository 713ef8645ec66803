"""Periodic tasks: a single task, and the schedules of nonet.yaml under a test clock."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from conftest import CONFIG

from nonet.testing import System, run_inline
from nonet_example.database import PilotDB
from nonet_example.pilots import CheckPilotStatus, SubmitPilots, computing_elements


async def test_pilots_go_where_the_expression_fits(db_url: str) -> None:
    """Each matching element gets two pilots in all, and each new pilot a check."""
    task = SubmitPilots(vo="lhcb", ce_regex=re.compile(r".*\.cern\.ch"))
    run = await run_inline(task)
    assert run.result == 4
    assert [item.task for item in run.submitted] == [
        CheckPilotStatus("lhcb", number) for number in (1, 2, 3, 4)
    ]
    assert (await run_inline(task)).result == 0


async def test_nobody_asks_for_what_was_rolled_back(db_url: str) -> None:
    """If the second element fails, neither pilots nor checks remain."""

    class Broken(PilotDB):
        async def add(self, vo: str, computing_element: str) -> int:
            if computing_element == "b":
                raise ConnectionError("b does not answer")
            return await super().add(vo, computing_element)

    overrides = {computing_elements: lambda: ["a", "b"], PilotDB.session: Broken.session}
    run = await run_inline(SubmitPilots(vo="lhcb"), overrides=overrides, check=False)
    assert str(run.error) == "b does not answer"
    assert run.submitted == []


async def test_each_vo_has_its_schedules(db_url: str) -> None:
    """VO lhcb has its three entries, and every other VO the common one.

    Two entries fire at midnight. The others fire every ten seconds, so their number depends on how
    long the test takes.
    """
    start = datetime(2030, 1, 5, 23, 59, 45, tzinfo=UTC)
    async with System(config=CONFIG, now=start, db_url=db_url) as system:
        await system.advance(timedelta(seconds=20))
        await system.run_until_idle()
        fired = Counter(
            item.labels["entry"].removeprefix("pilots:SubmitPilots|")
            for item in system.assert_submitted(SubmitPilots)
        )
        assert fired.pop("lhcb|SubmitPilotsCERN") == fired.pop("lhcb|SubmitPilotsRAL") == 1
        assert fired.keys() == {"dune|default", "gridpp|default", "lhcb|SubmitPilotsOthers"}
        assert min(fired.values()) >= 2
        system.assert_submitted(CheckPilotStatus, vo="gridpp")


@pytest.mark.parametrize("pilots", [0, 101])
def test_a_senseless_configuration_is_refused(pilots: int) -> None:
    """`task-run config check` prints the error of `validate_config`."""
    from nonet import TaskConfig

    with pytest.raises(ValueError, match="1 to 100 per computing element"):
        SubmitPilots.validate_config([TaskConfig(args={"pilots": pilots})])
