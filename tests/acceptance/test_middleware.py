"""Middleware around submissions and attempts, wherever they are; and context that travels."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import records
from acceptance import around_tasks
from acceptance.around_tasks import (
    Dies,
    Fails,
    FailsInChild,
    Sees,
    SeesInChild,
    SeesInThread,
    Spawns,
    Used,
    Waits,
    request_id,
    tenant,
)
from acceptance.site import Site, failure, run, working
from metrics_names import get
from ports import free_ports
from pydantic import SecretStr
from waits import WAIT_SECONDS, until

from nonet import InvalidArgumentsError, Middleware, TaskCancelled
from nonet.base.messages.message import decode_envelope
from nonet.telemetry import running_middleware as failures_of

TASKS = "acceptance.around_tasks"
Lines = list[Mapping[str, Any]]


class Around:
    """The site, and what its middleware has written."""

    def __init__(self, site: Site, path: Path) -> None:
        self.site = site
        self._path = path

    def lines(self, event: str = "", **wanted: Any) -> Lines:
        """The lines so far of one kind."""
        if not self._path.exists():
            return []
        found = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [
            line
            for line in found
            if event in ("", line["event"])
            and all(line.get(name) == value for name, value in wanted.items())
        ]

    def events(self, **wanted: Any) -> list[str]:
        """What happened, in order, with the name of its writer."""
        return [f"{line['event']} {line.get('by', '')}".strip() for line in self.lines(**wanted)]


@pytest.fixture
def around(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Around:
    """The same environment for daemons and for this process."""
    path = tmp_path / "around"
    site.settings["AROUND_JOURNAL"] = str(path)
    monkeypatch.setenv("AROUND_JOURNAL", str(path))
    around_tasks.register()
    failures_of.take_failures()
    return Around(site, path)


async def test_a_failing_middleware_refuses_no_submission(
    around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is counted, and the middleware around it ends as ever."""
    async with around.site.app() as app:
        for where in ("before submit", "after submit", "before submit:exit"):
            monkeypatch.setenv("AROUND_BROKEN", where)
            handle = await app.submit(Sees())
            assert len(around.events(id=handle)) == 4, where
            assert failures_of.take_failures() == {"Broken": 1}, where
            await app.cancel([handle])


@pytest.mark.parametrize("broken", ["before attempt:exit", "after attempt:cancel"])
async def test_a_failing_middleware_changes_no_outcome(around: Around, broken: str) -> None:
    """Whatever it raises or hides: logged and counted, also from a child process."""
    port = free_ports(1)
    worker = around.site.worker("--metrics-port", str(port), AROUND_BROKEN=broken)
    expected = [(Sees(), 1), (SeesInChild(), 1)]
    expected += [(kind(SecretStr("hunter-2"), 1), 2) for kind in (Fails, FailsInChild)]
    async with around.site.app() as app:
        for task, times in expected:
            handle = await app.submit(task)
            await handle.result(timeout=WAIT_SECONDS)
            status = await app.status(handle)
            assert (status.state, status.attempt) == ("done", times), task
            assert len(around.lines("ends", id=handle)) == 2 * times, task
    assert "middleware Broken failed" in worker.log
    _, text = get(port, "/metrics")
    assert 'nonet_middleware_errors_total{middleware="Broken"} 6.0' in text
    assert 'nonet_middleware_errors_total{middleware="Journal"} 0.0' in text


async def test_the_scheduler_submits_through_middleware(around: Around) -> None:
    """It sees the schedule of the entry."""
    around.site.scheduler()
    around.site.worker()
    await until(lambda: around.lines("ticked"), "an occurrence has run")

    def submitted() -> Lines:  # the task may run before its submission returns
        return around.lines("submitted", by="outer", task="around_tasks:Ticks")

    (first, *_) = await until(submitted, "its submission has returned")
    (begun, *_) = around.lines("submitting", by="outer", id=first["id"])
    assert begun["schedule"] == "IntervalSecondsSchedule(seconds=1)"


async def test_middleware_encloses_each_submission_in_its_order(around: Around) -> None:
    """The lowest order is outside; labels that they write are sent; a refusal raises inside."""
    async with around.site.app() as app:
        handles = await app.submit_many([Sees(), Sees()], labels={"via": "test "})
        for handle in handles:
            assert around.events(id=handle) == [
                "submitting outer",
                "submitting inner",
                "submitted inner",
                "submitted outer",
            ]
            sent = decode_envelope(
                await records.hget(app.broker.client, around.site.key(f"t:{handle}"), "envelope")
            )
            assert sent.labels["via"] == "test outerinner"
        await app.cancel(handles)
        with pytest.raises(InvalidArgumentsError):
            await app.submit(Sees(), start_by=-1)
        assert [line["error"] for line in around.lines("refused")] == ["InvalidArgumentsError"] * 2
        request_id.set("x" * 257)
        with pytest.raises(InvalidArgumentsError, match="request_id has 257 bytes, the limit is"):
            await app.submit(Sees())


async def test_middleware_encloses_an_attempt_where_it_runs(around: Around) -> None:
    """In its process, around its dependencies; it is closed there, and in the worker."""
    worker = around.site.worker()
    async with around.site.app() as app:
        for task in (Sees(), SeesInChild()):
            handle = await app.submit(task)
            assert (await handle.result(timeout=WAIT_SECONDS))[:2] == ["inner", "inner"]
            (pid,) = {line["pid"] for line in around.lines("begins", id=handle)}
            inside = around.lines(pid=pid)
            assert [f"{line['event']} {line.get('by', '')}".strip() for line in inside[:6]] == [
                *("begins outer", "begins inner", "opened"),
                *("committed", "ends inner", "ends outer"),
            ]
        assert not around.lines("in thread"), "that is for plain functions"
        await run(app, SeesInThread())
    assert worker.pid != pid
    worker.terminate()
    worker.wait()
    assert {line["outcome"] for line in around.lines("ends")} == {"done"}
    begun = around.lines("in thread", by="outer")
    assert [line["name"].startswith("nonet-task") for line in begun] == [True]
    wanted = ["in thread outer", "in thread inner", "out of thread inner", "out of thread outer"]
    assert [event for event in around.events() if "thread" in event] == wanted
    assert {line["pid"] for line in around.lines("closed", by="outer")} >= {pid, worker.pid}


async def test_middleware_sees_how_an_attempt_ends(around: Around) -> None:
    """With its exception and what becomes of it; the worker reports a process that died."""
    worker = around.site.worker()
    async with around.site.app() as app:
        failed = await app.submit(FailsInChild(SecretStr("hunter-2")))
        await failure(app, str(failed))
        died = await app.submit(Dies())
        await failure(app, str(died))
    ends = around.lines("ends", by="outer", id=failed)
    assert [(line["attempt"], line["outcome"], line["caught"]) for line in ends] == [
        (1, "retry", "ValueError('no')"),
        (2, "dead", "ValueError('no')"),
    ]
    assert 0 < ends[0]["retry_in"] < 1 and ends[1]["retry_in"] is None
    (first, _) = around.lines("begins", by="outer", id=failed)
    assert first["arguments"] == {"password": "**********", "times": 9}
    ends = around.lines("ends", by="outer", id=died)
    outcomes = [(line["pid"], line["outcome"]) for line in ends]
    assert outcomes == [(worker.pid, "crash"), (worker.pid, "dead")]
    assert "SIGKILL" in ends[0]["caught"]


async def test_an_attempt_that_is_ended_from_outside_has_not_failed(around: Around) -> None:
    """A cancelled attempt, and one that a stop hands back, end without an exception."""
    async with working(around.site.app(grace=0)) as app:
        cancelled = await app.submit(Waits())
        await until(lambda: around.lines("waits"), "it runs")
        await app.cancel([cancelled])
        with pytest.raises(TaskCancelled):
            await cancelled.result(timeout=WAIT_SECONDS)
        await until(lambda: len(around.lines("ends")) == 2, "both have ended")
        back = await app.submit(Waits())
        await until(lambda: len(around.lines("waits")) == 2, "it runs")
    async with around.site.app() as app:
        await app.cancel([back])
    for id, outcome in ((cancelled, "cancelled"), (back, "back")):
        ends = around.lines("ends", id=id)
        assert {(line["outcome"], line["caught"]) for line in ends} == {(outcome, "")}


async def test_what_an_application_uses_is_made_in_children_too(
    around: Around, caplog: pytest.LogCaptureFixture
) -> None:
    """From its class and arguments; a class that they cannot import is left out with a warning."""

    class Local(Middleware):
        async def around_attempt(self, task: Any) -> AsyncIterator[None]:
            around_tasks.write(event="local")
            yield

    app = around.site.app()
    app.use(Used, "used", order=5)
    app.use(Local)
    async with working(app):
        await run(app, Sees())
        await run(app, SeesInChild())
    begins = around.lines("begins", by="used")
    assert len({line["pid"] for line in begins}) == len(begins) == 2
    assert len(around.lines("local")) == 1
    assert "child processes run without middleware" in caplog.text and "Local" in caplog.text


async def test_context_travels_with_tasks_and_with_what_they_submit(around: Around) -> None:
    """It is set in each kind of attempt, also of children, of groups and of their callbacks."""
    worker = around.site.worker()
    request_id.set("4f1c")
    tenant.set(7)
    async with around.site.app() as app:
        for task in (Sees(), SeesInThread(), SeesInChild(), Fails(SecretStr("x"), 1)):
            handle = await app.submit(task)
            assert (await handle.result(timeout=WAIT_SECONDS))[-2:] == ["4f1c", 7], task
        handle = await app.submit(Spawns())
        for id in await handle.result(timeout=WAIT_SECONDS):
            assert (await app.result(id, timeout=WAIT_SECONDS))[-2:] == ["4f1c", 7]
        (callback,) = await until(
            lambda: around.lines("ends", by="outer", task="around_tasks:Collect"), "it was called"
        )
        assert await app.result(callback["id"], timeout=WAIT_SECONDS) == [
            *("4f1c", 7),
            *[["4f1c", 7]] * 2,
        ]
    assert "seen request_id=4f1c tenant=7 task_id=" in worker.log


async def test_an_explicit_label_wins_and_none_does_not_travel(
    around: Around, caplog: pytest.LogCaptureFixture
) -> None:
    """A task runs without context that was not set, or cannot be decoded."""
    request_id.set("4f1c")
    tenant.set(None)
    async with working(around.site.app()) as app:
        handle = await app.submit(Sees(), labels={"request_id": "mine"})
        assert (await handle.result(timeout=WAIT_SECONDS))[2:] == ["mine", None]
        (line,) = around.lines("begins", by="outer")
        assert line["labels"] == {"request_id": "mine", "via": "outerinner"}
        handle = await app.submit(Sees(), labels={"tenant": "none"})
        assert (await handle.result(timeout=WAIT_SECONDS))[3] is None
    assert "context not set: name=tenant error=ValueError" in caplog.text
