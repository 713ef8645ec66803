"""``task-run call``: one task in the terminal, under its structural locks."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from cli.terminal import TaskRun, until_written
from waits import until

from nonet import MutexLock, SharedRWLock

NOWHERE = "redis://:s3cret@127.0.0.1:1/0"


def exists(path: str) -> bool:
    return Path(path).exists()


def kwargs(**values: object) -> str:
    return json.dumps(values, default=str)


async def test_call_prints_the_result(task_run: TaskRun) -> None:
    """`call` builds the task from positional and named arguments and prints what it returns."""
    ended = await task_run("call", "errands:Add", "--args", "[1]", "--kwargs", '{"b": 2}')
    assert (ended.code, ended.out, ended.err) == (0, "3\n", "")


async def test_call_prints_json_that_programs_can_read(task_run: TaskRun) -> None:
    """`--json` is one line; times are ISO 8601 in UTC, bytes as Python escapes them."""
    ended = await task_run("call", "Describe", "--json")
    assert ended.json == {"at": "2026-07-01T00:00:00Z", "name": "\udcff", "sizes": [1, 2.5]}


async def test_a_task_without_locks_needs_no_redis(task_run: TaskRun) -> None:
    """Without structural locks nothing is asked of Redis; a plain function has its dependencies."""
    ended = await task_run("call", "Inject", NONET_REDIS_URL=NOWHERE)
    assert (ended.code, ended.out) == (0, "errands:Inject with session\n")


async def test_the_directory_of_a_called_task_is_deleted(task_run: TaskRun) -> None:
    """As that of any attempt, when it has ended."""
    ended = await task_run("call", "errands:Works", "--json")
    assert ended.code == 0 and Path(ended.json).is_absolute()
    assert not exists(ended.json)


async def test_locks_without_redis_are_refused(task_run: TaskRun, tmp_path: Path) -> None:
    """A task with structural locks is not run when Redis cannot be asked for them."""
    report = tmp_path / "report"
    options = ("call", "Guarded", "--kwargs", kwargs(report=report))
    ended = await task_run(*options, NONET_REDIS_URL=NOWHERE)
    assert ended.code == 3
    assert "lock:mutex:job:7, lock:rw:job:7" in ended.err
    assert "redis://:***@127.0.0.1:1/0 does not answer" in ended.err
    assert "s3cret" not in ended.err and len(ended.err.splitlines()) == 1
    assert not report.exists()


@pytest.mark.parametrize(("rest_seconds", "code"), [(4.5, 0), (60, 1)])
async def test_a_short_rest_of_locks_is_waited_for(
    task_run: TaskRun, tmp_path: Path, rest_seconds: float, code: int
) -> None:
    """On a new Redis nobody gets a lock for 2 s: the first call of a task is no failure."""
    seconds, microseconds = task_run.redis.time()
    ends = round((seconds + rest_seconds) * 1e6) + microseconds
    task_run.redis.hset("{cli}:epoch", "calm", ends)
    report = tmp_path / "report"
    ended = await task_run("call", "Guarded", "--kwargs", kwargs(report=report))
    assert (ended.code, report.exists()) == (code, code == 0), ended
    if code:
        pattern = r"not granted for (60|5\d)\.\d s more: .*--wait-locks (60|5\d);"
        assert re.search(pattern, ended.err)


async def test_submitting_inside_a_call_needs_redis(task_run: TaskRun) -> None:
    """`.schedule()` in a called task works; without Redis it says so in one line."""
    assert (await task_run("call", "Spawn")).code == 0
    assert len(task_run.keys("t:*")) == 1
    ended = await task_run("call", "Spawn", NONET_REDIS_URL=NOWHERE)
    assert ended.code == 3
    assert "does not answer" in ended.err and "Traceback" not in ended.err


async def test_a_called_task_may_open_a_group(task_run: TaskRun) -> None:
    """`spawn_with_callback` in a called task opens a group that `groups` shows."""
    group = (await task_run("call", "Spawn", "--args", "[true]", "--json")).json
    (shown,) = (await task_run("groups", "--json")).json
    assert (shown["id"], shown["total"], shown["state"]) == (group, 2, "sealed")
    assert (await task_run("groups", group, "--json")).json == shown


async def test_locks_are_held_and_renewed_while_the_task_runs(
    task_run: TaskRun, tmp_path: Path
) -> None:
    """While it runs, for several TTLs, nobody else gets the locks; then all are released."""
    report, gate = tmp_path / "report", tmp_path / "gate"
    options = ("call", "Guarded", "--json", "--kwargs", kwargs(report=report, gate=gate))
    process = await task_run.start(*options)
    fence = await until_written(report)
    other = await task_run("call", "Guarded", "--kwargs", kwargs(report=tmp_path / "other"))
    assert other.code == 1 and "lock:mutex:job:7 is held by others, or" in other.err
    assert "nothing was run" in other.err
    assert not (tmp_path / "other").exists()
    # Longer than the TTL of 0.5 s: a lock that nobody renews would be free now.
    late = await task_run(
        *("call", "Guarded", "--wait-locks", 1.2, "--kwargs", kwargs(report=tmp_path / "other"))
    )
    assert late.code == 1 and not (tmp_path / "other").exists()
    assert task_run.keys("limiter:*") == set(), "limiters are not for terminals"
    gate.touch()
    out, _ = await process.communicate()
    assert (process.returncode, json.loads(out)) == (0, int(fence))
    assert task_run.keys("lock:*") | task_run.keys("l:*") == set()


async def test_call_waits_for_locks_when_asked_to(task_run: TaskRun, tmp_path: Path) -> None:
    """`--wait-locks` gets the locks as soon as their holder has released them."""
    report = tmp_path / "report"
    options = ("call", "Guarded", "--wait-locks", 20, "--kwargs", kwargs(report=report))
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


async def test_locks_are_released_after_an_error(task_run: TaskRun, tmp_path: Path) -> None:
    """A failing task is one line and exit code 1, and leaves no lock."""
    options = ("call", "Guarded", "--kwargs", kwargs(report=tmp_path / "report", fail=True))
    ended = await task_run(*options)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "error: errands:Guarded failed: ValueError: told to\n"
    assert task_run.keys("lock:*") | task_run.keys("l:*") == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("task", "lock"), [("Guarded", 7), ("GuardedThread", 8)])
async def test_locks_are_released_when_it_is_interrupted(
    task_run: TaskRun, tmp_path: Path, number: int, task: str, lock: int
) -> None:
    """Ctrl-C and SIGTERM end a call and release its locks, also when a thread runs on."""
    report = tmp_path / "report"
    values = {"report": report} | ({"gate": tmp_path / "never"} if task == "Guarded" else {})
    process = await task_run.start("call", task, "--kwargs", kwargs(**values))
    await until_written(report)
    assert f"lock:mutex:job:{lock}" in task_run.keys("lock:*")
    process.send_signal(number)
    _, err = await process.communicate()
    assert (process.returncode, err) == (1, b"error: interrupted\n")
    assert task_run.keys("lock:*") | task_run.keys("l:*") == set()


async def test_a_call_in_the_background_can_be_ended(task_run: TaskRun, tmp_path: Path) -> None:
    """A shell lets what it starts with ``&`` ignore SIGINT: SIGTERM releases locks there, too."""
    report = tmp_path / "report"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by what is started
    try:
        values = kwargs(report=report, gate=tmp_path / "never")
        process = await task_run.start("call", "Guarded", "--kwargs", values)
    finally:
        signal.signal(signal.SIGINT, before)
    await until_written(report)
    process.terminate()
    await process.communicate()
    assert process.returncode == 1
    assert task_run.keys("lock:*") == set()


async def test_a_lost_lock_stops_the_call(task_run: TaskRun, tmp_path: Path) -> None:
    """When a lock is taken away, the task is cancelled, and the call says why."""
    report = tmp_path / "report"
    values = kwargs(report=report, gate=tmp_path / "never")
    process = await task_run.start("call", "Guarded", "--kwargs", values)
    await until_written(report)
    task_run.redis.set("{cli}:lock:mutex:job:7", "thief/0/1|9999999999999999")
    _, err = await process.communicate()
    assert process.returncode == 1
    assert b"lock:mutex:job:7" in err and b"the lease or a lock was taken away" in err
    assert task_run.keys("lock:*") == {"lock:mutex:job:7"}, "the thief keeps it"


async def test_errors_are_one_line_and_a_traceback_on_request(
    task_run: TaskRun, tmp_path: Path
) -> None:
    """Text of an error cannot move the cursor; `--debug` adds the traceback."""
    options = ("call", "Fail", "--args", json.dumps([str(tmp_path / "none")]))
    brief = await task_run(*options)
    assert brief.code == 1 and len(brief.err.splitlines()) == 1
    assert "FileNotFoundError: \\x1b[31mno " in brief.err
    full = await task_run(*options, "--debug")
    assert full.code == 1 and "Traceback" in full.err and "in execute" in full.err


@pytest.mark.parametrize("debug", [[], ["--debug"]])
@pytest.mark.parametrize("kind", ["Exception", "BaseException", "LeaseLostError"])
async def test_no_secret_argument_is_shown(task_run: TaskRun, kind: str, debug: list[str]) -> None:
    """Nor a default that is one, in any log line, error or traceback, as in a daemon."""
    values = kwargs(pin="s3cret-pin", kind=kind)
    ended = await task_run("call", "Blabs", "--kwargs", values, *debug)
    assert ended.code == 1
    assert ended.err.count("pin ***, password ***") >= 3, ended.err
    assert "redis://me:***@db.example/0" in ended.err
    assert "s3cret" not in ended.err + ended.out


@pytest.mark.parametrize("command", ["call", "submit"])
async def test_a_constructor_shows_no_secret(task_run: TaskRun, command: str) -> None:
    """What an author's constructor says of arguments that it refuses is masked, too."""
    ended = await task_run(command, "BlabsWhenMade", "--args", '["s3cret-token"]', "--debug")
    assert ended.code == 2 and "bad token ***" in ended.err
    assert "s3cret" not in ended.err + ended.out


async def test_what_cannot_be_provided_is_named(task_run: TaskRun) -> None:
    """A parameter of `execute` that nobody provides is named before anything runs."""
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
async def test_debugger(
    task_run: TaskRun, task: str, debugger: str, commands: str, seen: str
) -> None:
    """`--debugger` opens pdb before the task, or in the frame that failed."""
    arguments = {"Inject": "[]", "Add": "[1]", "Fail": '["/nowhere"]'}[task]
    options = ("call", task, "--args", arguments, "--debugger", debugger)
    ended = await task_run(*options, input=commands)
    assert "(Pdb)" in ended.out and seen in ended.out
    assert ended.code == (1 if task == "Fail" else 0)


BAD_INPUT = [
    (("Ad",), "unknown task 'Ad'. Did you mean errands:Add"),
    (("Add", "--args", "[1"), "errands:Add: --args is not JSON"),
    (("Add", "--args", '{"a": 1}'), "--args must be an array"),
    (("Add", "--kwargs", "[1]"), "--kwargs must be an object"),
    (("Add", "--args", '["x"]'), "a: Input should be a valid integer"),
    (("Add",), "a: Field required"),
    (("Add", "--args", "[1, 2, 3]"), "takes 2 positional arguments, 3 given"),
    (("Add", "--args", "[1]", "--kwargs", '{"a": 1}'), "a: given by position and by name"),
    (("Add", "--args", "[1]", "--kwargs", '{"c": 1}'), "c: "),
    (("Picky", "--args", "[-1]"), "n is negative"),
    (("Add", "--args", "[1]", "--tasks", "no.such.module"), "no.such.module"),
    (("Add", "--args", "[1]", "--namespace", "a b"), "NONET_NAMESPACE"),
]


@pytest.mark.parametrize(("arguments", "reason"), BAD_INPUT)
async def test_bad_input_is_refused(
    task_run: TaskRun, arguments: tuple[str, ...], reason: str
) -> None:
    """A wrong name or argument ends `call` with code 2 and a line that names it."""
    ended = await task_run("call", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert reason in ended.err and len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        *BAD_INPUT,
        (("Add", "--args", "[1]", "--at", "tomorrow"), "--at 'tomorrow' is not ISO 8601"),
        (("Add", "--args", "[1]", "--at", "+60"), "for a time from now use --delay"),
        (("Add", "--args", "[1]", "--delay", "1e999"), "--delay: '1e999' is not a duration"),
        (("Add", "--args", "[1]", "--delay", "99999d"), "is more than 100 years"),
        (("Add", "--args", "[1]", "--delay", "9999d"), "delay: must be seconds or a timedelta"),
        (
            ("Add", "--args", "[1]", "--delay", "60", "--at", "2099-01-01"),
            "pass at_time or delay, not both",
        ),
        (("Add", "--args", "[1]", "--label", "x"), "--label 'x' must be NAME=VALUE"),
        (("Add", "--args", "[1]", "--label", "priority=soon"), "'soon' is not a valid Priority"),
        (("Add", "--args", "[1]", "--id", "a b"), "id 'a b'"),
    ],
)
async def test_bad_input_submits_nothing(
    task_run: TaskRun, arguments: tuple[str, ...], reason: str
) -> None:
    """A wrong name, argument or option ends `submit` with code 2, and Redis stays empty."""
    ended = await task_run("submit", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert reason in ended.err and len(ended.err.splitlines()) == 1
    assert task_run.keys() == set()
