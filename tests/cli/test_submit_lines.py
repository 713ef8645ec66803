"""``task-run submit`` with tasks from stdin, one JSON object per line."""

from __future__ import annotations

import json
from typing import Any

from cli.terminal import NAMESPACE, TaskRun


def lines(*items: Any) -> str:
    """The input with one line for each item."""
    return "".join(f"{json.dumps(item)}\n" for item in items)


async def test_each_line_is_a_task(task_run: TaskRun) -> None:
    """Fields mean the same as options; the ids are printed in the order of the lines."""
    given = lines(
        {"task": "Add", "args": [1]},
        {"task": "errands:Add", "kwargs": {"a": 1, "b": 2}, "id": "mine", "labels": {"vo": "x"}},
        {"task": "Add", "args": [2], "id": "later", "delay": 1000, "start_by": 2000},
        {"task": "Add", "args": [2], "id": "fixed", "at": "2099-01-01"},
        {"task": "Add", "args": [2], "id": "spelt", "delay": "2h"},
    )
    ended = await task_run("submit", input=f"\n{given}\n")
    first, *others = ended.out.split()
    assert (ended.code, ended.err, others) == (0, "", ["mine", "later", "fixed", "spelt"])
    found = {item["id"]: item for item in (await task_run("list", "--json")).json["items"]}
    assert found.keys() == {first, *others}
    assert found["fixed"]["due"] == "2099-01-01T00:00:00Z"
    assert [found[id]["state"] for id in (first, *others)] == ["queued"] * 2 + ["delayed"] * 3


async def test_lines_with_known_ids_create_no_task(task_run: TaskRun) -> None:
    """They can be submitted again; the command says how many were known."""
    given = [{"task": "Add", "args": [n], "id": f"add-{n}"} for n in range(3)]
    assert (await task_run("submit", input=lines(*given[:2]))).err == ""
    ended = await task_run("submit", input=lines(*given))
    assert (ended.code, ended.out.split()) == (0, ["add-0", "add-1", "add-2"])
    assert ended.err == "2 of 3 were submitted before: they are the same tasks\n"
    ended = await task_run("submit", "--json", input=lines(*given))
    assert ended.json[0] == {"line": 1, "id": "add-0", "created": False}
    assert len(task_run.keys("t:*")) == 3


async def test_an_invalid_line_submits_nothing(task_run: TaskRun) -> None:
    """Each is named with its reason, whatever the lines before and after are."""
    cases = {
        '{"task"': "Input data was truncated",
        "7": 'Write an object, as in {"task"',
        '{"args": []}': "missing required field `task`",
        '{"task": "Add", "label": {}}': "unknown field `label` Did you mean labels?",
        '{"task": "Add", "id": 7}': "Expected `str | null`, got `int` - at `$.id`",
        '{"task": "Ad"}': "Did you mean errands:Add?",
        '{"task": "Add"}': "errands:Add: a",
        '{"task": "Add", "args": [1], "id": "a b"}': "errands:Add: ",
        '{"task": "Add", "args": [1], "at": "soon"}': "at 'soon' is not ISO 8601",
        '{"task": "Add", "args": [1], "at": "+1h"}': "for a time from now use delay",
        '{"task": "Add", "args": [1], "delay": -1}': "delay: '-1.0' is not a duration",
        '{"task": "Add", "args": [1], "labels": {"size": "tiny"}}': "tiny",
        '{"task": "Add", "args": [1], "start_by": -1}': "start_by",
    }
    good = lines({"task": "Add", "args": [1]})
    bad = "".join(f"{line}\n" for line in cases)
    ended = await task_run("submit", input=f"{good * 600}{bad}{good}")
    assert (ended.code, ended.out) == (2, "")
    *shown, summary = ended.err.splitlines()
    for number, (line, problem) in enumerate(zip(shown, cases.values(), strict=True), start=601):
        assert line.startswith(f"error: line {number}: ") and problem in line
    assert summary == "error: 13 lines are invalid of 614; nothing was submitted"
    assert task_run.keys("t:*") == set()


async def test_many_invalid_lines_are_counted(task_run: TaskRun) -> None:
    """The first ones are shown, and JSON has all."""
    ended = await task_run("submit", "--json", input='{"task": "Gone"}\n' * 50)
    assert ended.code == 2 and len(ended.json) == 50 and ended.json[49]["line"] == 50
    assert len(ended.err.splitlines()) == 22 and "and 30 more lines" in ended.err


async def test_a_ceiling_stops_the_submission(task_run: TaskRun) -> None:
    """Ids of accepted tasks are printed, refused lines are named, and the rest is not sent."""
    task_run.redis.hset(f"{{{NAMESPACE}}}:ceilings", mapping={"stream:normal:small": 510})
    task_run.redis.set(f"{{{NAMESPACE}}}:capped", "1")
    given = lines(*({"task": "Add", "args": [1], "id": f"add-{n}"} for n in range(1, 1501)))
    ended = await task_run("submit", input=given)
    accepted = ended.out.split()
    refused = [line for line in ended.err.splitlines() if line.startswith("error: line ")]
    assert ended.code == 1 and accepted == [f"add-{n}" for n in range(1, 511)]
    assert len(refused) == 490 and refused[0].startswith("error: line 511: ")
    assert "stopped at line 1000: 990 of 1500 tasks are not known to be submitted" in ended.err
    assert task_run.keys("t:*") == {f"t:{id}" for id in accepted}


async def test_empty_input_is_no_error(task_run: TaskRun) -> None:
    """The program that makes the lines may have had nothing to do."""
    ended = await task_run("submit", input="\n")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "stdin has no line, so nothing was submitted\n"
