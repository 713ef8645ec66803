"""``task-run limits|events``: limits set by hand, and who did it."""

from __future__ import annotations

import re

from cli.terminal import TaskRun

from nonet import ConcurrencyLimiter
from nonet.rules.limits import Limit, LimitAddress
from nonet.stores.namespace.leadership import Leadership


async def test_full_and_bare_names_of_a_class_are_one(task_run: TaskRun) -> None:
    """A limit or a pause by one name is ended by the other one."""
    done = await task_run("limits", "set", "Task", "errands:Add", "--concurrency", "2")
    assert done.code == 0 and "this one is for each class 'Add'" in done.err
    assert (await task_run("limits", "unset", "Task", "Add")).code == 0
    for paused, resumed in (("errands:Add", "Add"), ("Add", "errands:Add")):
        assert (await task_run("pause", "--task", paused)).code == 0
        assert f"task {paused}" in (await task_run("resume", "--task", resumed)).out
        assert (await task_run("paused", "--json")).json["items"] == []


async def test_a_limit_is_set_shown_and_unset(task_run: TaskRun) -> None:
    """`list` says who set it; `unset` restores the configured limit."""
    async with task_run.app() as app:
        term = await Leadership(app.broker, "cli").lead("a", 30, "{}") or ""
        configured = {
            LimitAddress("job", "7", "Remove"): Limit(5),
            LimitAddress("job", "default", limiter="rate"): Limit(10, 60),
        }
        await app.stores.limits.publish(term, configured, "scheduler@host 1")
    ended = await task_run("limits", "set", "Job", 7, "Remove", "--concurrency", 8)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "concurrency job 7 Remove: 8\n"
    first, second = (await task_run("limits", "list", "--json")).json["items"]
    assert (first["name"], first["limit"], first["used"]) == ("limiter:conc:job:7:Remove", 8, 0)
    assert (first["source"], first["configured"]["limit"]) == ("override", 5)
    assert re.fullmatch(r"\S+@\S+ \d+", first["by"])
    assert (second["key"], second["limit"], second["window_seconds"]) == ("default", 10, 60)
    assert (second["source"], second["by"], second["used"]) == ("configuration", "", None)
    table = await task_run("limits", "list")
    assert "override" in table.out and "configuration" in table.out
    ended = await task_run("limits", "unset", "job", 7, "Remove")
    assert (ended.code, ended.err) == (0, "concurrency job 7 Remove: as configured\n")
    first = (await task_run("limits", "show", "limiter:conc:job:7:Remove", "--json")).json
    assert (first["limit"], first["source"]) == (5, "configuration")
    events = (await task_run("events", "--json")).json["items"][::-1]
    assert [item["text"] for item in events if item["kind"].startswith("limit-")] == [
        "concurrency job 7 Remove: 5 -> 8",
        "concurrency job 7 Remove: 8 -> 5",
    ]
    ended = await task_run("limits", "unset", "job", 7, "Remove")
    assert (ended.code, ended.out) == (4, "")
    assert "concurrency job 7 Remove: no limit was set by hand" in ended.err


async def test_a_limiter_is_named_as_it_is_shown(task_run: TaskRun) -> None:
    """`set` and `unset` accept what `locks` and `explain` print."""
    for shown, field in {
        "limiter:conc:job:7:Remove": "C||job|7|Remove",
        "limiter:conc:@lhcb:job:a%3Ab%20c:Remove": "C|lhcb|job|a%3Ab%20c|Remove",
        "@lhcb:Job:7:Remove": "C|lhcb|job|7|Remove",
        "job:7": "C||job|7|",
        "limiter:conc:job:7:copy:fast": "C||job|7|",
    }.items():
        ended = await task_run("limits", "set", shown, "--concurrency", 3)
        assert ended.code == 0
        assert ("one action at most" in ended.err) == ("copy:fast" in shown)
        assert task_run.redis.hgetall("{cli}:limits") == {field: "3"}
        assert (await task_run("limits", "unset", shown)).code == 0
        assert task_run.redis.hgetall("{cli}:limits") == {}


async def test_list_has_limits_that_only_a_class_declares(task_run: TaskRun) -> None:
    """The source of a limit in use is `class` until an override replaces it."""
    slot = ConcurrencyLimiter("job", "a b", "copy", limit=1)
    async with task_run.app() as app, app.hold(slot, ConcurrencyLimiter("job", "off")):
        (row,) = (await task_run("limits", "list", "--json")).json["items"]
        assert (row["object_type"], row["key"], row["action"]) == ("job", "a b", "copy")
        assert (row["limit"], row["used"], row["source"]) == (1, 1, "class")
        await task_run("limits", "set", "job", "a b", "--concurrency", 2)
        (row,) = (await task_run("limits", "list", "--json")).json["items"]
        assert (row["limit"], row["source"], row["action"]) == (2, "override", "")


async def test_a_type_that_is_in_use_needs_no_code(task_run: TaskRun) -> None:
    """Types of limits and of locks are known; another is refused with the nearest name."""
    command = ("limits", "set", "StorageElement", "CERN DST", "--concurrency", 3)
    refused = await task_run(*command)
    assert refused.code == 2 and "Load the module that registers it with --tasks" in refused.err
    task_run.redis.set("{cli}:lock:mutex:storage_element:x", "")
    task_run.redis.hset("{cli}:limits", "C||site|default|", "9")
    ended = await task_run(*command)
    assert (ended.code, ended.err) == (0, "concurrency storage_element CERN DST: 3\n")
    assert (await task_run("limits", "set", "Site", "x", "--concurrency", 3)).code == 0
    refused = await task_run("limits", "set", "StorageElemnt", "x", "--concurrency", 3)
    assert refused.code == 2 and "Did you mean storage_element?" in refused.err


async def test_the_limit_of_a_class_needs_no_code(task_run: TaskRun) -> None:
    """It is set with a warning, because operators need not have the code."""
    command = ("limits", "set", "Task")
    ended = await task_run(*command, "Add", "--concurrency", 1, NONET_TASKS="no.such")
    assert ended.code == 0 and "warning: tasks module 'no.such' cannot be imported" in ended.err
    ended = await task_run(*command, "Add", "--concurrency", 2)
    assert (ended.code, ended.err) == (0, "concurrency task Add: 2\n")
    assert task_run.redis.hgetall("{cli}:limits") == {"C||task|Add|": "2"}
