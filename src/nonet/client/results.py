"""Turn the stored end of a task into a result or an exception."""

from __future__ import annotations

import re
from typing import Any

from nonet.base.errors import ResultUnavailable, TaskCancelled, TaskExpired, TaskFailed
from nonet.rules.findings import remedies
from nonet.stores.queue.results import Ended
from nonet.tasks.handles import ChildResult
from nonet.tasks.registry import Registry

# What lib/workflow.lua writes for a step that cannot run.
_FAILED_STEP = re.compile(r"cancelled: step (\S+) failed")


def value_of(id: str, ended: Ended, registry: Registry) -> Any:
    """Return the result of a task that is done; raise `TaskFailed` or the like for other ends."""
    document = ended.document
    task = f"task {id} ({document.name})" if document else f"task {id}"
    error = document.error if document else ""
    if ended.state == "dead":
        reason = document.reason if document else ""
        raise TaskFailed(
            f"{task} is dead ({reason or 'no reason kept'}): {_failure(ended)}",
            error_type=document.error_type if document else "",
            reason=reason,
            traceback=document.traceback if document else "",
        )
    if ended.state == "cancelled":
        raise TaskCancelled(f"{task} was {error or 'cancelled'}{_why_failed(error)}")
    if ended.state == "expired":
        raise TaskExpired(f"{task} was {error or 'not started in time'}")
    if document is None:
        raise ResultUnavailable(
            f"task {id} is {ended.state}, but its result is not kept (NONET_RESULT_TTL=0)"
        )
    if document.note:
        raise ResultUnavailable(f"{task} is {ended.state}, but {document.note}")
    return _typed(ended, registry)


def _why_failed(error: str) -> str:
    """Name the command that shows why the step failed because of which another was cancelled."""
    step = _FAILED_STEP.fullmatch(error)
    return f": '{remedies.of('task-run explain', step[1])}' shows why" if step else ""


def child_result(id: str, ended: Ended | None, registry: Registry) -> ChildResult:
    """Return how a child of a group ended."""
    if ended is None:
        return ChildResult(id, "unknown", error="no result is kept")
    if ended.state == "done" and ended.document and not ended.document.note:
        return ChildResult(id, "done", _typed(ended, registry))
    return ChildResult(id, ended.state, error=_failure(ended))


def _typed(ended: Ended, registry: Registry) -> Any:
    assert ended.document is not None
    task_class = registry.find(ended.document.name)
    value = ended.document.value
    return task_class.typed_result(value) if task_class else value


def _failure(ended: Ended) -> str:
    document = ended.document
    if document is None:
        return "no error kept"
    if document.note:
        return document.note
    return f"{document.error_type}: {document.error}" if document.error_type else document.error
