"""Workflows of programs without an event loop, with a real worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemons import Daemon
from waits import WAIT_SECONDS
from workflows import flow_tasks
from workflows.flow_tasks import Add, Spreads, Sum

from nonet import ConflictError, SyncNonet, chord
from nonet.tasks.steps import PREVIOUS

pytestmark = pytest.mark.server


@pytest.fixture
def app(redis_url: str, tmp_path: Path) -> Iterator[SyncNonet]:
    """An open application, and a worker of small tasks."""
    environment = {
        "NONET_REDIS_URL": redis_url,
        "NONET_STATE_DIR": str(tmp_path),
        "NONET_TASKS": flow_tasks.__name__,
    }
    log = tmp_path / "worker.log"
    worker = Daemon("task-worker", "--size", "small", environment=environment, log=log)
    settings = {"redis_url": redis_url, "state_dir": tmp_path, "tasks": (flow_tasks.__name__,)}
    with worker, SyncNonet.from_settings(**settings) as opened:
        worker.wait_ready()
        yield opened


def test_a_chord_is_submitted_and_waited_for(app: SyncNonet) -> None:
    """The last step gets the results of the others; the run is known by its id."""
    workflow = chord([Add(1, 2), Add(3, 4)], Sum.given(numbers=PREVIOUS))
    run = app.submit_workflow(workflow, id="sums")
    assert run.result(workflow.steps[-1], timeout=WAIT_SECONDS) == 10
    assert run.wait(timeout=WAIT_SECONDS).state == "done"
    assert app.workflow("sums").status().total == 3
    assert [step.state for step in run.steps()] == ["done"] * 3
    assert [found.id for found in app.workflows()] == ["sums"]
    with pytest.raises(ConflictError, match="done"):
        run.cancel()


def test_a_plain_task_submits_a_workflow(app: SyncNonet) -> None:
    """In its thread, once: a later attempt finds the run of the first one."""
    run = app.submit(Spreads(2)).result(timeout=WAIT_SECONDS)
    assert app.workflow(run).wait(timeout=WAIT_SECONDS).state == "done"
    assert app.workflow(run).status().total == 3
