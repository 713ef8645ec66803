"""Nonet: an async-first task system for Python on Redis Streams.

This module is the public interface; everything else may change. Names are imported on first use, so
that a module that defines tasks loads neither the client nor Redis.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.base.errors import (
        AdmissionRejected,
        BrokerFullError,
        ConfigurationError,
        ConflictError,
        CpuLimitExceeded,
        DeadlockError,
        DependencyError,
        InvalidArgumentsError,
        LeaseLostError,
        LimitImpossible,
        MalformedMessageError,
        MemoryLimitExceeded,
        NonetError,
        NotBoundError,
        NotConfirmedError,
        NotFoundError,
        RegistrationError,
        ResultError,
        ResultUnavailable,
        RowsBusy,
        ServerUnreachableError,
        StopRetrying,
        TaskCancelled,
        TaskCrashed,
        TaskExpired,
        TaskFailed,
        TaskRetryRequested,
        TaskTimeoutError,
        UnableToAcquireLockError,
        UnknownTaskError,
    )
    from nonet.base.streams import Priority, Size
    from nonet.client.client import Client
    from nonet.client.shortcuts import CallbackSpawner, cancel_many, spawn_with_callback
    from nonet.config.models import TaskConfig
    from nonet.config.settings import Settings, load_settings
    from nonet.daemon.embedding import RunningDaemons
    from nonet.messages.message import Usage
    from nonet.rules.explanation import Explanation
    from nonet.rules.refusal import LockHolder
    from nonet.tasks.carried import carry_context
    from nonet.tasks.execution import TaskContext, context
    from nonet.tasks.function import FunctionTask, task
    from nonet.tasks.handles import ChildResult, EndedTask, Handle, Progress, TaskPage, TaskStatus
    from nonet.tasks.hooks import Epoch, startup_hook
    from nonet.tasks.injection import Depends, override_dependency, register_dependency
    from nonet.tasks.locks import (
        BaseLimiter,
        BaseLock,
        ConcurrencyLimiter,
        ExclusiveRWLock,
        LockedObjectType,
        MutexLock,
        RateLimiter,
        SharedRWLock,
        register_locked_object_type,
    )
    from nonet.tasks.middleware import (
        Middleware,
        OutgoingTask,
        RunningTask,
        register_middleware,
    )
    from nonet.tasks.overflow import Overflow
    from nonet.tasks.retry import ExponentialBackoff, NoRetry, RetryPolicyBase
    from nonet.tasks.runs import StepStatus, WorkflowRun, WorkflowStatus
    from nonet.tasks.schedules import (
        CatchUp,
        CronSchedule,
        IntervalSeconds,
        IntervalSecondsSchedule,
        Overlap,
        RRuleSchedule,
        TaskScheduleBase,
    )
    from nonet.tasks.task import (
        BaseTask,
        Isolation,
        PeriodicBaseTask,
        PeriodicVoAwareBaseTask,
        TaskWithOptions,
    )
    from nonet.tasks.unique import Unique, UniqueMode
    from nonet.tasks.workflows import (
        PREVIOUS,
        Given,
        Step,
        Workflow,
        chain,
        chord,
        ended,
        failed,
        group,
    )

    __version__: str

__all__ = [
    "PREVIOUS",
    "AdmissionRejected",
    "BaseLimiter",
    "BaseLock",
    "BaseTask",
    "BrokerFullError",
    "CallbackSpawner",
    "CatchUp",
    "ChildResult",
    "Client",
    "ConcurrencyLimiter",
    "ConfigurationError",
    "ConflictError",
    "CpuLimitExceeded",
    "CronSchedule",
    "DeadlockError",
    "DependencyError",
    "Depends",
    "EndedTask",
    "Epoch",
    "ExclusiveRWLock",
    "Explanation",
    "ExponentialBackoff",
    "FunctionTask",
    "Given",
    "Handle",
    "IntervalSeconds",
    "IntervalSecondsSchedule",
    "InvalidArgumentsError",
    "Isolation",
    "LeaseLostError",
    "LimitImpossible",
    "LockHolder",
    "LockedObjectType",
    "MalformedMessageError",
    "MemoryLimitExceeded",
    "Middleware",
    "MutexLock",
    "NoRetry",
    "Nonet",
    "NonetError",
    "NotBoundError",
    "NotConfirmedError",
    "NotFoundError",
    "OutgoingTask",
    "Overflow",
    "Overlap",
    "PeriodicBaseTask",
    "PeriodicVoAwareBaseTask",
    "Priority",
    "Progress",
    "RRuleSchedule",
    "RateLimiter",
    "RegistrationError",
    "ResultError",
    "ResultUnavailable",
    "RetryPolicyBase",
    "RowsBusy",
    "RunningDaemons",
    "RunningTask",
    "ServerUnreachableError",
    "Settings",
    "SharedRWLock",
    "Size",
    "Step",
    "StepStatus",
    "StopRetrying",
    "TaskCancelled",
    "TaskConfig",
    "TaskContext",
    "TaskCrashed",
    "TaskExpired",
    "TaskFailed",
    "TaskPage",
    "TaskRetryRequested",
    "TaskScheduleBase",
    "TaskStatus",
    "TaskTimeoutError",
    "TaskWithOptions",
    "UnableToAcquireLockError",
    "Unique",
    "UniqueMode",
    "UnknownTaskError",
    "Usage",
    "Workflow",
    "WorkflowRun",
    "WorkflowStatus",
    "cancel_many",
    "carry_context",
    "chain",
    "chord",
    "context",
    "ended",
    "failed",
    "group",
    "load_settings",
    "override_dependency",
    "register_dependency",
    "register_locked_object_type",
    "register_middleware",
    "spawn_with_callback",
    "startup_hook",
    "task",
]

# The module that defines each public name.
_HOMES = {
    "nonet.app": ("Nonet",),
    "nonet.client.client": ("Client",),
    "nonet.client.shortcuts": ("CallbackSpawner", "cancel_many", "spawn_with_callback"),
    "nonet.config.models": ("TaskConfig",),
    "nonet.daemon.embedding": ("RunningDaemons",),
    "nonet.base.errors": (
        "AdmissionRejected",
        "BrokerFullError",
        "ConfigurationError",
        "ConflictError",
        "CpuLimitExceeded",
        "DeadlockError",
        "DependencyError",
        "InvalidArgumentsError",
        "LeaseLostError",
        "LimitImpossible",
        "MalformedMessageError",
        "MemoryLimitExceeded",
        "NonetError",
        "NotBoundError",
        "NotConfirmedError",
        "NotFoundError",
        "RegistrationError",
        "ResultError",
        "ResultUnavailable",
        "RowsBusy",
        "ServerUnreachableError",
        "StopRetrying",
        "TaskCancelled",
        "TaskCrashed",
        "TaskExpired",
        "TaskFailed",
        "TaskRetryRequested",
        "TaskTimeoutError",
        "UnableToAcquireLockError",
        "UnknownTaskError",
    ),
    "nonet.base.streams": ("Priority", "Size"),
    "nonet.tasks.carried": ("carry_context",),
    "nonet.tasks.execution": ("TaskContext", "context"),
    "nonet.tasks.function": ("FunctionTask", "task"),
    "nonet.rules.explanation": ("Explanation",),
    "nonet.rules.refusal": ("LockHolder",),
    "nonet.tasks.handles": (
        "ChildResult",
        "EndedTask",
        "Handle",
        "Progress",
        "TaskPage",
        "TaskStatus",
    ),
    "nonet.tasks.hooks": ("Epoch", "startup_hook"),
    "nonet.tasks.injection": ("Depends", "override_dependency", "register_dependency"),
    "nonet.tasks.locks": (
        "BaseLimiter",
        "BaseLock",
        "ConcurrencyLimiter",
        "ExclusiveRWLock",
        "LockedObjectType",
        "MutexLock",
        "RateLimiter",
        "SharedRWLock",
        "register_locked_object_type",
    ),
    "nonet.tasks.middleware": (
        "Middleware",
        "OutgoingTask",
        "RunningTask",
        "register_middleware",
    ),
    "nonet.messages.message": ("Usage",),
    "nonet.tasks.overflow": ("Overflow",),
    "nonet.tasks.retry": ("ExponentialBackoff", "NoRetry", "RetryPolicyBase"),
    "nonet.tasks.schedules": (
        "CatchUp",
        "CronSchedule",
        "IntervalSeconds",
        "IntervalSecondsSchedule",
        "Overlap",
        "RRuleSchedule",
        "TaskScheduleBase",
    ),
    "nonet.config.settings": ("Settings", "load_settings"),
    "nonet.tasks.task": (
        "BaseTask",
        "Isolation",
        "PeriodicBaseTask",
        "PeriodicVoAwareBaseTask",
        "TaskWithOptions",
    ),
    "nonet.tasks.runs": ("StepStatus", "WorkflowRun", "WorkflowStatus"),
    "nonet.tasks.unique": ("Unique", "UniqueMode"),
    "nonet.tasks.workflows": (
        "PREVIOUS",
        "Given",
        "Step",
        "Workflow",
        "chain",
        "chord",
        "ended",
        "failed",
        "group",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        value = globals()[name] = version("nonet")
        return value
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
