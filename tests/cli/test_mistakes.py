"""Command lines that are refused: exit code 2, the reason on stderr, and nothing is changed."""

from __future__ import annotations

import shlex

import pytest
from cli.errands import Add
from cli.terminal import TaskRun

MISTAKES = {
    "call": """
call Ad                     => unknown task 'Ad'. Did you mean errands:Add
call Add --args '["x"]'     => a: Input should be a valid integer
call Picky --args [-1]      => n is negative
""",
    "submit": """
submit Ad                   => unknown task 'Ad'. Did you mean errands:Add
submit Add --args [1        => errands:Add: --args is not JSON
submit Add --args '{}'      => --args must be an array
submit Add --kwargs [1]     => --kwargs must be an object
submit Add --args '["x"]'   => a: Input should be a valid integer
submit Add --args [1] --kwargs '{"a": 1}' => a: given by position and by name
submit Add --args [1] --tasks no.such     => no.such
submit Add --args [1] --namespace 'a b'   => NONET_NAMESPACE
submit Add --args [1] --at tomorrow       => --at 'tomorrow' is not ISO 8601
submit Add --args [1] --at +60            => for a time from now use --delay
submit Add --args [1] --delay 1e999       => --delay: '1e999' is not a duration
submit Add --args [1] --delay 99999d      => is more than 100 years
submit Add --args [1] --delay 9999d       => delay: must be seconds or a timedelta
submit Add --args [1] --delay 60 --at 2099-01-01 => pass at_time or delay, not both
submit Add --args [1] --label x           => --label 'x' must be NAME=VALUE
submit Add --args [1] --label priority=soon => 'soon' is not a valid Priority
submit Add --args [1] --id 'a b'          => id 'a b'
submit --args [1]           => --args: name the class of the one task
submit --id x               => --id: name the class of the one task
submit --wait 0             => --wait: name the class of the one task
""",
    "cancel": """
cancel                      => which tasks? Name them
cancel a --group g          => give either ids, or --group
cancel a --task Add         => give either ids, or --group
cancel --group g --label vo=lhcb => give either ids, or --group
cancel --label vo           => must be NAME=VALUE
cancel --task Add           => nothing was cancelled. Add --yes
cancel --label run=1        => nothing was cancelled. Add --yes
delayed cancel              => which tasks? Name them
delayed cancel a --all      => named tasks exclude
delayed cancel --label vo   => must be NAME=VALUE
""",
    "pause": """
pause                       => which tasks? Give --stream
pause --all --task Add      => --all excludes --stream
pause --stream backgroud:small => Did you mean background?
pause --stream small        => expected PRIORITY:SIZE
resume --task 'no name'     => must be CATEGORY:CLASS
resume                      => which tasks? Give --stream
pause --pipeline 'a b'      => is not the name of a pipeline
""",
    "dlq": """
dlq resubmit                => which letters?
dlq discard                 => which letters?
dlq discard --limit 5       => which letters?
dlq resubmit 1 --all        => leave out the rows or the options
dlq discard 1 --reason crash => leave out the rows or the options
dlq resubmit 1 --dry-run    => leave out the rows or the options
dlq resubmit --status DISPATCHED => add --again
dlq resubmit --status FAILED => have rows of their own
dlq list --task Fall        => unknown task 'Fall'
dlq discard --older-than 30   => '30' has no unit; write 30d, 30h, 30m or 30s
dlq discard --older-than soon => is not a duration
dlq discard --older-than -3d => is not a duration
dlq discard --older-than 999999999999d => more than 100 years
quarantine discard          => which entries?
quarantine retry            => which entries?
quarantine retry 1-1 --all  => named entries exclude --all
""",
    "limits": """
limits set Job 7            => nothing to set: give --concurrency, --rate or --off
limits set Job 7 --concurrency 0 => --concurrency: must be a whole number, 1 at least
limits set Job 7 --concurrency x => --concurrency: must be a whole number
limits set Job 7 --rate 5   => --rate needs --window SECONDS
limits set Job 7 --rate 5 --window 0 => --window: must be a number of seconds
limits set Job 7 --concurrency 5 --window 1 => --window needs --rate
limits set Job 7 --rate off --window 1 => --window needs --rate
limits set Job 7 --off --rate 5 => --off sets both to unlimited
limits set Job '' --off     => KEY must not be empty
limits set Job 7 '' --off   => ACTION must not be empty
limits set Job 7 --off --vo '' => --vo must not be empty
limits set 'no type' 7 --off => unknown object type 'no type', known are
limits set Jbo 7 --off      => Did you mean job?
limits set Job --off        => KEY is missing: give it after 'Job', or give the name of a limiter
limits set lock:mutex:job:7 --off => unknown object type 'lock', known are
limits set limiter:rate:job:7 --concurrency 1 => is a rate limiter: give --rate
limits set limiter:conc:@a:job:7 --concurrency 1 --vo b => is of VO a
limits unset Job ''         => must not be empty
limits unset Job 7 ''       => must not be empty
limits unset Job 7 --vo ''  => must not be empty
""",
    "others": """
events --kind limits-set    => 'limits-set' is not a kind of event. Did you
events --kind nonsense      => Kinds: ceilings-published,
events --kind x --follow    => 'x' is not a kind of event
list --state finished       => 'finished' is not one of '
dlq list --status tiny      => Error: Invalid value for '--status': 'tiny' is not one of '
tenants --sort size         => must be one of tasks, name
config check                => nothing to check: give FILE, or set NONET_CONFIG
config check nowhere.yaml   => nowhere.yaml: cannot be read: No such file
config check http://h/c.yaml => is not a supported source
web password alice          => too short
web password 'alice smith'  => is not a name
web token ci --role boss    => 'boss' is not one of
locks release leader        => is not the name of a lock
""",
}


@pytest.mark.parametrize("group", MISTAKES)
async def test_a_wrong_command_line_changes_nothing(task_run: TaskRun, group: str) -> None:
    """The exit code is 2, and the error says what is wrong."""
    async with task_run.app() as app:
        await app.submit(Add(1), id="a", labels={"run": 1})
        before = task_run.keys()
        for line in MISTAKES[group].strip().splitlines():
            command, problem = line.split(" => ")
            given = '{"task": "Add", "args": [1]}\n' if group == "submit" else "short\n"
            ended = await task_run(*shlex.split(command), input=given)
            assert (ended.code, ended.out) == (2, ""), command
            assert problem.strip() in ended.err, command
        assert task_run.keys() == before
        assert (await app.status("a")).state == "queued"


NOTHING = """
delayed list --task Guarded => no task is delayed with task Guarded
dlq resubmit --reason crash => no dead letter matches
events                      => no event
figures                     => no worker has run a task since then
history --state expired => no ended task with state expired
list --task No --label a=7 --state waiting => no live task with task No, label a=7, state waiting
locks                       => no lock is held or waited for
locks --object-type Bogus   => no lock of object type 'Bogus' is held or waited for
paused                      => nothing is paused
pipelines list              => no process has reported a pipeline: task-worker --pipelines NAME
quarantine discard --all    => the quarantine is empty
quarantine retry --all      => the quarantine is empty
workers                     => no worker is registered
workflows                   => no workflow
"""


async def test_a_command_that_finds_nothing_says_so(task_run: TaskRun) -> None:
    """That is no error: stdout is empty, or an empty list as JSON."""
    for line in NOTHING.strip().splitlines():
        command, said = (part.strip() for part in line.split(" => "))
        ended = await task_run(*command.split())
        assert (ended.code, ended.out, ended.err) == (0, "", f"{said}\n"), command
        printed = (await task_run(*command.split(), "--json")).json
        assert (printed["items"] if isinstance(printed, dict) else printed) == [], command


async def test_a_class_that_is_not_registered_here_is_a_warning(task_run: TaskRun) -> None:
    """Its code may be elsewhere, or its name may be mistyped; that of a known one is silent."""
    for command in (
        "pause --task errands:Describe",
        "delayed list --task Describe",
        "delayed cancel --task Describe",
        "delayed cancel --dry-run --task Describe",
        "limits set Task Describe --concurrency off",
    ):
        assert "warning" not in (await task_run(*command.split())).err, command
        wrong = await task_run(*command.replace("Desc", "Des").split())
        assert wrong.code == 0, command
        assert "Desribe' is not registered here. Did you mean " in wrong.err, command


@pytest.mark.parametrize(
    ("arguments", "kind", "said", "code"),
    [
        (["status", "nobody"], "NotFoundError", "nothing is known of task nobody", 4),
        (["groups", "nobody"], "NotFoundError", "nobody", 4),
        (["explain", "nobody"], "NotFoundError", "nobody is unknown", 4),
        (["workflows", "show", "w"], "NotFoundError", "workflow 'w' is unknown", 4),
        (["pipelines", "show", "v"], "NotFoundError", "pipeline 'v' (reported: none)", 4),
        (["cancel"], "ConfigurationError", "which tasks?", 2),
        (["status"], "MissingParameter", "Missing argument 'ID'", 2),
        (["list", "--state", "odd"], "BadParameter", "'odd' is not one of", 2),
        (["locks", "release", "lock:mutex:job:7"], "NotFoundError", "is not held", 4),
        (["nothing"], "UsageError", "No such command", 2),
    ],
)
async def test_a_failure_is_json_for_programs(
    task_run: TaskRun, arguments: list[str], kind: str, said: str, code: int
) -> None:
    """With `--json` stdout has one line; people read stderr as before."""
    ended = await task_run(*arguments, "--json")
    assert ended.code == code and said in ended.err
    error = ended.json["error"]
    assert error.keys() == {"type", "message", "exit_code"}
    assert (error["type"], error["exit_code"]) == (kind, code) and said in error["message"]
