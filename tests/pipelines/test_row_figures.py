"""What SQL reports to operators: the figures of a pipeline, and the state of one row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from row_tables import Fleet, Fleets, Instance, Instances, Jobs, on

from nonet import Nonet
from nonet.pipelines import RowDatabase, app_pipelines
from nonet.pipelines.figures import look, measure
from nonet.rules.pipelines import PipelineStatus, Replica, explain_row

pytestmark = pytest.mark.server
IDLE = (Replica("7@host", workers=4),)


def at(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def leased(until: float, due: float = -3600) -> dict[str, Any]:
    """A row that was due long ago, and has a lease until then."""
    return {
        "due_at": at(due),
        "lease_token": "t",
        "lease_owner": "instances",
        "lease_expires_at": at(until),
    }


async def test_due_rows_are_counted_by_what_they_wait_for(database: RowDatabase, add: Any) -> None:
    """Finished rows and those that are due later do not count."""
    keys = await add(
        *(Instance(due_at=at(-50)), Instance(due_at=sa.null()), Instance(due_at=at(900))),
        *(Instance(**leased(600)), Instance(**leased(-20)), Instance(**leased(-30))),
        Instance(due_at=at(-5), lease_owner="instances", waiting_since=at(-5)),
        Instance(due_at=at(-5), attempts=-3),
    )
    pipelines = on(database, Instances)
    rows = await measure(pipelines.find("instances")())
    found = (rows.due, rows.leased, rows.stale, rows.waiting, rows.dying)
    assert found == (6, 1, 2, 1, 1)
    assert rows.oldest >= 49
    state = await look(pipelines.leasing(pipelines.find("instances")), keys[3])
    assert state is not None and (state.lease_owner, state.is_selected) == ("instances", True)


async def test_a_row_of_a_dead_process_is_late_from_the_end_of_its_lease(
    database: RowDatabase, add: Any
) -> None:
    """A long run does not look like a long wait, but a lease that no process takes over does."""
    pipeline = on(database, Instances).find("instances")()
    await add(Instance(**leased(600)))
    assert (await measure(pipeline)).oldest == 0
    await add(Instance(**leased(-100)))
    assert 99 <= (await measure(pipeline)).oldest < 3600


async def test_due_rows_of_a_pipeline_that_no_process_runs_are_a_finding(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader counts them, also if the pipeline never ran, unless a process counts them."""
    await add(Instance(), Instance())
    reports = nonet.stores.pipelines
    monkeypatch.setattr(app_pipelines, "load_pipelines", lambda settings: on(database, Instances))
    async with nonet.injector() as injector:
        tick = nonet.scheduler(injector)._parts.chores["pipelines"]
    await tick("1")
    findings = (await nonet.overview()).findings
    [found] = [finding for finding in findings if finding.kind == "pipeline"]
    assert found.problem.startswith("no process runs it: 2 rows of pipeline instances wait")
    assert found.command == "task-worker --pipelines instances"
    await reports.report("a", {"instances": IDLE[0]})
    await add(Instance())
    await tick("1")
    [status] = await reports.read()
    assert status.rows.due == 2


async def test_a_row_that_a_waiting_fleet_needs_is_explained(
    database: RowDatabase, add: Any
) -> None:
    """An instance lets the fleet go first, and says so; other instances do not."""
    waiting = {"lease_owner": "fleets", "waiting_since": at(-1)}
    [fleet] = await add(Fleet(due_at=at(1), **waiting))
    wanted, free = await add(Instance(fleet_id=fleet, due_at=at(-1)), Instance(due_at=at(-1)))
    pipelines = on(database, Fleets, Instances, Jobs)
    leasing = pipelines.leasing(pipelines.find("instances"))
    status = PipelineStatus("instances", replicas=IDLE)
    why = []
    for key in (wanted, free):
        state = await look(leasing, key)
        assert state is not None
        why.append(explain_row(state, str(key), status))
    assert why == [
        "a row of pipeline fleets waits for this row, and goes first",
        "next in line: it is fetched within seconds",
    ]
    assert await look(leasing, 4711) is None
