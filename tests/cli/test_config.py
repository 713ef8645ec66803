"""``task-run config``: check a configuration, see what holds, and who applies it."""

from __future__ import annotations

import json
import re

from cli.terminal import NAMESPACE, Ended, TaskRun
from example import EXAMPLE, TASKS

from nonet import Nonet
from nonet.config.reading import parse_config
from nonet.config.schema import json_schema
from nonet.rules.limits import Limit, LimitAddress
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.publication import Publication

NOWHERE = "redis://127.0.0.1:1/0"
GOOD = "vos: [lhcb]\ncommon: {tasks: {Add: {priority: background}}}\n"


async def publish(app: Nonet, text: str, problem: str = "") -> str:
    """Do what a leader does with a configuration; its version."""
    config = parse_config(text, "/etc/nonet/c.yaml")
    term = await Leadership(app.broker, NAMESPACE).lead("a", 30, '{"name": "1@host"}') or ""
    publication, version = Publication(app.broker.client, NAMESPACE), config.fingerprint()[:12]
    assert await publication.publish(
        term, version, config.document(), source=config.source, revision="", who="me@host 1"
    )
    assert await publication.report(term, problem)
    return version


async def test_check_finds_the_shipped_example_good(task_run: TaskRun) -> None:
    """One line of summary, or one of JSON; neither Redis nor SQL is needed."""
    given = {"NONET_TASKS": TASKS, "NONET_REDIS_URL": NOWHERE}
    ended = await task_run("config", "check", EXAMPLE, **given)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        f"{EXAMPLE}: good: 4 periodic entries, 9 limits, 1 task override, 3 ceilings,"
        " VOs lhcb, gridpp\n"
    )
    found = (await task_run("config", "check", "--json", NONET_CONFIG=str(EXAMPLE), **given)).json
    assert len(found.pop("version")) == 12
    assert found == {
        "good": True,
        "problems": [],
        "warnings": [],
        "source": str(EXAMPLE),
        "revision": None,
        "entries": 4,
        "enabled": 4,
        "never_fire": 0,
        "limits": 9,
        "overrides": 1,
        "ceilings": 3,
        "vos": ["lhcb", "gridpp"],
    }


async def test_check_reports_all_problems_at_once(task_run: TaskRun) -> None:
    """A line names the file, the line, the path and the nearest name."""
    file = task_run.home / "c.yaml"
    file.write_text(
        "common:\n"
        "  periodic-tasks: {SubmitPilot: [{}]}\n"
        "  limits: {Task: {RemovFile: {ConcurrencyLimiter: {limit: 1}}}}\n"
        "vo-overrides: {lhcb: {tasks: {CreatFile: {size: small}}}}\n"
    )
    ended = await task_run("config", "check", file, NONET_TASKS=TASKS)
    assert (ended.code, ended.out) == (2, "")
    lines = sorted(ended.err.splitlines())
    for line, number, path, reason in zip(
        lines,
        (2, 3, 4),
        ("common.periodic-tasks.SubmitPilot", "common.limits.Task.RemovFile", "vo-overrides"),
        ("example_tasks:SubmitPilots?", "RemoveFile", "example_tasks:CreateFile"),
        strict=True,
    ):
        assert line.startswith(f"error: {file}:{number}: {path}")
        assert f"Did you mean {reason}" in line
    found = await task_run("config", "check", file, "--json", NONET_TASKS=TASKS)
    assert (found.code, found.err) == (2, "")
    assert not found.json["good"]
    assert sorted(found.json["problems"]) == [line.removeprefix("error: ") for line in lines]


async def test_check_warns_only_of_a_good_configuration(task_run: TaskRun) -> None:
    """Warnings are on stderr or in the JSON; a bad file has only errors."""
    file = task_run.home / "c.yaml"
    file.write_text("{}\n")
    ended = await task_run("config", "check", file, NONET_TASKS=TASKS)
    assert ended.code == 0 and "good" in ended.out
    (warning,) = ended.err.splitlines()
    assert "nothing is planned, because no VO is configured" in warning
    ended = await task_run("config", "check", file, "--json", NONET_TASKS=TASKS)
    assert (ended.err, ended.json["warnings"]) == ("", [warning.removeprefix("warning: ")])
    file.write_text("vos: lhcb\n")
    ended = await task_run("config", "check", file, NONET_TASKS=TASKS)
    assert ended.err == f"error: {file}:1: vos: must be a list, not text\n"


async def test_check_warns_of_a_rule_that_never_fires(task_run: TaskRun) -> None:
    """The warning names an entry whose rule has ended, once for all VOs."""
    file = task_run.home / "c.yaml"
    entry = "{name: %s, schedule: {class: RRuleSchedule, arg: '%s'}, args: {ce_regex: x}%s}"
    past, later = "FREQ=DAILY;UNTIL=20200101T000000Z", "FREQ=DAILY"
    entries = (("a", past, ""), ("b", later, ""), ("c", past, ", enabled: false"))
    listed = ", ".join(entry % item for item in entries)
    file.write_text(f"vos: [x, y]\ncommon: {{periodic-tasks: {{SubmitPilots: [{listed}]}}}}\n")
    ended = await task_run("config", "check", file, NONET_TASKS=TASKS)
    assert ended.code == 0
    assert "6 periodic entries (2 disabled, 2 never fire)" in ended.out
    (warning,) = ended.err.splitlines()
    assert f"SubmitPilots, entry a: never fires: RRuleSchedule('{past}" in warning


async def test_check_without_tasks_says_how_to_name_them(task_run: TaskRun) -> None:
    """The line of each class that is named does."""
    ended = await task_run("config", "check", EXAMPLE, NONET_TASKS="")
    assert ended.code == 2
    lines = [line for line in ended.err.splitlines() if "StorageElement" not in line]
    reason = "No task is registered: install a package with tasks or pass --tasks MODULE."
    assert len(lines) == 6 and all(line.endswith(reason) for line in lines)


async def test_show_says_where_each_value_comes_from(task_run: TaskRun) -> None:
    """Values are those of the class, its size or the file; limits are those that can apply."""
    asked = ("config", "show", "--task", "RemoveFile", EXAMPLE)
    found = (await task_run(*asked, "--json", NONET_TASKS=TASKS)).json
    assert (found["task"], found["vo"], found["entries"]) == ("example_tasks:RemoveFile", None, [])
    rows = {row["name"]: row for row in found["values"]}
    assert (rows["size"]["value"], rows["size"]["origin"]) == ("small", "class")
    assert (rows["isolation"]["value"], rows["isolation"]["origin"]) == ("loop", "size")
    assert rows["retry_policy"]["value"]["args"]["max_retries"] == 3
    assert rows["retry_policy"]["origin"] == "common.tasks.RemoveFile.retry-policy"
    at = "common.limits.StorageElement"
    assert [
        (row["key"], row["action"], row["limit"], row["origin"]) for row in found["limits"]
    ] == [
        ("CERN-DST", "RemoveFile", 8, f"{at}.CERN-DST.RemoveFile.ConcurrencyLimiter"),
        ("CERN-MC_DST", "RemoveFile", 5, f"{at}.CERN-MC_DST.RemoveFile.ConcurrencyLimiter"),
        ("default", "RemoveFile", 5, f"{at}.default.RemoveFile.ConcurrencyLimiter"),
    ]
    table = await task_run(*asked, NONET_TASKS=TASKS)
    assert "memory_limit  - " in table.out
    assert "ExponentialBackoff(base_delay_seconds=10.0, max_retries=3" in table.out
    (task_run.home / "c.yaml").write_text(
        "common: {tasks: {Add: {size: large}}, sizes: {large: {memory-limit: 1.5GiB}}}"
    )
    table = await task_run("config", "show", "--task", "Add", "c.yaml")
    assert re.search(r"memory_limit +1\.5 GiB +common\.sizes", table.out)


async def test_show_has_the_entries_and_limits_of_a_vo(task_run: TaskRun) -> None:
    """Arguments are shown only on request, and an unknown VO is refused."""

    async def show(task: str, *options: str) -> dict[str, list[dict[str, object]]]:
        asked = ("config", "show", EXAMPLE, "--task", task, "--json", *options)
        found: dict[str, list[dict[str, object]]] = (await task_run(*asked, NONET_TASKS=TASKS)).json
        return found

    entries = (await show("SubmitPilots", "--vo", "lhcb"))["entries"]
    assert [(row["name"], row["schedule"]) for row in entries] == [
        ("SubmitPilotsCERN", "RRuleSchedule('FREQ=HOURLY;INTERVAL=2', 'UTC')"),
        ("SubmitPilotsRAL", "CronSchedule('0 */6 * * *', 'UTC')"),
        ("SubmitPilotsOthers", "CronSchedule('@daily', 'UTC')"),
    ]
    assert {row["origin"] for row in entries} == {"vo-overrides.lhcb.periodic-tasks.SubmitPilots"}
    assert entries[0]["args"] is None
    (entry,) = (await show("SubmitPilots", "--vo", "gridpp", "--show-args"))["entries"]
    assert entry["origin"] == "common.periodic-tasks.SubmitPilots"
    assert entry["args"] == {"ce_regex": ".*", "vo": "gridpp"}
    assert len((await show("SubmitPilots"))["entries"]) == 4
    (limit,) = (await show("CheckPilotStatus", "--vo", "lhcb"))["limits"]
    assert (limit["vo"], limit["limit"], limit["window_seconds"]) == ("lhcb", 10_000, 3600)
    assert (await show("CheckPilotStatus", "--vo", "gridpp"))["limits"] == []
    ended = await task_run(
        "config", "show", EXAMPLE, "--task", "RemoveFile", "--vo", "lhbc", NONET_TASKS=TASKS
    )
    assert (ended.code, ended.out) == (4, "")
    assert ended.err == "error: VO 'lhbc' is not configured. Did you mean lhcb?\n"


async def test_show_has_the_overlap_and_the_dropped_entries(task_run: TaskRun) -> None:
    """Without a setting the overlap follows from the locks; a dropped class names its section."""
    file = task_run.home / "c.yaml"

    async def show(text: str, *options: str) -> Ended:
        file.write_text(text)
        asked = ("config", "show", file, "--task", "SubmitPilots", *options)
        return await task_run(*asked, NONET_TASKS=TASKS)

    text = "vos: [a, b]\ncommon: {periodic-tasks: {SubmitPilots: [%s]}}\n"
    (entry, _) = (await show(text % "{}", "--json")).json["entries"]
    assert entry["overlap"] == "skip"  # it locks itself out
    (entry, _) = (await show(text % "{overlap: allow}", "--json")).json["entries"]
    assert entry["overlap"] == "allow"
    found = (await show(text % "", "--json")).json
    by = "common.periodic-tasks.SubmitPilots"
    assert found["entries"] == []
    assert found["dropped"] == [{"vo": "a", "by": by}, {"vo": "b", "by": by}]
    ended = await show(text % "", "--vo", "b")
    assert f"no entries for VO b: dropped by {by}\n" in ended.out and "VO a" not in ended.out


async def test_show_refuses_unknown_classes_and_bad_files(task_run: TaskRun) -> None:
    """The exit code of a class is 4, with the nearest name; that of a file is 2."""
    ended = await task_run("config", "show", "--task", "Ad", EXAMPLE)
    assert (ended.code, ended.out) == (4, "")
    assert "unknown task 'Ad'. Did you mean errands:Add" in ended.err
    ended = await task_run("config", "show", "--task", "Add", EXAMPLE)
    assert ended.code == 2 and "SubmitPilots" in ended.err


async def test_show_without_a_file_shows_what_is_published(task_run: TaskRun) -> None:
    """Limits set by hand come first; before a publication the values are those of the class."""
    ended = await task_run("config", "show", "--task", "Add", "--json")
    first = ended.json["values"][0]
    assert (first["name"], first["value"], first["origin"]) == ("priority", "normal", "class")
    assert ended.err == "no configuration is published: task classes keep their own values\n"
    async with task_run.app() as app:
        version = await publish(app, GOOD)
        await app.stores.limits.override(LimitAddress("task", "Add"), Limit(3), "me@host 2")
    found = (await task_run("config", "show", "--task", "Add", "--json")).json
    assert found["source"] == f"version {version} from /etc/nonet/c.yaml"
    assert (found["values"][0]["value"], found["values"][0]["origin"]) == (
        "background",
        "common.tasks.Add.priority",
    )
    (limit,) = found["limits"]
    assert (limit["limit"], limit["origin"]) == (3, "set by hand, me@host 2")


async def test_schema_needs_neither_redis_nor_tasks(task_run: TaskRun) -> None:
    """`config schema` prints the JSON Schema."""
    ended = await task_run("config", "schema", NONET_REDIS_URL=NOWHERE, NONET_TASKS="no.such")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == json_schema()


async def test_status_shows_the_version_and_the_problem(task_run: TaskRun) -> None:
    """The exit code is 1 while nothing is published or the source has a problem."""
    ended = await task_run("config", "status")
    assert ended.code == 1
    assert "no configuration is published" in ended.err and "no scheduler leads" in ended.err
    async with task_run.app() as app:
        version = await publish(app, GOOD)
        ended = await task_run("config", "status", "--json")
        found = ended.json
        assert (ended.code, found["good"], found["version"]) == (0, True, version)
        assert (found["source"], found["by"]) == ("/etc/nonet/c.yaml", "me@host 1")
        assert found["leader"] == "1@host" and found["since"].endswith("Z")
        await publish(app, GOOD, problem="c.yaml:1: vos: bad\nc.yaml:2: common: worse")
    ended = await task_run("config", "status")
    assert ended.code == 1 and version in ended.out
    assert ended.err.splitlines() == ["error: c.yaml:1: vos: bad", "error: c.yaml:2: common: worse"]
    found = (await task_run("config", "status", "--json")).json
    assert not found["good"] and found["problem_since"].endswith("Z")
