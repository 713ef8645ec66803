"""``task-run history``, ``result`` and ``resubmit``."""

from __future__ import annotations

from datetime import timedelta

import redis
from cli.errands import Add, Fail, Refuse
from cli.terminal import NAMESPACE, TaskRun
from waits import WAIT_SECONDS, until

from nonet.stores.namespace import history

HOUR = timedelta(hours=1)
COLUMNS = ("id", "task", "state", "ended", "attempts", "waited", "ran", "error")


async def ended(task_run: TaskRun, id: str) -> None:
    """Wait for the end of a task, whatever it is."""

    def is_listed() -> bool:
        keys = [f"{{{NAMESPACE}}}:ended:{state}" for state in history.STATES]
        lines = [line for key in keys for line in reader.lrange(key, 0, -1)]
        return any(id.encode() in line.split(b"\t")[:2] for line in lines)

    # Envelopes are no text, which the client of `task_run` expects.
    with redis.Redis.from_url(task_run.environment["NONET_REDIS_URL"]) as reader:
        await until(is_listed, f"{id} has ended")


async def test_ended_tasks_are_listed(task_run: TaskRun) -> None:
    """The newest comes first, with times and the error; states, classes and ages select."""
    async with task_run.worker() as app:
        await app.submit(Add(1, 2), id="sum")
        await ended(task_run, "sum")
        await app.submit(Refuse("s3cret"), id="broken")
        await ended(task_run, "broken")
        await app.submit(Add(1, 2), id="gone", at_time=await app.broker.now() + HOUR)
        await app.cancel(["gone"], reason="not needed")
        listed = await task_run("history")
        assert listed.code == 0
        lines = listed.out.splitlines()
        assert lines[0].split() == [*COLUMNS]
        assert [line.split()[0] for line in lines[1:]] == ["gone", "broken", "sum"]
        assert "ValueError: told to" in lines[2] and "not needed" in lines[1]
        assert "s3cret" not in listed.out
        dead = (await task_run("history", "--state", "dead", "--json")).json["items"]
        assert [item["id"] for item in dead] == ["broken"]
        assert (dead[0]["error_type"], dead[0]["attempt"]) == ("ValueError", 1)
        of_class = (await task_run("history", "--task", "Add", "--json")).json["items"]
        assert [item["id"] for item in of_class] == ["gone", "sum"]
        assert len((await task_run("history", "--since", "1h")).out.splitlines()) == 4
        assert (await task_run("history", "--since", "0s")).err.startswith("no ended task with")
    wrong = await task_run("history", "--state", "running")
    assert wrong.code == 2 and "Input should be 'done'" in wrong.err


async def test_result_prints_the_value_or_the_error(task_run: TaskRun) -> None:
    """The error has its traceback; the history has it when the result has expired."""
    async with task_run.worker() as app:
        await app.submit(Add(1, 2), id="sum")
        shown = await task_run("result", "sum", "--timeout", WAIT_SECONDS)
        assert (shown.code, shown.out, shown.err) == (0, "3\n", "")
        found = (await task_run("result", "sum", "--json")).json
        assert (found["state"], found["has_result"], found["result"]) == ("done", True, 3)
        await app.submit(Refuse("s3cret"), id="broken")
        await ended(task_run, "broken")
    for _ in range(2):
        failed = await task_run("result", "broken")
        assert (failed.code, failed.out) == (1, "")
        assert "in execute" in failed.err and "ValueError: told to" in failed.err
        document = (await task_run("result", "broken", "--json")).json
        assert document["state"] == "dead" and "in execute" in document["traceback"]

        task_run.redis.delete(f"{{{NAMESPACE}}}:r:broken", f"{{{NAMESPACE}}}:r:sum")
    forgotten = await task_run("result", "sum")
    assert forgotten.code == 4 and "is not kept any more" in forgotten.err
    assert (await task_run("result", "never")).code == 4


async def test_a_live_task_has_no_result(task_run: TaskRun) -> None:
    """The command says so at once, and names the next one."""
    await task_run("submit", "errands:Add", "--args", "[1]", "--id", "waits")
    waits = await task_run("result", "waits")
    assert waits.code == 1 and "task-run explain waits" in waits.err
    assert (await task_run("result", "waits", "--json")).json["state"] == "queued"


async def test_a_failure_is_submitted_again_once(task_run: TaskRun) -> None:
    """A second call names the new task, even after the results have expired."""
    async with task_run.worker() as app:
        await app.submit(Refuse("s3cret"), id="broken")
        await ended(task_run, "broken")
    wrong = await task_run("resubmit", "broken", "--changes", '{"text": 7}')
    assert (wrong.code, "text: " in wrong.err) == (2, True)
    again = await task_run("resubmit", "broken", "--changes", '{"text": "changed"}')
    assert again.code == 0
    id = again.out.strip()
    shown = await task_run("status", id, "--show-args", "--json")
    assert shown.json["arguments"] == {"text": "changed"}
    assert id.startswith("again-")
    twice = await task_run("resubmit", "broken")
    assert (twice.code, twice.out) == (1, "")
    assert f"task {id} is queued" in twice.err
    async with task_run.worker() as app:
        await ended(task_run, id)
    task_run.redis.delete(*task_run.redis.keys(f"{{{NAMESPACE}}}:r:*"))
    later = await task_run("resubmit", "broken")
    assert later.code == 1 and f"'task-run resubmit {id}' submits that one" in later.err
    next = await task_run("resubmit", id, "--json")
    assert next.json["id"] == id and next.json["resubmitted_as"] != id


async def test_resubmit_refuses_what_it_cannot_submit_again(task_run: TaskRun) -> None:
    """The error names the command for it."""
    async with task_run.worker() as app:
        await app.submit(Add(1), id="sum")
        await app.submit(Fail(task_run.home / "missing"), id="letter")
        await app.submit(Refuse("x" * 6000), id="big")
        for id in ("sum", "letter", "big"):
            await ended(task_run, id)
    for id, code, problem in [
        ("sum", 1, "task sum is done"),
        ("letter", 1, "task-run dlq resubmit 1"),
        ("big", 1, "task-run submit errands:Refuse --args"),
        ("never", 4, "never"),
    ]:
        refused = await task_run("resubmit", id)
        assert refused.code == code and problem in refused.err


async def test_figures_count_the_runs_of_each_class(task_run: TaskRun) -> None:
    """A worker reports what it has counted, at the latest when it stops."""
    async with task_run.worker() as app:
        for n in range(3):
            await app.submit(Add(n), id=f"sum-{n}")
            await ended(task_run, f"sum-{n}")
        await app.submit(Refuse("s3cret"), id="broken")
        await ended(task_run, "broken")
    table = (await task_run("figures")).out.splitlines()
    assert [line.split()[:2] for line in table[1:]] == [
        ["errands:Add", "3"],
        ["errands:Refuse", "1"],
    ]
    (found,) = (await task_run("figures", "--name", "Refuse", "--since", "1d", "--json")).json[
        "items"
    ]
    assert (found["total"]["failed"], found["slot_seconds"]) == (1, 3600)
    assert found["series"][-1]["figures"]["run"]["p95"] > 0
