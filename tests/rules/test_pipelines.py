"""Why a row of a pipeline waits, and what the overview reports of pipelines."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rules.sentences import contains

from nonet.config.models import PipelineConfig
from nonet.pipelines.pipeline_options import PipelineOptions, options_of
from nonet.rules.findings.overview import troubles
from nonet.rules.findings.servers import Server
from nonet.rules.findings.situation import Situation
from nonet.rules.pauses import Pause
from nonet.rules.pipelines import PipelineStatus, Replica, RowFigures, RowState, explain_row
from nonet.rules.viewing import for_viewer

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
AGO, LATER = NOW - timedelta(seconds=90), NOW + timedelta(seconds=20)
ROW = RowState(NOW, AGO, None, None, None, 0, True)
IDLE = Replica("7@host", workers=4)
BUSY = replace(IDLE, running=4)
BROKEN = replace(IDLE, problem="OperationalError: no route to 10.0.0.7")
BY_ANN = replace(IDLE, paused="by ann@host 1")
SERVER = Server({"redis_version": "7.0.15", "maxmemory_policy": "noeviction"}, leader="a/1")


def status(*replicas: Replica, **rows: Any) -> PipelineStatus:
    return PipelineStatus("volumes", RowFigures(NOW, **rows), replicas)


LEASED = {"lease_token": "t", "lease_owner": "volumes", "lease_expires_at": LATER}
ENDED = {**LEASED, "lease_expires_at": AGO}


@pytest.mark.parametrize(
    ("row", "replicas", "why"),
    [
        ({"due_at": None}, [IDLE], "finished: it is … (task-run pipelines touch volumes 17)"),
        ({"due_at": LATER, "attempts": 2}, [IDLE], "due in 20 s; failed attempts since its last"),
        (LEASED, [IDLE], "leased by volumes; unless renewed, the lease ends in 20 s"),
        ({**LEASED, "lease_owner": "hold"}, [IDLE], "leased by a program; unless renewed"),
        (ENDED, [], "the lease of volumes ended 1 min 30 s ago: no process runs its pipeline"),
        (
            {**ENDED, "lease_owner": "hold"},
            [IDLE],
            "the lease of a program … fetched within seconds$",
        ),
        (
            {**ENDED, "lease_owner": "disks"},
            [IDLE],
            "the lease of disks … until 10 min have passed",
        ),
        (
            {"attempts": -3, "due_at": LATER},
            [replace(IDLE, letters="no such table")],
            "failed for good: its dead letter waits to be written (no such table): task-run db",
        ),
        ({"due_at": LATER, "task": "Scan"}, [IDLE], "due in 20 s; … task-run list --task Scan"),
        ({**LEASED, "lease_owner": "disks:a:7"}, [IDLE], "leased by row a:7 of pipeline disks"),
        ({"lease_owner": "disks"}, [IDLE], "waits in pipeline disks for related rows"),
        (
            {"lease_owner": "volumes", "is_suspect": True},
            *([IDLE], "runs alone, as its process died: it starts when"),
        ),
        ({"is_selected": False}, [IDLE], "due, but select() of its pipeline does not select it"),
        ({}, [], "no process runs its pipeline: task-worker --pipelines volumes"),
        ({}, [BY_ANN], "its pipeline is paused by ann@host 1: task-run resume --pipeline volumes"),
        ({}, [replace(BY_ANN, paused="with everything else by a")], "its … task-run resume --all"),
        (
            {},
            [replace(BY_ANN, paused="by the configuration")],
            "its … remove `pause` from pipelines",
        ),
        ({}, [BROKEN], "its database fails: OperationalError: no route to 10.0.0.7"),
        ({}, [BROKEN, IDLE], "next in line: it is fetched within seconds$"),
        (
            {"lease_owner": "volumes", "waiting_since": AGO},
            [IDLE],
            "waits for its related rows for 1 min 30 s: others have them",
        ),
        ({"wanted_by": "fleets"}, [IDLE], "a row of pipeline fleets waits for this row"),
        ({}, [BUSY, BUSY], "all 8 workers are busy: raise `workers` of pipelines.volumes"),
        ({}, [BUSY, IDLE], "next in line: it is fetched within seconds$"),
    ],
)
def test_a_row_is_explained_by_its_first_cause(
    row: dict[str, Any], replicas: list[Replica], why: str
) -> None:
    """Each cause is named, with what to type where an operator can help."""
    found = explain_row(replace(ROW, **row), "17", status(*replicas, due=9, leased=8))
    assert contains(found, why), found


SHOW = "task-run pipelines show volumes"


@pytest.mark.parametrize(
    ("item", "problem", "hint"),
    [
        (
            status(due=5, leased=5, oldest=3),
            "no process runs it: 5 rows of pipeline volumes wait, the oldest for 3 s$",
            "task-worker --pipelines volumes",
        ),
        (status(BROKEN, IDLE), "7@host cannot read the rows of … no route to 10.0.0.7", SHOW),
        (status(replace(IDLE, letters="no such table")), "… no such table", "task-run db check"),
        (
            status(IDLE, due=2, stale=2, oldest=90),
            "2 rows … left by a dead process; … 1 min 30 s$",
            SHOW,
        ),
        (
            status(BUSY, due=9, leased=4, oldest=120),
            "5 rows … for 2 min: all its workers are busy$",
            SHOW,
        ),
    ],
)
def test_the_overview_names_what_keeps_rows_waiting(
    item: PipelineStatus, problem: str, hint: str
) -> None:
    [finding] = troubles(Situation(server=SERVER, pipelines=[item]))
    assert (finding.kind, finding.what, finding.command) == ("pipeline", "volumes", hint)
    assert contains(finding.problem, problem), finding


@pytest.mark.parametrize(
    "item",
    [
        status(),
        status(IDLE, due=4, leased=4),
        status(IDLE, due=4, stale=1, oldest=20),
        status(BUSY, due=9, leased=4, oldest=20),
        status(BY_ANN, due=9, oldest=500),
    ],
)
def test_rows_that_wait_for_seconds_or_for_a_pause_are_no_finding(item: PipelineStatus) -> None:
    assert troubles(Situation(server=SERVER, pipelines=[item])) == []


def test_the_pause_of_a_pipeline_is_reported_once_with_its_due_rows() -> None:
    pause = Pause("pipeline:volumes", AGO, "ann@host 1", "the cloud is down")
    found = Situation(server=SERVER, pauses=[pause], pipelines=[status(BY_ANN, due=9, oldest=500)])
    [finding] = troubles(found)
    assert finding.problem == (
        "pipeline volumes is paused since 2026-07-01 11:58:30Z by ann@host 1 (the cloud is down): "
        "9 rows due"
    )
    assert finding.command == "task-run resume --pipeline volumes"


def test_a_viewer_sees_no_text_of_an_error() -> None:
    """Webhooks get the types of errors only."""
    items = [status(BROKEN), status(replace(IDLE, letters="no such table"))]
    findings = troubles(for_viewer(Situation(server=SERVER, pipelines=items)))
    assert "OperationalError" in findings[0].problem
    assert not any("10.0.0.7" in one.problem or "table" in one.problem for one in findings)


class Volumes:
    workers, interval, queue = 20, 10.0, None


@pytest.mark.parametrize(
    ("configured", "pause", "expected"),
    [
        (None, "", (20, 10.0, None, "")),
        (None, "by ann", (20, 10.0, None, "by ann")),
        ({"workers": 40, "queue": 100}, "", (40, 10.0, 100, "")),
        ({"interval": 0.5}, "", (20, 0.5, None, "")),
        ({"pause": True}, "", (20, 10.0, None, "by the configuration")),
        ({"pause": True}, "by ann", (20, 10.0, None, "by ann")),
        ({"pause": False}, "by ann", (20, 10.0, None, "by ann")),
    ],
)
def test_the_configuration_replaces_the_attributes_that_it_names(
    configured: dict[str, Any] | None, pause: str, expected: tuple[Any, ...]
) -> None:
    section = None if configured is None else PipelineConfig(**configured)
    assert options_of(Volumes, section, pause) == PipelineOptions(*expected)  # type: ignore[arg-type]
