"""``task-run locks``, ``locks release`` and ``explain``: what a person sees at night."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli.errands import Add, Guarded
from cli.terminal import TaskRun

from nonet import ConcurrencyLimiter, LeaseLostError, MutexLock, NotFoundError

JOB = MutexLock("job", 7)
NAME = "lock:mutex:job:7"


async def test_locks_show_who_holds_and_who_waits(task_run: TaskRun) -> None:
    """A row for each lock; as JSON a list; `--object-type` chooses, in any spelling."""

    async with task_run.app() as app, app.hold(JOB, MutexLock("task", "x")):
        id = await app.submit(Guarded(Path("/nowhere")))
        assert (await app.broker.fetch("medium-a", "medium", 1))[0] == []
        brief = await task_run("locks")
        full = await task_run("locks", "--object-type", "Job", "--json")
    assert (brief.code, brief.err) == (0, "")
    header, first, *others = brief.out.splitlines()
    assert header.split()[:2] == ["lock", "kind"]
    assert first.startswith(NAME) and id in first and f"{os.getpid()}@" in first
    assert "ends in" not in brief.out and (", renewed" in first or ", expires in" in first)
    assert {line.split()[0] for line in others} >= {"lock:mutex:task:x", "lock:rw:job:7"}
    assert all(":job:" in row["lock"] for row in full.json["items"])


async def test_explain_names_the_first_cause(task_run: TaskRun) -> None:
    """JSON has its parts; an unknown id is exit code 4."""
    async with task_run.app() as app, app.hold(JOB):
        queued, held = await app.submit(Add(1)), await app.submit(Guarded(Path("/nowhere")))
        await app.broker.fetch("medium-a", "medium", 1)
        brief = await task_run("explain", queued)
        full = (await task_run("explain", held, "--json")).json
        assert (await app.explain(held)).cause == "lock"
    assert (brief.code, brief.err) == (0, "")
    assert brief.out == ("queued: no small worker is live\nnext: task-worker --size small\n")
    assert (full["id"], full["state"], full["cause"]) == (held, "waiting", "lock")
    assert full["lock"] == NAME
    assert f"({os.getpid()}@" in full["text"] and len(full["holders"]) == 1
    unknown = await task_run("explain", "nobody")
    assert (unknown.code, unknown.out) == (4, "") and "nobody is unknown" in unknown.err


async def test_answers_link_to_the_dashboard(task_run: TaskRun) -> None:
    """They do if its address is set; a wrong address costs only the link."""
    url = "https://jobs.example.org/nonet"
    async with task_run.app() as app:
        queued = await app.submit(Add(1))
    page = f"{url}/tasks/{queued}"
    told = await task_run("explain", queued, NONET_WEB_URL=f"{url}/")
    assert told.out.endswith(f"\npage: {page}\n")
    full = await task_run("explain", queued, "--json", NONET_WEB_URL=url)
    assert full.json["page"] == page
    assert (await task_run("overview", "--json", NONET_WEB_URL=url)).json["page"] == f"{url}/"
    wrong = await task_run("explain", queued, NONET_WEB_URL="jobs.example.org")
    assert wrong.code == 0 and "page:" not in wrong.out and "NONET_WEB_URL" in wrong.err


async def test_explain_of_a_group_names_the_command_that_shows_it(task_run: TaskRun) -> None:
    """The id of a group is not found."""
    async with task_run.app() as app:
        group = await app.client.spawn_with_callback([Add(1)], Add(2))
        ended = await task_run("explain", group)
        with pytest.raises(NotFoundError):
            await app.explain(group)
    assert ended.code == 4 and f"'task-run groups {group}' shows it" in ended.err


async def test_release_needs_force(task_run: TaskRun) -> None:
    """Without `--force` it only says what it would do."""
    async with task_run.app() as app, app.hold(JOB):
        ended = await task_run("locks", "release", NAME)
        assert (await app.stores.locks.get(NAME)).holding == 1
    assert (ended.code, ended.out) == (2, "")
    assert "would take it from a program that is not a task" in ended.err
    assert "warning: " in ended.err and "add --force" in ended.err.splitlines()[-1]


async def test_release_takes_the_lock_away(task_run: TaskRun) -> None:
    """The holder gets an error, and the waiting task is woken; an event records it."""
    async with task_run.app() as app:
        id = ""
        # A live worker: only a task that a worker could fetch keeps its place and counts as woken.
        task_run.redis.zadd("{cli}:workers", {"medium-a": 4e15})
        with pytest.raises(LeaseLostError):
            async with app.hold(JOB):
                id = await app.submit(Guarded(Path("/nowhere")))
                await app.broker.fetch("medium-a", "medium", 1)
                ended = await task_run("locks", "release", NAME, "--force", "--json")
                assert (ended.code, ended.json["woken"]) == (0, [id])
                assert [item["task"] for item in ended.json["voided"]] == ["hold"]
                await app.result(id)  # until the loss is noticed
    (event,) = (await task_run("events", "--json")).json["items"]
    assert (event["kind"], event["text"].partition(",")[0]) == ("lock-released", NAME)


async def test_release_empties_a_limiter(task_run: TaskRun) -> None:
    """It drops the slots of a limiter, and their holders continue."""
    slot = ConcurrencyLimiter("job", 9, limit=1)
    async with task_run.app() as app, app.hold(slot):
        plan = await task_run("locks", "release", slot.redis_key)
        done = await task_run("locks", "release", slot.redis_key, "--force")
        async with app.hold(slot):
            pass
    assert plan.code == 2 and "would empty limiter:conc:job:9 of 1" in plan.err
    assert "released 1 slot; the tasks that it counted continue" in done.out


@pytest.mark.parametrize("force", [(), ("--force",)])
async def test_release_refuses_a_name_that_no_held_lock_has(
    task_run: TaskRun, force: tuple[str, ...]
) -> None:
    """The exit code is 4; a key that is not encoded is explained."""
    async with task_run.app() as app, app.hold(MutexLock("job", "a:b")):
        for name, code, problem in [
            (NAME, 4, f"{NAME} is not held"),
            ("lock:mutex:job:a:b", 4, "percent-encoded as shown there (a:b is a%3Ab)"),
        ]:
            ended = await task_run("locks", "release", name, *force)
            assert (ended.code, ended.out) == (code, "") and problem in ended.err
        assert (await app.stores.locks.get("lock:mutex:job:a%3Ab")).holding == 1


async def test_locks_counts_refused_settles(task_run: TaskRun) -> None:
    """A sentence below the table counts the attempts of late owners."""
    async with task_run.app() as app:
        await app.submit(Add(1))
        ((delivery,), _) = await app.broker.fetch("small-a", "small", 1)
        assert await app.broker.settle(delivery, "done", b"") == "OK"
        task_run.redis.delete(f"{{cli}}:r:{delivery.id}")
        assert await app.broker.settle(delivery, "done", b"") == "STALE"
    assert (await task_run("locks", "--json")).err == (
        "results rejected so far: 1 by attempts that no longer owned their task, "
        "0 by attempts that had lost a lock\n"
    )
