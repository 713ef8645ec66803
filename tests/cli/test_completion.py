"""Completion in shells: bash runs the function that is installed; zsh and fish ask as theirs do."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest
from cli.terminal import TaskRun
from cli.test_schedules import scheduler
from preloaded import put_shims
from waits import WAIT_SECONDS

_SCRIPTS = Path(sys.executable).parent


async def completed(task_run: TaskRun, *words: str, **environment: str) -> list[str]:
    """What bash puts into COMPREPLY for the last of these words, split as bash does."""
    shims = task_run.home / "shims"
    shims.mkdir(exist_ok=True)
    environment |= {"PATH": f"{shims}:{_SCRIPTS}:/usr/bin:/bin", **put_shims(shims)}
    script = """
        eval "$(task-run --show-completion)"
        COMP_WORDS=(task-run "$@") COMP_CWORD=$#
        _task_run_completion task-run
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    process = await asyncio.create_subprocess_exec(
        *("bash", "--norc", "-c", script, "bash", *words),
        env=task_run.variables(environment),
        cwd=task_run.home,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT_SECONDS):
        out, err = await process.communicate()
    assert err == b""
    return out.decode().split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sub"], ["submit"]),
        (["sche"], ["schedules"]),
        (["schedules", "run"], ["run-now"]),
        (["list", "--sta"], ["--state", "--state-dir"]),
        (["list", "--state", "r"], ["running"]),
        (["list", "--state", "=", "r"], ["running"]),
        (["submit", "Desc"], ["Describe"]),
        (["submit", "errands", ":", "Desc"], ["Describe"]),
        (["cancel", "--task", "=", "errands", ":", "Desc"], ["Describe"]),
        (["submit", "--tasks", "cli.slips", "slips", ":", "C"], ["Careless"]),
        (["pause", "--task", "errands", ":", "Night"], ["Nightly"]),
        (["submit", "Nothing"], []),
    ],
)
async def test_bash_completes(task_run: TaskRun, words: list[str], found: list[str]) -> None:
    """Commands, options, choices and task classes are offered; bash splits words at colons."""
    assert await completed(task_run, *words, NONET_REDIS_URL="redis://127.0.0.1:1") == found


async def test_schedule_entries_come_from_redis(task_run: TaskRun) -> None:
    """Classes that have entries are offered, and the names of the entries of a class."""
    async with scheduler(task_run), asyncio.timeout(WAIT_SECONDS):
        for line, found in [
            ("schedules show Night", ["Nightly"]),
            ("schedules show ", ["errands:Nightly"]),
            ("schedules pause errands : Nightly --name ", ["early", "late"]),
        ]:
            while await completed(task_run, *line.split(" ")) != found:
                pass  # Redis did not answer within the time limit, as the machine is busy


@pytest.mark.parametrize("shell", ["zsh", "fish"])
async def test_other_shells_complete(task_run: TaskRun, shell: str) -> None:
    """They pass the whole line and show the help of a command."""
    asked = {"_TASK_RUN_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    ended = await task_run(**asked, _TYPER_COMPLETE_ARGS="task-run submit errands:Desc")
    assert (ended.code, ended.err) == (0, "") and "Describe" in ended.out
    ended = await task_run(**asked, _TYPER_COMPLETE_ARGS="task-run sub")
    assert (ended.code, ended.err) == (0, "")
    assert "submit" in ended.out and "print" in ended.out


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "silent", "embedded://", "nonsense://"])
async def test_without_redis_nothing_is_offered(task_run: TaskRun, url: str) -> None:
    """A Redis that refuses or never answers is no error, and no server is started."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if url == "silent":
            url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        assert await completed(task_run, "schedules", "show", "", NONET_REDIS_URL=url) == []
    assert not (task_run.home / "state").exists()


async def test_a_broken_task_module_offers_nothing(task_run: TaskRun) -> None:
    """What it prints or raises does not appear in the line."""
    (task_run.home / "loud.py").write_text("print('loud'); raise SystemExit('loud')")
    broken = {"NONET_TASKS": "loud", "PYTHONPATH": str(task_run.home)}
    assert await completed(task_run, "submit", "l", **broken) == []
