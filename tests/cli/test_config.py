"""``task-run config``: check a configuration, see what holds, and who applies it."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from cli.terminal import NAMESPACE, Ended, TaskRun
from config.json_schema import Validator
from example import EXAMPLE, TASKS

from nonet import Nonet
from nonet.config.reading import parse_config
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


async def test_check_tells_all_problems_at_once(task_run: TaskRun) -> None:
    """Of entries, limits and overrides alike: file, line, path, reason and what is near."""
    file = task_run.home / "c.yaml"
    file.write_text(
        """\
common:
  periodic-tasks:
    SubmitPilot: [{}]
  limits:
    Task:
      RemovFile: {ConcurrencyLimiter: {limit: 1}}
    StorageElment:
      a: {ConcurrencyLimiter: {limit: 1}}
vo-overrides:
  lhcb:
    tasks:
      CreatFile: {size: small}
      RemoveFile: {size: small}
"""
    )
    ended = await task_run("config", "check", file, NONET_TASKS=TASKS)
    assert (ended.code, ended.out) == (2, "")
    lines = ended.err.splitlines()
    assert len(lines) == 4
    for number, path, reason in [
        (3, "common.periodic-tasks.SubmitPilot", "Did you mean example_tasks:SubmitPilots?"),
        (6, "common.limits.Task.RemovFile", "Did you mean RemoveFile"),
        (7, "common.limits.StorageElment", "Did you mean storage_element"),
        (12, "vo-overrides.lhcb.tasks.CreatFile", "Did you mean example_tasks:CreateFile"),
    ]:
        (line,) = [line for line in lines if f": {path}: " in line]
        assert line.startswith(f"error: {file}:{number}: ") and reason in line
    found = await task_run("config", "check", file, "--json", NONET_TASKS=TASKS)
    assert (found.code, found.err) == (2, "")
    assert found.json == {
        "good": False,
        "problems": [line.removeprefix("error: ") for line in lines],
    }


async def test_check_makes_every_task_once(task_run: TaskRun) -> None:
    """Arguments that a class refuses are problems of the file, each entry's own."""
    file = task_run.home / "c.yaml"
    file.write_text(
        "vos: [lhcb]\ncommon:\n  periodic-tasks:\n    SubmitPilots:\n"
        "      - {name: a, args: {ce_regex: '('}}\n      - {name: b, args: {ce_rgex: x}}\n"
    )
    ended = await task_run("config", "check", file, NONET_TASKS=TASKS)
    at = "common.periodic-tasks.SubmitPilots"
    assert ended.code == 2
    assert ended.err.splitlines() == [
        f"error: {file}:5: {at}[0].args.ce_regex: must be a valid regular expression",
        f"error: {file}:6: {at}[1].args.ce_rgex: unknown argument 'ce_rgex', known are ce_regex."
        " Did you mean ce_regex?",
    ]


async def test_check_warns_only_beside_a_good_configuration(task_run: TaskRun) -> None:
    """What does not run is told once, on stderr or as JSON; of a bad file only its mistakes."""
    file = task_run.home / "c.yaml"
    warning = (
        "example_tasks:SubmitPilots: nothing is planned, because no VO is configured: list them"
        " under vos"
    )
    file.write_text("{}\n")
    ended = await task_run("config", "check", file, NONET_TASKS=TASKS)
    assert (ended.code, ended.err) == (0, f"warning: {warning}\n") and "good" in ended.out
    ended = await task_run("config", "check", file, "--json", NONET_TASKS=TASKS)
    assert (ended.err, ended.json["warnings"]) == ("", [warning])
    file.write_text("vos: lhcb\n")
    ended = await task_run("config", "check", file, NONET_TASKS=TASKS)
    assert ended.err == f"error: {file}:1: vos: must be a list, not text\n"


async def test_check_warns_of_a_rule_that_never_fires(task_run: TaskRun) -> None:
    """An ended rule is good and named, once for all VOs; a date that never comes is refused."""
    file = task_run.home / "c.yaml"
    entry = "{name: a, schedule: {class: %s, arg: '%s'}, args: {ce_regex: '.*'}%s}"
    ended_rule = ("RRuleSchedule", "FREQ=DAILY;UNTIL=20200101T000000Z")
    others = [
        entry.replace("name: a", "name: b") % ("CronSchedule", "0 0 29 2 *", ""),
        entry.replace("name: a", "name: c") % (*ended_rule, ", enabled: false"),
    ]
    text = "vos: [lhcb]\ncommon:\n  periodic-tasks:\n    SubmitPilots:\n"
    entries = [entry % (*ended_rule, ""), *others]
    file.write_text(text + "".join(f"    - {item}\n" for item in entries))
    ended = await task_run("config", "check", file, NONET_TASKS=TASKS)
    assert ended.code == 0
    assert "3 periodic entries (1 disabled, 1 never fires)" in ended.out
    (warning,) = ended.err.splitlines()
    assert "SubmitPilots, entry a: never fires: RRuleSchedule('FREQ=DAILY;UNTIL=2020" in warning
    assert (await task_run("config", "check", file, "--json", NONET_TASKS=TASKS)).json[
        "never_fire"
    ] == 1
    file.write_text(f"{text}    - {entry % ('CronSchedule', '0 0 30 2 *', '')}\n")
    ended = await task_run("config", "check", file, NONET_TASKS=TASKS)
    assert ended.code == 2 and "no date matches" in ended.err


async def test_check_without_tasks_says_what_is_missing(task_run: TaskRun) -> None:
    """Who forgot the modules hears of them, at each class that is named."""
    ended = await task_run("config", "check", EXAMPLE, NONET_TASKS="")
    assert ended.code == 2
    lines = [line for line in ended.err.splitlines() if "StorageElement" not in line]
    assert len(lines) == 6
    reason = "No task is registered: install a package with tasks or pass --tasks MODULE."
    assert all(line.endswith(reason) for line in lines)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("nowhere.yaml", "nowhere.yaml: cannot be read: No such file"),
        ("http://127.0.0.1/c.yaml", "is not a supported source"),
        (None, "nothing to check: give FILE, or set NONET_CONFIG"),
    ],
)
async def test_check_says_what_it_cannot_read(
    task_run: TaskRun, file: str | None, reason: str
) -> None:
    """No file, no source and no such file are one line and exit code 2."""
    ended = await task_run("config", "check", *([file] if file else []))
    assert (ended.code, ended.out) == (2, "")
    assert reason in ended.err and len(ended.err.splitlines()) == 1


async def test_check_looks_at_the_newest_commit(task_run: TaskRun) -> None:
    """A branch is fetched anew, a bad commit is refused although the one before was good."""
    repository = task_run.home / "repository"

    def commit(text: str) -> None:
        repository.mkdir(exist_ok=True)
        (repository / "c.yaml").write_text(text)
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "x"]):
            subprocess.run(["git", *who, *command], cwd=repository, check=True)

    commit(GOOD)
    source = f"git+file://{repository}#main"
    ended = await task_run("config", "check", source, "--json")
    assert ended.code == 0 and len(ended.json["revision"]) == 40
    commit("vos: 5")
    ended = await task_run("config", "check", source)
    assert ended.code == 2 and "c.yaml:1: vos: must be a list" in ended.err


async def test_show_tells_what_holds_and_where_it_comes_from(task_run: TaskRun) -> None:
    """Values of the class and of the file, limits that can apply, those of a VO among them."""
    ended = await task_run(
        "config", "show", "--task", "RemoveFile", EXAMPLE, "--json", NONET_TASKS=TASKS
    )
    found = ended.json
    assert (found["task"], found["vo"], found["entries"]) == ("example_tasks:RemoveFile", None, [])
    at = "common.tasks.RemoveFile"
    assert {row["name"]: (row["value"], row["from"]) for row in found["values"]} == {
        "priority": ("background", f"{at}.priority"),
        "size": ("small", "class"),
        "retry_policy": (
            {
                "class": "ExponentialBackoff",
                "args": {"base_delay_seconds": 10, "max_retries": 3, "cap": None, "jitter": 0},
            },
            f"{at}.retry-policy",
        ),
        "soft_timeout": (60, f"{at}.soft-timeout"),
        "hard_timeout": (90, f"{at}.hard-timeout"),
        "dlq_eligible": (True, f"{at}.dlq-eligible"),
        "isolation": ("loop", "size"),
        "memory_limit": (None, "class"),
        "cpu_limit": (None, "class"),
    }
    at = "common.limits.StorageElement"
    assert [(row["key"], row["action"], row["limit"], row["from"]) for row in found["limits"]] == [
        ("CERN-DST", "RemoveFile", 8, f"{at}.CERN-DST.RemoveFile.ConcurrencyLimiter"),
        ("CERN-MC_DST", "RemoveFile", 5, f"{at}.CERN-MC_DST.RemoveFile.ConcurrencyLimiter"),
        ("default", "RemoveFile", 5, f"{at}.default.RemoveFile.ConcurrencyLimiter"),
    ]
    table = await task_run("config", "show", "--task", "RemoveFile", EXAMPLE, NONET_TASKS=TASKS)
    assert "memory_limit  - " in table.out
    assert "ExponentialBackoff(base_delay_seconds=10.0, max_retries=3" in table.out


async def test_show_tells_where_it_runs_and_what_it_may_take(task_run: TaskRun) -> None:
    """With a limit that people can read, of its size where its class has none."""
    (task_run.home / "c.yaml").write_text(
        "common: {tasks: {Add: {size: large, cpu-limit: 5}},"
        " sizes: {large: {memory-limit: 1.5GiB}}}"
    )
    asked = ("config", "show", "--task", "Add", "c.yaml")
    found = (await task_run(*asked, "--json")).json["values"]
    assert [(row["value"], row["from"]) for row in found[-3:]] == [
        ("fresh", "size"),
        (1536 * 2**20, "common.sizes.large.memory-limit"),
        (5, "common.tasks.Add.cpu-limit"),
    ]
    assert re.search(r"memory_limit +1\.5 GiB +common\.sizes", (await task_run(*asked)).out)


async def test_show_tells_what_holds_for_a_vo(task_run: TaskRun) -> None:
    """The entries and limits of that VO; arguments only when asked for; no unknown VO."""

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
    assert {row["from"] for row in entries} == {"vo-overrides.lhcb.periodic-tasks.SubmitPilots"}
    assert "args" not in entries[0]
    (entry,) = (await show("SubmitPilots", "--vo", "gridpp", "--show-args"))["entries"]
    assert entry["from"] == "common.periodic-tasks.SubmitPilots"
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


async def test_show_tells_what_occurrences_do(task_run: TaskRun) -> None:
    """What follows from the locks where nothing is said, and who drops a class."""
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


async def test_show_knows_classes_or_says_what_is_near(task_run: TaskRun) -> None:
    """Exit code 4 and the nearest name; a bad file is exit code 2."""
    ended = await task_run("config", "show", "--task", "Ad", EXAMPLE)
    assert (ended.code, ended.out) == (4, "")
    assert "unknown task 'Ad'. Did you mean errands:Add" in ended.err
    ended = await task_run("config", "show", "--task", "Add", EXAMPLE)
    assert ended.code == 2 and "SubmitPilots" in ended.err


async def test_show_without_a_file_tells_what_is_published(task_run: TaskRun) -> None:
    """What the leader published, and limits by hand above it; before, the class alone."""
    ended = await task_run("config", "show", "--task", "Add", "--json")
    assert ended.json["values"][0] == {"name": "priority", "value": "normal", "from": "class"}
    assert ended.err == "no configuration is published: task classes keep their own values\n"
    async with task_run.app() as app:
        version = await publish(app, GOOD)
        await app.stores.limits.override(LimitAddress("task", "Add"), Limit(3), "me@host 2")
    found = (await task_run("config", "show", "--task", "Add", "--json")).json
    assert found["source"] == f"version {version} from /etc/nonet/c.yaml"
    assert (found["values"][0]["value"], found["values"][0]["from"]) == (
        "background",
        "common.tasks.Add.priority",
    )
    (limit,) = found["limits"]
    assert (limit["limit"], limit["from"]) == (3, "set by hand, me@host 2")


async def test_schema_is_what_the_example_follows(task_run: TaskRun) -> None:
    """It is JSON, needs nothing, and describes the example's mistakes away."""
    ended = await task_run("config", "schema", NONET_REDIS_URL=NOWHERE, NONET_TASKS="no.such")
    assert (ended.code, ended.err) == (0, "")
    validator = Validator(json.loads(ended.out))
    assert validator.problems({"vos": ["lhcb"], "common": {"tasks": {}}}) == []
    assert validator.problems({"common": {"task": {}}}) == [".common.task: not allowed"]


async def test_status_tells_what_holds_and_what_is_wrong(task_run: TaskRun) -> None:
    """Version, source, since when, by whom; the problem of the source; exit code 1 with one."""
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
