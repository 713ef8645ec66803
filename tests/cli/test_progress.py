"""Long work shows its progress on a terminal, and nowhere else."""

from __future__ import annotations

import asyncio
import os

import pytest
import records
from cli.terminal import TaskRun
from waits import WAIT_SECONDS

from nonet.base.errors import NotFoundError
from nonet.cli import progress
from nonet.cli.batch import Report, one_by_one
from nonet.cli.progress import Progress

_CLEAR = "\r\x1b[2K"


def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """stderr is a terminal, and all work is long."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(progress, "_LONG_SECONDS", 0)


@pytest.mark.parametrize(("total", "shown"), [(4, "2/4"), (None, "submitting: 2")])
def test_progress_is_shown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    total: int | None,
    shown: str,
) -> None:
    """It is a bar, or a count if the total is unknown, and makes room for other output."""
    at_terminal(monkeypatch)
    with Progress("submitting", total) as steps:
        steps.advance(2)
        before = capsys.readouterr().err
        steps.clear()
        assert capsys.readouterr().err == _CLEAR
        steps.advance()
    assert "submitting" in before and shown in before


@pytest.mark.parametrize("hindrance", ["pipe", "dumb", "short"])
def test_progress_is_shown_only_for_long_work_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hindrance: str
) -> None:
    """A pipe, and a terminal that cannot move its cursor, show none."""
    at_terminal(monkeypatch)
    match hindrance:
        case "pipe":
            monkeypatch.setattr("sys.stderr.isatty", lambda: False)
        case "dumb":
            monkeypatch.setenv("TERM", "dumb")
        case _:
            monkeypatch.setattr(progress, "_LONG_SECONDS", 60)
    with Progress("submitting", 4) as steps:
        steps.advance()
        steps.clear()
    assert capsys.readouterr().err == ""


async def test_a_batch_counts_its_items(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The count makes room for tables and errors, which stay whole lines."""
    at_terminal(monkeypatch)

    async def pages():  # type: ignore[no-untyped-def]
        yield [1, 2]
        yield [3]

    async def act(row: int) -> dict[str, int]:
        if row == 2:
            raise NotFoundError("it is gone")
        return {"n": row}

    report = Report("dead letter", "row", as_json=False, are_named=False)
    await report.follow(one_by_one(act, pages()))
    shown = capsys.readouterr()
    assert "dead letters: 3" in shown.err
    assert f"{_CLEAR}error: dead letter 2: it is gone\n" in shown.err


async def test_the_doctor_counts_seconds(task_run: TaskRun) -> None:
    """Only a terminal shows that it still works; its result is the same."""
    records.hset(
        task_run.redis, "{cli}:t:lost", mapping={"state": "queued", "stream": "normal:small"}
    )
    ours, theirs = os.openpty()
    process = await asyncio.create_subprocess_exec(
        *(task_run.script("task-run"), "doctor", "--wait", "3", "--json"),
        env=task_run.variables({"TERM": "xterm"}),
        stdout=asyncio.subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    async with asyncio.timeout(WAIT_SECONDS):
        out, _ = await process.communicate()
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert process.returncode == 1 and out.startswith(b"{")
    assert "checking whether problems last" in shown and "1/3" in shown
    assert (await task_run("doctor", "--wait", "1", "--json")).err == ""
