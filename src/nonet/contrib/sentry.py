"""Report failed attempts to Sentry, and periodic entries as monitors. Needs the extra ``sentry``.

Example:
    import sentry_sdk
    from nonet.contrib.sentry import install

    sentry_sdk.init(dsn="https://key@sentry.example.org/1")
    install()
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import date, time
from functools import partial
from typing import Any, Literal

import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.utils import event_from_exception

from nonet.base.errors import TaskRetryRequested
from nonet.rules.outcomes import without_values
from nonet.tasks.carried import carried_texts
from nonet.tasks.middleware import Middleware, OutgoingTask, RunningTask, register_middleware
from nonet.tasks.schedules import CronSchedule, IntervalSecondsSchedule
from nonet.tasks.schedules.description import describe, described
from nonet.telemetry.logs import process_description
from nonet.telemetry.masking import MASK, text_of, without_secrets

__all__ = ["SentryMiddleware", "install"]

# The label by which a scheduler tells workers the schedule of an entry.
_SCHEDULE = "schedule"
_FLUSH_SECONDS = 2.0
_LONGEST_SLUG = 50
# The worker logs each failed attempt with this logger. Sentry would report the line as well.
_FAILURES = "nonet.worker.attempt.settle"
_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"))


class SentryMiddleware(Middleware):
    """Reports to Sentry; `install` registers one.

    A package can name this class as an entry point ``nonet.middleware`` instead.

    Args:
        retries: also report attempts that will be tried again, as warnings.
        monitors: report occurrences of periodic entries as check-ins of monitors.
        monitor_config: further settings of each monitor, such as ``{"max_runtime": 60}``.
        arguments: add the arguments of tasks to reports; secret ones are masked.
        local_variables: add local variables to tracebacks.

    Example:
        app = Nonet.from_settings(namespace="test")
        app.use(SentryMiddleware, retries=False)
    """

    order = -100

    def __init__(
        self,
        *,
        retries: bool = True,
        monitors: bool = True,
        monitor_config: Mapping[str, Any] | None = None,
        arguments: bool = False,
        local_variables: bool = False,
    ) -> None:
        self._retries = retries
        self._monitors = monitors
        self._monitor_config = monitor_config or {}
        self._arguments = arguments
        self._local_variables = local_variables
        ignore_logger(_FAILURES)

    def around_submit(self, task: OutgoingTask) -> Iterator[None]:
        """For the framework: tell workers the schedule of a periodic entry, as a label."""
        if self._monitors and task.schedule is not None:
            task.labels[_SCHEDULE] = describe(task.schedule)
        yield

    async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
        """For the framework: describe the attempt to Sentry, and report how it ends."""
        with sentry_sdk.isolation_scope() as scope:
            self._describe(scope, task)
            self._check_in(task, "in_progress")
            try:
                yield
            except BaseException as error:
                self._report(task, error)
                raise
            finally:
                if task.outcome == "done":
                    self._check_in(task, "ok")
                elif task.outcome in ("dead", "cancelled"):
                    self._check_in(task, "error")

    async def close(self) -> None:
        """For the framework: send what is queued, for up to 2 s."""
        await asyncio.to_thread(sentry_sdk.flush, _FLUSH_SECONDS)

    def _describe(self, scope: sentry_sdk.Scope, task: RunningTask) -> None:
        about = process_description()
        tags = {
            "nonet.task": task.name,
            "nonet.task_id": task.id,
            "nonet.attempt": str(task.attempt),
            "nonet.priority": str(task.priority),
            "nonet.size": str(task.size),
            "nonet.namespace": about.get("namespace", ""),
            "nonet.worker": about.get("worker", ""),
            **carried_texts(),
        }
        scope.set_tags({name: text for name, text in tags.items() if text})
        details = {"labels": dict(task.labels), "parent": task.parent, "submitted": task.submitted}
        if self._arguments:
            details["arguments"] = task.arguments
        scope.set_context("nonet", details)
        scope.set_transaction_name(task.name, source="task")
        scope.add_event_processor(partial(_cleaned, task, self._local_variables))

    def _report(self, task: RunningTask, error: BaseException) -> None:
        is_last = task.outcome == "dead"
        if task.is_expected or isinstance(error, TaskRetryRequested):
            return
        if not (is_last or self._retries):
            return
        options = {
            **sentry_sdk.get_client().options,
            "include_local_variables": self._local_variables,
        }
        mechanism = {"type": "nonet", "handled": False}
        event, hint = event_from_exception(error, client_options=options, mechanism=mechanism)
        event["level"] = "error" if is_last else "warning"
        event["tags"] = {"nonet.outcome": task.outcome or ""}
        sentry_sdk.capture_event(event, hint=hint)

    def _check_in(self, task: RunningTask, status: Literal["in_progress", "ok", "error"]) -> None:
        """Report an occurrence of a periodic entry; its attempts are one check-in."""
        entry = task.labels.get("entry")
        if not (self._monitors and entry and "occurrence" in task.labels):
            return
        schedule = _schedule_of(task.labels.get(_SCHEDULE))
        if schedule == {}:
            return
        check_in: Any = {
            "type": "check_in",
            "check_in_id": uuid.uuid5(uuid.NAMESPACE_OID, task.id).hex,
            "monitor_slug": slug_of(str(entry)),
            "status": status,
            "environment": sentry_sdk.get_client().options.get("environment"),
            "release": sentry_sdk.get_client().options.get("release"),
        }
        if schedule is not None:
            check_in["monitor_config"] = {**schedule, **self._monitor_config}
        sentry_sdk.capture_event(check_in)


def install(
    *,
    retries: bool = True,
    monitors: bool = True,
    monitor_config: Mapping[str, Any] | None = None,
    arguments: bool = False,
    local_variables: bool = False,
) -> None:
    """Report the failed attempts of this process to Sentry.

    Call it after ``sentry_sdk.init()``, at the top level of a module with tasks: workers, child
    processes and schedulers load that module. Further calls change nothing.

    Args:
        retries, monitors, monitor_config, arguments, local_variables: as in `SentryMiddleware`.

    Example:
        sentry_sdk.init(dsn="https://key@sentry.example.org/1")
        install(arguments=True)
    """
    if _installed:
        return
    made = SentryMiddleware(
        retries=retries,
        monitors=monitors,
        monitor_config=monitor_config,
        arguments=arguments,
        local_variables=local_variables,
    )
    _installed.append(made)
    register_middleware(made)


_installed: list[SentryMiddleware] = []


def slug_of(entry: str) -> str:
    """The slug of the monitor of a periodic entry.

    >>> slug_of("reports:SendReports||default"), slug_of("grid:Sweep|lhcb|fast")
    ('reports-sendreports', 'grid-sweep-lhcb-fast')
    """
    plain = re.sub(r"[^a-z0-9_]+", "-", entry.removesuffix("|default").lower()).strip("-")
    if len(plain) <= _LONGEST_SLUG:
        return plain
    return f"{plain[: _LONGEST_SLUG - 9]}-{hashlib.sha256(entry.encode()).hexdigest()[:8]}"


def _schedule_of(text: object) -> dict[str, Any] | None:
    """Return the part of a monitor's configuration that says when it is due.

    Returns:
        None if Sentry cannot express it; an empty mapping if it is due more often than each minute,
        which Sentry cannot monitor.
    """
    match described(text) if isinstance(text, str) else None:
        case CronSchedule() as cron:
            schedule: dict[str, Any] = {"type": "crontab", "value": cron.expanded}
            return {"schedule": schedule, "timezone": cron.timezone}
        case IntervalSecondsSchedule(seconds=seconds):
            for length, unit in _UNITS:
                if seconds % length == 0:
                    number = int(seconds // length)
                    return {"schedule": {"type": "interval", "value": number, "unit": unit}}
            return {} if seconds < 60 else None
        case _:
            return None


def _cleaned(task: RunningTask, local_variables: bool, event: Any, hint: Any) -> Any:
    """Mask what is secret in an event of the attempt, and leave out the values of variables."""
    for found in (event.get("exception") or {}).get("values") or []:
        if isinstance(found.get("value"), str):
            found["value"] = without_values(found["value"])
        for frame in (found.get("stacktrace") or {}).get("frames") or []:
            if not local_variables:
                frame.pop("vars", None)
    return _masked(event, task.secrets)


def _masked(value: Any, secrets: tuple[str, ...]) -> Any:
    """Copy a part of an event with all secrets masked, at any depth."""
    match value:
        case str():
            return without_secrets(value, secrets)
        case dict():
            return {key: _masked(item, secrets) for key, item in value.items()}
        case list() | tuple():
            return [_masked(item, secrets) for item in value]
        case None | bool() | date() | time():
            return value
        case int() | float():
            return MASK if str(value) in secrets else value
        case _ if type(value).__name__ == "AnnotatedValue":  # the SDK's mark of what it removed
            return value
        case _:
            return without_secrets(text_of(value), secrets)
