"""Pydantic, and with it FastAPI, reads and writes every value that Nonet gives to programs."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import Any

import pytest
from public import public_names
from pydantic import TypeAdapter, ValidationError

import nonet
from nonet import (
    CatchUp,
    ChildResult,
    CronSchedule,
    EndedTask,
    Epoch,
    Explanation,
    ExponentialBackoff,
    Handle,
    IntervalSecondsSchedule,
    Isolation,
    LockedObjectType,
    LockHolder,
    NoRetry,
    NotBoundError,
    Overflow,
    Overlap,
    Priority,
    Progress,
    RRuleSchedule,
    Signalled,
    Size,
    StepResult,
    StepStatus,
    TaskConfig,
    TaskPage,
    TaskStatus,
    Unique,
    UniqueMode,
    Usage,
    WorkflowRun,
    WorkflowStatus,
)

NOW = datetime(2026, 7, 1, 12, 0, 0, 250, tzinfo=UTC)
HOLDER = LockHolder("b", "sums:Add", "7@host", 1.5, 28.5, True)
USAGE = Usage(1.5, None, 2**20)

VALUES: dict[type, Any] = {
    CatchUp: CatchUp.ONE,
    ChildResult: ChildResult("g.0", "done", {"sizes": [1, 2.5]}),
    CronSchedule: CronSchedule("0 3 * * *", "Europe/Zurich"),
    EndedTask: EndedTask("a", "sums:Add", "done", "normal:small", 1, NOW, NOW, NOW),
    Epoch: Epoch(NOW),
    Explanation: Explanation("a", "waiting", "lock", "waiting: …", holders=(HOLDER,), until=NOW),
    ExponentialBackoff: ExponentialBackoff(max_retries=2, cap=60),
    Handle: Handle("a", None),  # nobody asks it
    IntervalSecondsSchedule: IntervalSecondsSchedule(2.5),
    Isolation: Isolation.FRESH,
    LockHolder: HOLDER,
    LockedObjectType: LockedObjectType.JOB,
    NoRetry: NoRetry(),
    Overflow: Overflow("small", 2, 5),
    Overlap: Overlap.SKIP,
    Priority: Priority.REALTIME,
    Progress: Progress(0.4, "page=12", NOW, {"page": 12}),
    RRuleSchedule: RRuleSchedule("FREQ=DAILY;BYHOUR=3"),
    Size: Size.LARGE,
    Signalled: Signalled("w", "go", "w:1", "ann", NOW),
    StepResult: StepResult("w:1", "1", "sums:Add", "done", 3),
    StepStatus: StepStatus("w:1", "1", "sums:Add", ("s0",), "waiting", blocker="after 0"),
    TaskConfig: TaskConfig(name="all", args={"n": 1}, jitter=5),
    TaskPage: TaskPage([TaskStatus("a", "sums:Add", "running", started=NOW)], 3, 20, 100, "[]"),
    TaskStatus: TaskStatus("a", "sums:Add", "done", finished=NOW, usage=USAGE),
    Unique: Unique.for_seconds(60, key="nightly"),
    UniqueMode: UniqueMode.UNTIL_DONE,
    nonet.SyncHandle: nonet.SyncHandle("a", None),
    nonet.SyncWorkflowRun: nonet.SyncWorkflowRun("w", None),
    Usage: USAGE,
    WorkflowRun: WorkflowRun("w", None),  # nobody asks it
    WorkflowStatus: WorkflowStatus(
        "w",
        "import",
        "failed",
        3,
        0,
        "w:1",
        "",
        runs=1,
        parent="",
        opened=NOW,
        changed=NOW,
        ended=NOW,
    ),
}

LOCKS = {
    name
    for name in nonet.__all__
    if inspect.isclass(thing := getattr(nonet, name)) and issubclass(thing, nonet.BaseLock)
}
# What is no value: it does something, or is the base of what authors write.
OTHERS = {
    "nonet": {
        *("BaseTask", "FunctionTask", "PeriodicBaseTask", "PeriodicVoAwareBaseTask"),
        *("Middleware", "RetryPolicyBase", "TaskScheduleBase"),  # bases
        *("OutgoingTask", "RunningTask"),  # they hold what is going on
        *LOCKS,
        *("CallbackSpawner", "Client", "Nonet", "RunningDaemons", "SyncNonet", "TaskContext"),
        *("Given", "Step", "Workflow"),  # they hold tasks of authors
        "TaskWithOptions",
        "Settings",  # it has passwords, which no dump shows
    },
    # They hold tasks of authors, and exceptions.
    "nonet.testing": {"InlineGroup", "InlineRun", "Submitted", "System"},
    "nonet.contrib.canary": {"Canary"},
    "nonet.contrib.sentry": {"SentryMiddleware"},
}


def test_every_public_type_is_tried() -> None:
    """A public type that is added is a value with an example here, or named as none."""
    others = {f"{module}.{name}" for module, names in OTHERS.items() for name in names}
    tried = {
        name
        for name, thing in public_names().items()
        if not inspect.isclass(thing) or issubclass(thing, BaseException) or thing in VALUES
    }
    assert tried & others == set()
    assert tried | others == set(public_names())


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_a_value_comes_back(kind: type) -> None:
    """Through Python objects, JSON and as it is; its JSON schema can be written, too."""
    value, adapter = VALUES[kind], TypeAdapter(kind)
    written = {"by_alias": True}
    for made in (
        adapter.validate_python(value),
        adapter.validate_python(adapter.dump_python(value, **written)),
        adapter.validate_python(adapter.dump_python(value, mode="json", **written)),
        adapter.validate_json(adapter.dump_json(value, **written)),
    ):
        assert type(made) is kind
        assert made == value
    for mode in ("validation", "serialization"):
        assert adapter.json_schema(mode=mode)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Usage, '{"wall": "long"}'), (WorkflowRun, "7"), (Handle, "7"), (LockedObjectType, '"jop"')],
)
def test_a_wrong_value_is_refused(kind: type, text: str) -> None:
    """As pydantic refuses what does not fit, so that FastAPI answers 422."""
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_json(text)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (Handle[int], r"use app\.status\('a'\), app\.result\('a'\)"),
        (WorkflowRun, r"use app\.workflow\(id\)"),
    ],
)
async def test_a_handle_that_was_read_has_no_application(kind: Any, advice: str) -> None:
    """It is the id alone, and says what to ask instead."""
    read = TypeAdapter(kind).validate_json('"a"')
    assert read == "a" and isinstance(read, Handle | WorkflowRun)
    for asked in (read.status(), read.result("0") if kind is WorkflowRun else read.result()):
        with pytest.raises(NotBoundError, match=advice):
            await asked
