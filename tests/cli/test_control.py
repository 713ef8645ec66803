"""``task-run pause|resume|paused`` and what others say of paused work."""

from __future__ import annotations

from cli.errands import Add
from cli.terminal import TaskRun
from waits import WAIT_SECONDS


async def test_pauses_are_listed_until_they_are_resumed(task_run: TaskRun) -> None:
    """The list says since when, by whom and why."""
    ended = await task_run(
        "pause", "--stream", "background:*", "--task", "Add", "--reason", "disk full"
    )
    words = "stream background:small, stream background:medium, stream background:large, task Add"
    assert (ended.code, ended.out) == (0, f"paused: {words}\n")
    listed = await task_run("paused", "--json")
    streams = [f"stream:background:{size}" for size in ("large", "medium", "small")]
    assert [item["what"] for item in listed.json["items"]] == [*streams, "task:Add"]
    people = await task_run("paused")
    assert "stream background:small" in people.out and "disk full" in people.out
    resumed = await task_run("resume", "--stream", "background:small", "--task", "Add")
    assert (resumed.code, resumed.out) == (0, "resumed: stream background:small, task Add\n")
    assert "Still paused" in resumed.err and "--stream background:large" in resumed.err
    assert (await task_run("resume", "--stream", "*:*", "--json")).json["resumed"] == [
        "stream:background:medium",
        "stream:background:large",
    ]
    assert (await task_run("paused")).err == "nothing is paused\n"
    events = (await task_run("events", "--json")).json["items"][::-1]
    assert [item["kind"] for item in events] == ["pause", "resume", "resume"]


async def test_only_resume_all_ends_a_pause_of_everything(task_run: TaskRun) -> None:
    """`--all` is a pause of its own."""
    assert (await task_run("pause", "--all", "--json")).json["items"][0]["what"] == "all"
    missed = await task_run("resume", "--stream", "normal:small")
    assert missed.code == 4
    assert "stream normal:small: not paused" in missed.err and "--all" in missed.err
    assert (await task_run("resume", "--all")).out == "resumed: everything\n"
    assert (await task_run("resume", "--all")).code == 4


async def test_other_commands_name_the_pause(task_run: TaskRun) -> None:
    """`explain` names it first, `queues` marks it, and the doctor finds no problem."""
    async with task_run.worker() as app:
        await task_run("pause", "--task", "Add", "--reason", "by test")
        handle = await app.submit(Add(1))
        parked = await task_run("explain", handle)
        assert parked.code == 0 and "task Add is paused since" in parked.out
        assert "by test\nnext: task-run resume --task Add\n" in parked.out
        await task_run("pause", "--stream", "normal:small")
        told = (await task_run("explain", handle, "--json")).json
        assert told["cause"] == "paused" and told["next"].endswith("--stream normal:small")
        queues = await task_run("queues")
        paused = [line for line in queues.out.splitlines() if "  yes  " in line]
        assert [line.split()[0] for line in paused] == ["normal:small"]
        assert "task Add; see 'task-run paused'" in queues.err
        assert (await task_run("doctor", "--wait", "0")).code == 0
        await task_run("resume", "--stream", "normal:small", "--task", "Add")
        assert await handle.result(timeout=WAIT_SECONDS) == 1
