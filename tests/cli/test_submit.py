"""``task-run submit``, and the commands that show what there is."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest
from cli.errands import Add, Fail, Sleeper, Unstorable
from cli.terminal import NAMESPACE, TaskRun, until_written
from preloaded import PLACES
from waits import WAIT_SECONDS, until

from nonet import ResultUnavailable


async def test_submit_prints_the_id(task_run: TaskRun) -> None:
    """`submit` prints the id alone, and `status` and `list` find the task."""
    ended = await task_run("submit", "Add", "--args", "[1]")
    (id,) = ended.out.split()
    assert (ended.code, ended.err) == (0, "")
    status = (await task_run("status", id, "--json")).json
    assert (status["id"], status["name"], status["state"]) == (id, "errands:Add", "queued")
    assert (await task_run("list", "--json")).json["items"] == [status]


async def test_submitting_an_id_again_is_the_same_task(task_run: TaskRun) -> None:
    """`--id` is the caller's; the second submission says that it created nothing."""
    options = ("submit", "Add", "--args", "[1]", "--id", "mine", "--json")
    assert (await task_run(*options)).json == {"id": "mine", "created": True}
    assert (await task_run(*options)).json == {"id": "mine", "created": False}
    assert task_run.keys("t:*") == {"t:mine"}


async def test_submit_at_a_time_or_after_a_delay(task_run: TaskRun) -> None:
    """`--at` takes ISO 8601, in UTC without an offset; `--delay` takes seconds or a unit."""
    submit = ("submit", "Add", "--args", "[1]", "--id")
    for at in ("2099-01-01T01:00:00+01:00", "2099-01-01", "2099-01-01T00:00:00Z"):
        await task_run(*submit, at, "--at", at)
        status = (await task_run("status", at, "--json")).json
        assert (status["state"], status["due"]) == ("delayed", "2099-01-01T00:00:00Z")
    for delay in ("1200", "20m"):
        before, _ = task_run.redis.time()
        await task_run(*submit, delay, "--delay", delay)
        after, _ = task_run.redis.time()
        score = task_run.redis.zscore("{cli}:tasks:delayed", delay)
        assert before + 1200 <= score / 1e6 <= after + 1201


async def test_labels_override_the_stream_of_the_class(task_run: TaskRun) -> None:
    """`--label` may be repeated; ``priority`` and ``size`` choose the stream."""
    options = ("--label", "priority=realtime", "--label", "size=large", "--label", "vo=a=b")
    id = (await task_run("submit", "Add", "--args", "[1]", *options)).out.strip()
    assert (await task_run("status", id, "--json")).json["stream"] == "realtime:large"


async def test_submit_waits_for_the_result(task_run: TaskRun) -> None:
    """`--wait` prints the result after the id; as JSON it is one object."""
    async with task_run.worker():
        brief = await task_run("submit", "Add", "--args", "[1, 2]", "--wait", WAIT_SECONDS)
        full = await task_run("submit", "Describe", "--wait", WAIT_SECONDS, "--json", "--id", "d")
    assert (brief.code, brief.out.splitlines()[1]) == (0, "3")
    assert full.json == {
        "id": "d",
        "created": True,
        "state": "done",
        "result": {"at": "2026-07-01T00:00:00Z", "name": "\udcff", "sizes": [1, 2.5]},
    }


async def test_an_awaited_task_that_fails_is_exit_code_1(task_run: TaskRun) -> None:
    """A failing awaited task ends `submit` with 1 and its error, and `status` shows it dead."""
    options = ("--args", '["/nowhere"]', "--id", "f", "--wait", WAIT_SECONDS, "--json")
    async with task_run.worker():
        ended = await task_run("submit", "Fail", *options)
    assert ended.code == 1
    assert ended.json["state"] == "dead" and "FileNotFoundError" in ended.json["error"]
    assert len(ended.err.splitlines()) == 1 and "\x1b" not in ended.err
    status = (await task_run("status", "f", "--json")).json
    assert (status["state"], status["attempt"]) == ("dead", 1)
    assert status["finished"].endswith("Z")


async def test_an_awaited_task_that_does_not_end_is_exit_code_1(task_run: TaskRun) -> None:
    """When the wait is over, the id and the state are printed."""
    options = ("submit", "Add", "--args", "[1]", "--id", "late", "--wait", 0.1)
    ended = await task_run(*options, "--json")
    assert (ended.code, ended.json) == (1, {"id": "late", "created": True, "state": "queued"})
    assert "task late has not ended after 0.1 s" in ended.err


async def test_a_missing_worker_is_reported(task_run: TaskRun) -> None:
    """`submit --wait` and `status` of a queued task say which worker to start."""
    hint = "no live worker has size small: start task-worker --size small\n"
    options = ("submit", "Add", "--args", "[1]", "--id")
    ended = await task_run(*options, "mine", "--wait", 0.1)
    assert ended.err.startswith(hint)
    assert (await task_run("status", "mine")).err == hint
    assert (await task_run(*options, "later", "--delay", "1000", "--wait", 0)).err.count("\n") == 1
    async with task_run.worker() as app:
        await app.result("mine", timeout=WAIT_SECONDS)
        assert (await task_run("status", "mine")).err == ""
        large = await task_run(*options, "large", "--label", "size=large", "--wait", 0.1)
        assert "no live worker has size large" in large.err


async def test_groups_show_how_they_ended(task_run: TaskRun) -> None:
    """The row of a group has its outcome and the id of the task that it submitted."""
    async with task_run.worker() as app:
        good = await app.client.spawn_with_callback([Add(1)], Add(2))
        failing = [Fail(task_run.home / "none")]
        bad = await app.client.spawn_with_callback(failing, Add(2), on_failure=Add(3))
        for group in (good, bad):
            key = f"{{cli}}:g:{group}"
            await until(lambda key=key: task_run.redis.hget(key, "outcome"), f"{group} has fired")
    rows = {row["id"]: row for row in (await task_run("groups", "--json")).json["items"]}
    shown = {
        id: [row[name] for name in ("state", "outcome", "callback", "callback_id")]
        for id, row in rows.items()
    }
    assert shown == {
        good: ["fired", "done", "errands:Add", f"{good}.callback"],
        bad: ["fired", "failed", "errands:Add", f"{bad}.failure"],
    }
    assert "  failed  " in (await task_run("groups")).out
    ended = await task_run("status", bad)
    assert (ended.code, ended.out) == (4, "")
    assert f"{bad} is a group, not a task: 'task-run groups {bad}'" in ended.err


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("large", "exceeds the limit of 262144 (NONET_MESSAGE_LIMIT)"), ("odd", "cannot be stored")],
)
async def test_a_result_that_is_not_stored_is_reported(
    task_run: TaskRun, caplog: pytest.LogCaptureFixture, kind: str, reason: str
) -> None:
    """The log of the worker, the status and the error of the caller say why; the task is done."""
    async with task_run.worker() as app:
        with pytest.raises(ResultUnavailable, match=re.escape(reason)):
            await app.result(await app.submit(Unstorable(kind), id="u"), timeout=WAIT_SECONDS)
        status = await app.status("u")
    assert status.state == "done" and reason in status.note
    shown = await task_run("status", "u")
    assert reason in shown.out
    assert (await task_run("status", "u", "--json")).json["note"] == status.note
    logged = [item.getMessage() for item in caplog.records if item.levelname == "WARNING"]
    assert f"task u (errands:Unstorable) is done, but {status.note}" in logged


async def test_every_command_prints_its_version(task_run: TaskRun) -> None:
    """`--version` needs neither other options nor valid settings."""
    for script in ("task-run", "task-worker", "task-scheduler"):
        ended = await task_run("--version", script=script, NONET_LEASE="-1")
        assert (ended.code, ended.out, ended.err) == (0, f"nonet {version('nonet')}\n", "")


async def test_list_filters(task_run: TaskRun) -> None:
    """`list` filters by state, class and label, and says how many more there are."""
    await task_run("submit", "Add", "--args", "[1]", "--id", "now")
    await task_run("submit", "Add", "--args", "[1]", "--id", "later", "--delay", "1000")
    await task_run("submit", "Describe", "--id", "other", "--label", "run=7")

    async def ids(*options: object) -> set[str]:
        return {item["id"] for item in (await task_run("list", "--json", *options)).json["items"]}

    assert await ids() == {"now", "later", "other"}
    assert await ids("--state", "delayed") == {"later"}
    assert await ids("--task", "Add") == await ids("--task", "errands:Add") == {"now", "later"}
    assert await ids("--state", "running") == set()
    limited = await task_run("list", "--json", "--limit", 2)
    assert len(limited.json["items"]) == 2 and limited.json["cursor"]
    more = (await task_run("list", "--limit", 2)).err
    assert more.startswith("2 of 3 tasks: raise --limit or --search, or add --cursor ")
    assert await ids("--label", "run=7") == {"other"}
    await task_run("submit", "Add", "--args", "[1]", "--id", "more")
    searched = (await task_run("list", "--task", "Add", "--search", 1)).err
    assert searched.startswith("found 2 among 3 of 4 tasks: ")


async def test_list_says_how_long_tasks_run_or_wait(task_run: TaskRun) -> None:
    """A running task has `started` and `running for`, a queued one `waiting for`; both no `due`."""
    report = task_run.home / "report"
    async with task_run.worker() as app:
        await app.submit(Sleeper(report), id="r")
        await until_written(report)
        await app.submit(Add(1), id="q", labels={"size": "large"})
        rows = (await task_run("list", "--json")).json["items"]
        times = {row["id"]: (row["started"], row["waits_since"], row["due"]) for row in rows}
        assert list(times) == ["r", "q"]
        assert [bool(each) for each in times["r"]] == [True, False, False]
        assert [bool(each) for each in times["q"]] == [False, True, False]
        head, running, queued = (await task_run("list")).out.splitlines()
        assert "running for" in head and "waiting for" in head
        assert running.split()[2] == "running" and " s " in running and " s " in queued
        await app.cancel(["r", "q"])


async def test_queues_and_workers(task_run: TaskRun) -> None:
    """`queues` shows nine streams and the states outside them, `workers` who is registered."""
    await task_run("submit", "Describe")
    await task_run("submit", "Add", "--args", "[1]", "--delay", "1000")
    names, *rows, outside = (await task_run("queues")).out.splitlines()
    assert names.split()[:3] == ["queue", "queued", "running"] and len(rows) == 9
    assert [row.split()[0] for row in rows if row.split()[1] != "0"] == ["realtime:small"]
    assert outside == "0 waiting, 1 delayed, 0 dying, 0 in quarantine"
    full = await task_run("queues", "realtime:small")
    assert "errands:Describe" in full.out
    assert (await task_run("queues", "fast:small")).code == 4
    async with task_run.worker():
        (worker,) = (await task_run("workers", "--json")).json["items"]
        names, row = (await task_run("workers")).out.splitlines()
        full = (await task_run("workers", worker["name"])).out
        unknown = await task_run("workers", "small-x")

        unasked = await task_run("workers", "drain", "--size", "small")
        nobody = await task_run("workers", "drain", "--size", "large", "--yes")
    assert names.split()[:4] == ["name", "size", "state", "slots"]
    assert row.split()[0] == worker["name"] and row.split()[3].endswith("/100")
    assert worker["worker"] in full
    assert unknown.code == 4 and "no worker small-x is registered" in unknown.err
    assert (unasked.code, nobody.code) == (2, 4) and "add --yes" in unasked.err


async def test_a_ceiling_refuses(task_run: TaskRun) -> None:
    """`submit` exits with 1 and tells which ceiling; `limits ceilings` shows them."""
    ceilings = {"namespace": 9, "stream:normal:small": 1, "task:errands:Add": 5}
    task_run.redis.hset(f"{{{NAMESPACE}}}:ceilings", mapping=ceilings)
    task_run.redis.set(f"{{{NAMESPACE}}}:capped", "1")
    await task_run("submit", "Add", "--args", "[1]", "--id", "first")
    ended = await task_run("submit", "Add", "--args", "[1]")
    assert (ended.code, ended.out) == (1, "")
    assert "stream normal:small has 1 of at most 1 tasks; try again in 10 s" in ended.err
    ended = await task_run("submit", "Add", "--args", "[1]", "--json")
    told = {"scope": "stream:normal:small", "active": 1, "ceiling": 1, "retry_after": 10}
    assert (ended.code, ended.json) == (1, told) and "try again in 10 s" in ended.err
    assert (await task_run("submit", "Add", "--args", "[1]", "--id", "first")).code == 0
    assert "task:errands:Add" in (await task_run("limits", "ceilings")).out


async def test_classes(task_run: TaskRun) -> None:
    """`classes` shows what is registered, without a server, and warns of mistyped attributes."""
    ended = await task_run("classes", "--json", NONET_REDIS_URL="redis://127.0.0.1:1")
    rows = {row["name"]: row for row in ended.json["items"]}
    assert rows["errands:Add"]["retry_policy"] == repr(Add.retry_policy)
    assert rows["errands:Nightly"]["periodic"] is True
    assert rows["errands:Fail"]["dlq_eligible"] is True
    ended = await task_run("classes", "--json", "--tasks", "cli.slips")
    assert ended.err == (
        "warning: cli.slips.Careless: max_retries has no effect: write retry_policy = "
        "ExponentialBackoff(max_retries=…); if it is your own, annotate it: "
        "`max_retries: ClassVar = …`\n"
    )
    assert "slips:Careless" in {row["name"] for row in ended.json["items"]}


async def test_commands_that_only_read_need_no_task_module(task_run: TaskRun) -> None:
    """They work while the module of the tasks is broken or missing."""
    await task_run("submit", "Add", "--args", "[1]", "--id", "mine")
    for command in (["queues"], ["workers"], ["groups"], ["status", "mine"]):
        ended = await task_run(*command, "--json", NONET_TASKS="nowhere")
        assert ended.code == 0 and "error" not in ended.err
    (task_run.home / "broken.py").write_text("1 / 0")
    PLACES.add(str(task_run.home))
    broken = {"NONET_TASKS": "broken", "PYTHONPATH": str(task_run.home)}
    (found,) = (await task_run("list", "--task", "Add", "--json", **broken)).json["items"]
    assert found["id"] == "mine"


@pytest.mark.parametrize(
    ("script", "options"),
    [("task-run", ["classes"]), ("task-worker", ["--size=small"]), ("task-scheduler", [])],
)
async def test_a_broken_task_module_is_exit_code_2(
    task_run: TaskRun, script: str, options: list[str]
) -> None:
    """One line names the module and its error; `--debug` adds the traceback."""
    (task_run.home / "broken.py").write_text("1 / 0")
    PLACES.add(str(task_run.home))
    command = (*options, "--tasks", "broken")
    brief = await task_run(*command, script=script, PYTHONPATH=str(task_run.home))
    assert (brief.code, len(brief.err.splitlines())) == (2, 1)
    assert "tasks module 'broken'" in brief.err and "ZeroDivisionError" in brief.err
    full = await task_run(*command, "--debug", script=script, PYTHONPATH=str(task_run.home))
    assert full.code == 2 and "broken.py" in full.err and "Traceback" in full.err
    for name, problem in {"": "write the full name", ".x": "'.x'"}.items():
        ended = await task_run(*options, "--tasks", name, script=script)
        assert ended.code == 2
        assert f"tasks module '{name}'" in ended.err and problem in ended.err


async def test_a_worker_without_tasks_is_exit_code_2(task_run: TaskRun) -> None:
    """It says how to name some; a worker that runs only pipelines needs none."""
    ended = await task_run("--size=small", script="task-worker", NONET_TASKS="")
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert "this worker has no task classes" in ended.err and "--tasks" in ended.err
    ended = await task_run("--pipelines=none", script="task-worker", NONET_TASKS="")
    assert "no pipeline is named 'none'" in ended.err


async def test_patterns_that_leave_nothing_are_exit_code_2(task_run: TaskRun) -> None:
    """So is a fleet that would follow a backlog of which its workers take only a part."""
    ended = await task_run("--size=small", "--only", "ml:*", script="task-worker")
    assert (ended.code, "this worker would take no task" in ended.err) == (2, True), ended.err
    fleet = ("--size=small", "--max=4", "--except", "ml:*")
    ended = await task_run(*fleet, script="task-worker")
    assert (ended.code, "the same number" in ended.err) == (2, True), ended.err


async def test_a_worker_refuses_a_size_in_plain_words(task_run: TaskRun) -> None:
    """It names the value and the choices, without the words of a library."""
    ended = await task_run("--size", "tiny", script="task-worker")
    assert ended.code == 2
    assert "Error: Invalid value for '--size': 'tiny' is not one of '" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "Add", "--args", "[1]"),
        ("list",),
        ("status", "x"),
        ("queues",),
        ("workers",),
        ("groups",),
        ("pause", "--all"),
        ("resume", "--all"),
        ("paused",),
        ("delayed", "list"),
        ("config", "status"),
        ("events", "--follow"),
    ],
)
async def test_unreachable_redis_is_exit_code_3(
    task_run: TaskRun, arguments: tuple[str, ...]
) -> None:
    """Every command says so in one line without the password; `--debug` adds the traceback."""
    url = "redis://user:s3cret@127.0.0.1:1/0"
    if arguments == ("queues",):
        full = await task_run(*arguments, "--debug", NONET_REDIS_URL=url)
        assert full.code == 3 and "Traceback" in full.err and "s3cret" not in full.err
    ended = await task_run(*arguments, "--json", NONET_REDIS_URL=url)
    assert (ended.code, ended.json["error"]["exit_code"]) == (3, 3)
    assert len(ended.err.splitlines()) == 1
    assert "redis://user:***@127.0.0.1:1/0 does not answer" in ended.err
    assert "s3cret" not in ended.err + ended.out


async def test_help_is_plain_text(task_run: TaskRun) -> None:
    """Every command shows its help without frames, so that it can be searched and pasted."""
    for script, arguments in (
        ("task-run", ["dlq", "discard"]),
        ("task-worker", []),
        ("task-scheduler", []),
        ("task-run", []),
    ):
        ended = await task_run(*arguments, "--help", script=script)
        assert ended.code == 0 and "\nOptions:\n" in ended.out
        assert not set(ended.out) & set("╭│╰─┌└")
    listed = {line.split()[0] for line in ended.out.partition("Look:")[2].splitlines() if line}
    assert {"call", "submit", "list", "workers", "dlq", "db"} <= listed
