"""One read model: a command prints what the API answers, for each noun."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from runpy import run_path
from typing import Any

from cli.errands import Add
from cli.terminal import NAMESPACE, TaskRun
from web.conftest import Fixed, asking, principal

from nonet import ConcurrencyLimiter, Nonet, chain
from nonet.config.web_settings import WebSettings
from nonet.rules.letters import NewDeadLetter
from nonet.rules.limits import Limit, LimitAddress
from nonet.rules.pipelines import Replica, RowFigures
from nonet.rules.vectors import vector
from nonet.stores.namespace.periodic import Change
from nonet.stores.queue.leases import BeatReport, Counted, Leases
from nonet.stores.sql.audit import AuditEntry
from nonet.web.app import create_app
from nonet.web.resources import resources

# What a command prints with --json, and the path below /api/v1 that answers the same.
FACES = """
limits list                             /limits
limits list --text copy --limit 1       /limits?text=copy&limit=1
limits show limiter:conc:job:7          /limits/limiter:conc:job:7
limits ceilings                         /ceilings
dlq list                                /dead-letters
dlq list --task Fail --newer-than 1d    /dead-letters?task=Fail&newer_than=1d
dlq list --letter 1                     /dead-letters?letter=1
dlq clusters                            /dead-letters/clusters
dlq show 1                              /dead-letters/1
workflows                               /workflows
workflows show nightly                  /workflows/nightly
workflows steps nightly --state blocked /workflows/nightly/steps?state=blocked
list --state queued --limit 1           /tasks?state=queued&limit=1
list --task-id later --task-id x        /tasks?task_id=later&task_id=x
explain later                           /tasks/later/explanation
status ended                            /tasks/ended
result dead                             /tasks/dead/result
classes --text Add                      /classes?text=Add
history --task Add                      /history?task=Add
history --task-id ended                 /history?task_id=ended
history ended                           /history/ended
delayed list --task Add                 /delayed?task=Add
queues                                  /queues
queues normal:small                     /queues/normal/small
groups --limit 1                        /groups?limit=1
groups {group}                          /groups/{group}
groups {group} --children               /groups/{group}/children
events --kind limit-set --limit 1       /events?kind=limit-set&limit=1
audit     --who ann --since 1h          /audit?who=ann&since=1h
workers --size small                    /workers?size=small
workers 4711@host                       /workers/4711@host
locks                                   /locks
locks --object-type Job --show 1        /locks?object_type=Job&show=1
locks show limiter:conc:job:7           /locks/limiter:conc:job:7
logs dead                               /tasks/dead/log
paused                                  /pauses
quarantine list                         /quarantine
quarantine show 1-1                     /quarantine/1-1
quarantine reveal 1-1                   /quarantine/1-1/content
schedules list                          /schedules
schedules list --state planned          /schedules?state=planned
schedules show Nightly                  /schedules/errands:Nightly%7C%7Cdefault
schedules leader                        /leader
schedules preview --cron @yearly        /schedules/preview?kind=cron&rule=@yearly
config status                           /configuration
config show --task Add                  /configuration/Add
tenants --since 2h --sort behind        /tenants?since=2h&sort=behind
figures --since 2h                      /figures?since=2h
figures --by all --since 1d             /figures?by=all&since=1d
pipelines list                          /pipelines
pipelines show volumes                  /pipelines/volumes
"""
# Other reads of the API, and why no command prints the same.
OTHERS = {
    "/overview": "it changes between two reads",
    "/dead-letters/bulk": "a change of many letters runs in the process of task-web",
    "/dead-letters/bulk/{id}": "the same",
    "/filters": "they are for pages",
    "/tasks/{id:path}/timeline": "its page draws it; status and logs print the same in words",
    "/tasks/{id:path}/arguments": "status --show-args adds them to the task",
    "/dead-letters/{row}/arguments": "dlq show --show-args adds them to the letter",
}
# Operations that one face lacks, and why.
ON_ONE_FACE = {
    "classes.activity": "the page of classes; commands print the figures and the live tasks",
    "classes.get": "the same",
    "dead_letters.measure": "the preview of a page; command and API have a dry run",
    "dead_letters.resubmit": "of one letter; the command takes one row, or many",
    "filters.find": "filters are for pages",
    "filters.save": "the same",
    "filters.remove": "the same",
    "groups.cancel": "'task-run cancel --group' waits for the tasks, too",
    "history.preview_resubmit": "a page; failures of a class are submitted again as dead letters",
    "history.resubmit_all": "the same",
    "tasks.details": "the page of a task; others read its status, explanation and result",
    "tasks.arguments_of": "rows of a page; others show the arguments of one task",
    "tasks.cancel": "'task-run cancel' takes many ids, and waits for the tasks",
    "tasks.preview_cancel": "'task-run cancel' counts all tasks before it asks",
    "tasks.cancel_many": "'task-run cancel' has no limit of time",
    "tasks.copy": "a button; commands and programs submit the task itself",
    "workers.known_classes": "the page of a worker lists them",
    "workers.registered": "what a page counts above the list",
    "workflows.drawing": "a picture",
    "schedules.calendar": "a picture",
    "tenants.get": "the page of a tenant; others list them",
    "schedules.held_up": "a hint in the error of a command",
    "schedules.stored": "what a form of the page begins with",
    "schedules.reveal": "'config show --show-args' shows the arguments of all entries",
}


def test_each_read_of_the_api_has_a_command() -> None:
    """A noun that has moved to `web/resources` has a line here for each route that reads."""
    paths = [line.split()[-1].partition("?")[0] for line in FACES.strip().splitlines()]
    for noun in resources():
        for route in noun.api.routes:
            is_there = any(route.path_regex.match(f"/api/v1{path}") for path in paths)
            is_there |= route.path.removeprefix("/api/v1") in OTHERS
            assert is_there or "GET" not in route.methods, route.path


def test_commands_and_api_can_do_the_same() -> None:
    """Each operation of a noun has a command and a route, but for those with a reason."""
    table = run_path(str(Path(__file__).parents[2] / "scripts" / "nouns"))["table"]
    lacking = {name for name, _, commands, routes, _ in table() if not (commands and routes)}
    assert lacking == ON_ONE_FACE.keys()


def steady(document: Any) -> Any:
    """Leave out what changes between two reads."""
    if isinstance(document, list):
        return [steady(item) for item in document]
    if not isinstance(document, dict):
        return document
    grows = {key for key in document if key.endswith(("_seconds", "_per_minute"))}
    return {key: key in grows or steady(value) for key, value in document.items()}


async def fill(nonet: Nonet) -> dict[str, str]:
    """Give the namespace one of each noun; return the ids that `FACES` names."""
    await nonet.stores.limits.override(LimitAddress("job", "7"), Limit(1), "ann@host 1")
    for key in ("7", "8"):
        await nonet.stores.limits.override(LimitAddress("job", key, "copy"), Limit(2), "ann@host 1")
    letter = NewDeadLetter(
        task_id="dead",
        generation=1,
        task_class="errands:Fail",
        task_args=b"",
        submitted_at=datetime(2026, 7, 1, tzinfo=UTC),
        reason="retries",
        error_type="OSError",
        error_message="no \udc80",
        history=[{"attempt": 1, "at": 1.8e9, "error": "OSError: no", "wall": 0.5}],
        labels={"run": 7, "token": "secret"},
    )
    assert await (await nonet.dead_letters()).add(letter) == 1
    await chain(Add(1, 2), Add(3, 4), title="nightly import").submit(id="nightly")
    report = {"name": "4711@host", "size": "small", "concurrency": 7}
    leases = Leases(
        nonet.settings.redis_url.get_secret_value(),
        NAMESPACE,
        "small-1",
        worker_ttl=3600,
        lock_ttl=30,
        timeout_seconds=5,
    )
    leases.ask(lambda: BeatReport(json.dumps(report)))
    leases.count(lambda: Counted({"errands:Add": vector([3], [3], [3], {})}), lambda _: None)
    with closing(leases):
        leases.renew([])
        leases.add_figures()
    entry = AuditEntry(datetime.now(UTC), "ann", "cancel", "task a", "127.0.0.1", "ok")
    await (await nonet.stores.audit()).add([entry])
    group = await nonet.client.spawn_with_callback([Add(1), Add(2)], Add(3))
    await fill_more(nonet)
    later = datetime.now(UTC) + timedelta(hours=1)
    for id in ("ended", "later"):
        await nonet.submit(Add(1), id=id, at_time=later)
    await nonet.cancel(["ended"])
    return {"group": group}


async def fill_more(nonet: Nonet) -> None:
    """Give the namespace a pause, a quarantined message, a periodic entry and a pipeline."""
    await nonet.stores.controls.pause(["task:Audit", "pipeline:volumes"], "ann@host 1", "to test")
    odd: dict[Any, Any] = {"at": 1, "reason": "odd", "task": "", "stream": "", "entry": ""}
    content = {**odd, "size": 1, "bytes": b"\xc1"}
    await nonet.broker.client.xadd(f"{{{NAMESPACE}}}:quarantine", content, id="1-1")
    term = await nonet.stores.leadership.lead("a", 300, '{"name": "7@host"}') or ""
    later, rule = datetime.now(UTC) + timedelta(days=1), "CronSchedule('30 2 * * *', 'UTC')"
    about = {"task": "errands:Nightly", "vo": "", "name": "default", "schedule": rule, "args": {}}
    about |= {"origin": "class", "enabled": True, "overlap": "", "catch_up": "one", "jitter": 0}
    entry = Change("new", "errands:Nightly||default", "errands:Nightly", next=later, shown=about)
    await nonet.stores.periodic.plan(term, [entry])
    await nonet.stores.pipelines.report_rows("volumes", RowFigures(datetime.now(UTC), due=10_001))


async def report_process(nonet: Nonet) -> None:
    """Say what a process of the pipeline does; it counts for half a minute."""
    process = Replica("7@host", workers=4, running=4, queued=1, rate=30, wait=0.5)
    await nonet.stores.pipelines.report("a", {"volumes": process})


async def test_a_command_prints_what_the_api_answers(task_run: TaskRun) -> None:
    """Each list and each item has the same fields and values on both faces."""
    async with task_run.app() as nonet:
        ids = await fill(nonet)
        app = create_app(nonet, WebSettings.plain(), Fixed(principal()))
        # A hold counts at the limits that are in force when it begins.
        async with nonet.hold(ConcurrencyLimiter("job", 7)), asking(app) as client:
            for line in FACES.strip().splitlines():
                command, path = line.format(**ids).rsplit(maxsplit=1)
                await report_process(nonet)
                printed = await task_run(*command.split(), "--json")
                answer = await client.get(f"/api/v1{path}")
                # A command that shows a failed task fails.
                assert printed.code == (command == "result dead"), printed.err
                assert answer.status_code == 200, answer.text
                assert steady(printed.json) == steady(answer.json()), command
                assert printed.json.get("items") != [], command
                # Its columns name what the view has, which no type checker sees.
                shown = await task_run(*command.split())
                assert (shown.code, "Traceback" in shown.err) == (printed.code, False), shown.err
