"""``task-run call``: one task in the terminal, under its structural locks."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from cli.terminal import TaskRun, until_written
from waits import WAIT_SECONDS, until

from nonet import MutexLock, SharedRWLock

NOWHERE = "redis://:s3cret@127.0.0.1:1/0"
KEY = "{cli}:lock:mutex:job:7"


def kwargs(**values: object) -> str:
    return json.dumps(values, default=str)


async def test_call_prints_the_result(task_run: TaskRun) -> None:
    """`call` builds the task from positional and named arguments and prints what it returns."""
    ended = await task_run("call", "errands:Add", "--args", "[1]", "--kwargs", '{"b": 2}')
    assert (ended.code, ended.out, ended.err) == (0, "3\n", "")


async def test_a_task_without_locks_needs_no_redis(task_run: TaskRun) -> None:
    """A plain function gets its dependencies."""
    ended = await task_run("call", "Inject", NONET_REDIS_URL=NOWHERE)
    assert (ended.code, ended.out) == (0, "errands:Inject with session\n")


async def test_the_directory_of_a_called_task_is_deleted(task_run: TaskRun) -> None:
    """It is absolute, and deleted when the task has ended."""
    ended = await task_run("call", "errands:Works", "--json")
    assert ended.code == 0 and Path(ended.json).is_absolute()
    assert not Path(ended.json).exists()  # noqa: ASYNC240


async def test_locks_without_redis_are_refused(task_run: TaskRun) -> None:
    """A task with structural locks does not run without Redis."""
    report = task_run.home / "report"
    options = ("call", "Guarded", "--kwargs", kwargs(report=report))
    ended = await task_run(*options, NONET_REDIS_URL=NOWHERE)
    assert ended.code == 3
    assert "lock:mutex:job:7, lock:rw:job:7" in ended.err
    assert "redis://:***@127.0.0.1:1/0 does not answer" in ended.err
    assert "s3cret" not in ended.err and len(ended.err.splitlines()) == 1
    assert not report.exists()


@pytest.mark.parametrize(("rest_seconds", "code"), [(3, 0), (6000, 1)])
async def test_a_call_waits_for_locks_of_a_new_redis_only_for_seconds(
    task_run: TaskRun, rest_seconds: float, code: int
) -> None:
    """A new Redis grants no locks for a while; the first call of a task is no failure."""
    seconds, microseconds = task_run.redis.time()
    ends = round((seconds + rest_seconds) * 1e6) + microseconds
    task_run.redis.hset("{cli}:epoch", "withheld", ends)
    report = task_run.home / "report"
    ended = await task_run("call", "Guarded", "--kwargs", kwargs(report=report))
    assert (ended.code, report.exists()) == (code, code == 0), ended
    if code:
        assert re.search(r"not granted for \d{4}\.\d s more: .*--wait-locks \d{4};", ended.err)


async def test_a_called_task_may_submit_others(task_run: TaskRun) -> None:
    """It may open a group, too; without Redis the error is one line."""
    assert (await task_run("call", "Spawn")).code == 0
    assert len(task_run.keys("t:*")) == 1
    group = (await task_run("call", "Spawn", "--args", "[true]", "--json")).json
    (shown,) = (await task_run("groups", "--json")).json["items"]
    assert (shown["id"], shown["total"], shown["state"]) == (group, 2, "sealed")
    ended = await task_run("call", "Spawn", NONET_REDIS_URL=NOWHERE)
    assert ended.code == 3
    assert "does not answer" in ended.err and "Traceback" not in ended.err


async def test_locks_are_held_and_renewed_while_the_task_runs(task_run: TaskRun) -> None:
    """Another call is refused meanwhile; at the end all locks are released."""
    report, gate = task_run.home / "report", task_run.home / "gate"
    options = ("call", "Guarded", "--json", "--kwargs", kwargs(report=report, gate=gate))
    process = await task_run.start(*options)
    fence = await until_written(report)
    first = task_run.redis.get(KEY)
    other = await task_run("call", "Guarded", "--kwargs", kwargs(report=task_run.home / "other"))
    assert other.code == 1 and "lock:mutex:job:7 is held by others, or" in other.err
    assert "nothing was run" in other.err
    assert not (task_run.home / "other").exists()
    await until(lambda: task_run.redis.get(KEY) not in (first, None), "the lock is renewed")
    assert task_run.keys("limiter:*") == set(), "limiters are not for terminals"
    gate.touch()
    out, _ = await process.communicate()
    assert (process.returncode, json.loads(out)) == (0, int(fence))
    assert task_run.keys("lock:*") | task_run.keys("l:*") == set()


async def test_call_waits_for_locks_when_asked_to(task_run: TaskRun) -> None:
    """`--wait-locks` gets the locks as soon as their holder has released them."""
    report = task_run.home / "report"
    options = ("call", "Guarded", "--wait-locks", WAIT_SECONDS, "--kwargs", kwargs(report=report))
    async with task_run.app() as app:
        async with app.hold(MutexLock("job", 7), SharedRWLock("job", 7)):
            process = await task_run.start(*options)
            # Its attempts are the only scripts that run now.
            before = _scripts_run(task_run)
            await until(lambda: _scripts_run(task_run) > before + 5, "it has asked for the locks")
            assert not report.exists()
        await process.communicate()
    assert process.returncode == 0 and report.exists()


def _scripts_run(task_run: TaskRun) -> int:
    return int(task_run.redis.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


async def test_locks_are_released_after_an_error(task_run: TaskRun) -> None:
    """A failing task is one line and exit code 1, and leaves no lock."""
    options = ("call", "Guarded", "--kwargs", kwargs(report=task_run.home / "report", fail=True))
    ended = await task_run(*options)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "error: errands:Guarded failed: ValueError: told to\n"
    assert task_run.keys("lock:*") | task_run.keys("l:*") == set()


@pytest.mark.parametrize(
    ("number", "task", "lock", "is_in_background"),
    [
        (signal.SIGINT, "Guarded", 7, False),
        (signal.SIGTERM, "GuardedThread", 8, False),
        (signal.SIGTERM, "Guarded", 7, True),
    ],
    ids=["SIGINT", "SIGTERM, while a thread runs", "SIGTERM in the background"],
)
async def test_a_signal_releases_the_locks(
    task_run: TaskRun, number: int, task: str, lock: int, is_in_background: bool
) -> None:
    """A shell lets a command that it starts with ``&`` ignore SIGINT, so SIGTERM does it, too."""
    report = task_run.home / "report"
    values = {"report": report} | ({"gate": task_run.home / "never"} if task == "Guarded" else {})
    before = signal.getsignal(signal.SIGINT)
    if is_in_background:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the started process inherits it
    try:
        process = await task_run.start("call", task, "--kwargs", kwargs(**values))
    finally:
        signal.signal(signal.SIGINT, before)
    await until_written(report)
    assert f"lock:mutex:job:{lock}" in task_run.keys("lock:*")
    process.send_signal(number)
    _, err = await process.communicate()
    assert (process.returncode, err) == (1, b"error: interrupted\n")
    assert task_run.keys("lock:*") | task_run.keys("l:*") == set()


async def test_a_lost_lock_stops_the_call(task_run: TaskRun) -> None:
    """A lock that is taken away cancels the task, and the call says why."""
    report = task_run.home / "report"
    values = kwargs(report=report, gate=task_run.home / "never")
    process = await task_run.start("call", "Guarded", "--kwargs", values)
    await until_written(report)
    task_run.redis.set(KEY, "thief/0/1|9999999999999999")
    _, err = await process.communicate()
    assert process.returncode == 1
    assert b"lock:mutex:job:7" in err and b"the lease or a lock was taken away" in err
    assert task_run.keys("lock:*") == {"lock:mutex:job:7"}, "the thief keeps it"


async def test_an_error_is_one_line_and_a_traceback_with_debug(task_run: TaskRun) -> None:
    """The line has no character that a terminal obeys."""
    options = ("call", "Fail", "--args", json.dumps([str(task_run.home / "none")]))
    brief = await task_run(*options)
    assert brief.code == 1 and len(brief.err.splitlines()) == 1
    assert "FileNotFoundError: \\x1b[31mno " in brief.err
    full = await task_run(*options, "--debug")
    assert full.code == 1 and "Traceback" in full.err and "in execute" in full.err


@pytest.mark.parametrize("kind", ["Exception", "BaseException", "LeaseLostError"])
async def test_no_secret_argument_is_shown(task_run: TaskRun, kind: str) -> None:
    """No log line, error or traceback has one, even if it is a default."""
    options = ("call", "Blabs", "--kwargs", kwargs(pin="s3cret-pin", kind=kind))
    for ended in (await task_run(*options), await task_run(*options, "--debug")):
        assert ended.code == 1
        assert ended.err.count("pin ***, password ***") >= 3, ended.err
        assert "redis://me:***@db.example/0" in ended.err
        assert "s3cret" not in ended.err + ended.out


@pytest.mark.parametrize("command", ["call", "submit"])
async def test_a_constructor_shows_no_secret(task_run: TaskRun, command: str) -> None:
    """Its error about refused arguments is masked."""
    ended = await task_run(command, "BlabsWhenMade", "--args", '["s3cret-token"]', "--debug")
    assert ended.code == 2 and "bad token ***" in ended.err
    assert "s3cret" not in ended.err + ended.out


async def test_a_missing_provider_is_named(task_run: TaskRun) -> None:
    """The error comes before anything runs."""
    ended = await task_run("call", "Unprovided")
    assert ended.code == 1 and "parameter db of Unprovided.execute" in ended.err


@pytest.mark.parametrize(
    ("task", "debugger", "commands", "seen"),
    [
        ("Inject", "before", "step\nc\n", "'step' enters execute()"),
        ("Add", "before", "c\n", "'step' enters execute()"),
        ("Fail", "exception", "p 'seen', type(self).__name__\nq\n", "('seen', 'Fail')"),
    ],
)
async def test_debugger_stops_before_the_task_or_where_it_failed(
    task_run: TaskRun, task: str, debugger: str, commands: str, seen: str
) -> None:
    """`--debugger` opens pdb."""
    arguments = {"Inject": "[]", "Add": "[1]", "Fail": '["/nowhere"]'}[task]
    options = ("call", task, "--args", arguments, "--debugger", debugger)
    ended = await task_run(*options, input=commands)
    assert "(Pdb)" in ended.out and seen in ended.out
    assert ended.code == (1 if task == "Fail" else 0)
