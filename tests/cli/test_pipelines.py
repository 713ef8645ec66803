"""``task-run pipelines``: what it shows, and what it changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cli.row_errands import Base, Volume
from cli.terminal import Ended, TaskRun

from nonet.rules.pipelines import Replica, RowFigures
from nonet.stores.namespace.pipelines import PipelineReports

Run = Callable[..., Coroutine[Any, Any, Ended]]
ROWS = RowFigures(datetime.now(UTC), due=7, leased=2, stale=1, waiting=1, oldest=9.5)
ONE = Replica("7@host", workers=4, running=4, queued=1, rate=30, wait=0.5)


@pytest.fixture
def rows(tmp_path: Path) -> sa.Engine:
    """A database with the row 17, which is finished, and the row 18, which is due."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/rows.db")
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(Volume).values(id=17, status="new", due_at=None))
        connection.execute(sa.insert(Volume).values(id=18, status="new"))
    return engine


@pytest.fixture
def pipelines(task_run: TaskRun, rows: sa.Engine) -> Run:
    """Calls ``task-run pipelines`` with the pipelines of ``cli.row_errands``."""

    async def call(*arguments: object, **environment: str) -> Ended:
        known = {"NONET_TASKS": "cli.row_errands", "PROBE_ROWS_URL": str(rows.url)}
        return await task_run("pipelines", *arguments, **known | environment)

    return call


@pytest.fixture
async def reports(task_run: TaskRun) -> AsyncIterator[PipelineReports]:
    """The reports of processes in the namespace of the commands."""
    async with task_run.app() as opened:
        yield opened.stores.pipelines


async def test_list_and_show_name_the_first_cause(pipelines: Run, reports: PipelineReports) -> None:
    """Both have the rows and the rate; `show` has the processes, too."""
    await reports.report("a", {"volumes": ONE})
    await reports.report_rows("volumes", ROWS)
    cause = "1 row of a dead process is not taken over yet"
    listed = await pipelines("list", COLUMNS="80")
    assert "1 row of a dead process" in listed.out
    assert all(len(line) <= 80 for line in listed.out.splitlines())
    shown = await pipelines("show", "volumes")
    assert shown.code == 0 and cause in shown.out and "7@host" in shown.out


async def test_show_says_why_a_row_waits(
    pipelines: Run, reports: PipelineReports, task_run: TaskRun
) -> None:
    """The cause comes from the row or from the reports of processes."""
    why = await pipelines("show", "volumes", "--row", "17")
    assert why.out == (
        "row 17 of volumes: finished: it is not due until it is touched "
        "(task-run pipelines touch volumes 17)\n"
    )
    why = await pipelines("show", "volumes", "--row", "18", "--json")
    cause = "no process runs its pipeline: task-worker --pipelines volumes"
    assert why.json == {"pipeline": "volumes", "key": "18", "cause": cause, "attempts": 0}
    await reports.report("a", {"volumes": ONE})
    await reports.report_rows("volumes", ROWS)
    why = await pipelines("show", "volumes", "--row", "18")
    assert "all 4 workers are busy: raise `workers` of pipelines.volumes" in why.out
    for name, row, problem in [
        ("volumes", "99", "table volumes has no row 99"),
        ("disks", "1", "no pipeline is named 'disks' (known: volumes)"),
        ("volumes", "x17", "its keys are of type int"),
    ]:
        missing = await pipelines("show", name, "--row", row)
        assert missing.code == 4 and problem in missing.err


async def test_an_error_of_the_database_is_one_line(
    pipelines: Run, rows: sa.Engine, tmp_path: Path
) -> None:
    """The exit code is 3 if it does not answer, and 1 if it refuses a statement."""
    away = {"PROBE_ROWS_URL": f"sqlite:///{tmp_path}/no/such/rows.db"}
    refused = [
        (await pipelines("show", "volumes", "--row", "17", **away), 3, ""),
        (await pipelines("touch", "volumes", "17", **away), 3, ""),
        (await pipelines("show", "volumes", "--row", 10**30), 1, "volumes: its database refuses"),
    ]
    with rows.begin() as connection:
        connection.execute(sa.text("DROP TABLE volumes"))
    missing = await pipelines("touch", "volumes", "17")
    for ended, code, problem in (*refused, (missing, 1, "statement: no such table: volumes")):
        assert ended.code == code, ended.err
        assert problem in ended.err and "Traceback" not in ended.err


async def test_a_paused_pipeline_names_its_pause(
    pipelines: Run, reports: PipelineReports, task_run: TaskRun
) -> None:
    """``task-run overview`` has the command that ends it."""
    await reports.report_rows("volumes", ROWS)
    assert (await task_run("pause", "--pipeline", "volumes")).out == "paused: pipeline volumes\n"
    overview = await task_run("overview")
    assert "pipeline volumes is paused" in overview.out and "7 rows due" in overview.out
    assert "task-run resume --pipeline volumes" in overview.out
    assert (await task_run("resume", "--pipeline", "volumes")).code == 0
    assert (await task_run("resume", "--pipeline", "volumes")).code == 4


async def test_touch_makes_a_row_due_and_hint_wakes_processes(
    pipelines: Run, rows: sa.Engine
) -> None:
    """A finished row is due again; an unknown row or pipeline is not found."""
    ended = await pipelines("touch", "volumes", "17")
    assert (ended.code, ended.out) == (0, "due now: row 17 of volumes\n")
    with rows.begin() as connection:
        assert connection.scalar(sa.select(Volume.due_at).where(Volume.id == 17)) is not None
    missing = await pipelines("touch", "volumes", "99", "--json")
    assert missing.code == 4
    assert (await pipelines("hint", "volumes")).out == "hinted 0 processes\n"
    assert (await pipelines("hint", "volumes", "--json")).json["processes"] == 0
    assert (await pipelines("hint", "disks")).code == 4
