"""Nonet: an async-first task system for Python on Redis Streams.

Everything that programs may rely on is here; all else may change. A name is imported when it is
first used: a module that defines tasks needs neither the client nor Redis.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.client import CallbackSpawner, Client, cancel_many, spawn_with_callback
    from nonet.config import TaskConfig
    from nonet.errors import (
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
    from nonet.execution import TaskContext, context
    from nonet.explanation import Explanation, LockHolder
    from nonet.handles import ChildResult, Handle, TaskStatus
    from nonet.hooks import Epoch, startup_hook
    from nonet.injection import Depends, override_dependency, register_dependency
    from nonet.locks import (
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
    from nonet.message import Usage
    from nonet.overflow import Overflow
    from nonet.retry import ExponentialBackoff, NoRetry, RetryPolicyBase
    from nonet.schedules import (
        CatchUp,
        CronSchedule,
        IntervalSeconds,
        IntervalSecondsSchedule,
        Overlap,
        RRuleSchedule,
        TaskScheduleBase,
    )
    from nonet.settings import Settings, load_settings
    from nonet.task import (
        BaseTask,
        Isolation,
        PeriodicBaseTask,
        PeriodicVoAwareBaseTask,
        Priority,
        Size,
    )
    from nonet.unique import Unique, UniqueMode

    __version__: str

__all__ = [
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
    "Epoch",
    "ExclusiveRWLock",
    "Explanation",
    "ExponentialBackoff",
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
    "MutexLock",
    "NoRetry",
    "Nonet",
    "NonetError",
    "NotBoundError",
    "NotConfirmedError",
    "NotFoundError",
    "Overflow",
    "Overlap",
    "PeriodicBaseTask",
    "PeriodicVoAwareBaseTask",
    "Priority",
    "RRuleSchedule",
    "RateLimiter",
    "RegistrationError",
    "ResultError",
    "ResultUnavailable",
    "RetryPolicyBase",
    "ServerUnreachableError",
    "Settings",
    "SharedRWLock",
    "Size",
    "StopRetrying",
    "TaskCancelled",
    "TaskConfig",
    "TaskContext",
    "TaskCrashed",
    "TaskExpired",
    "TaskFailed",
    "TaskRetryRequested",
    "TaskScheduleBase",
    "TaskStatus",
    "TaskTimeoutError",
    "UnableToAcquireLockError",
    "Unique",
    "UniqueMode",
    "UnknownTaskError",
    "Usage",
    "cancel_many",
    "context",
    "load_settings",
    "override_dependency",
    "register_dependency",
    "register_locked_object_type",
    "spawn_with_callback",
    "startup_hook",
]

# Where each public name is defined.
_HOMES = {
    "nonet.app": ("Nonet",),
    "nonet.client": ("CallbackSpawner", "Client", "cancel_many", "spawn_with_callback"),
    "nonet.config": ("TaskConfig",),
    "nonet.errors": (
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
    "nonet.execution": ("TaskContext", "context"),
    "nonet.explanation": ("Explanation", "LockHolder"),
    "nonet.handles": ("ChildResult", "Handle", "TaskStatus"),
    "nonet.hooks": ("Epoch", "startup_hook"),
    "nonet.injection": ("Depends", "override_dependency", "register_dependency"),
    "nonet.locks": (
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
    "nonet.message": ("Usage",),
    "nonet.overflow": ("Overflow",),
    "nonet.retry": ("ExponentialBackoff", "NoRetry", "RetryPolicyBase"),
    "nonet.schedules": (
        "CatchUp",
        "CronSchedule",
        "IntervalSeconds",
        "IntervalSecondsSchedule",
        "Overlap",
        "RRuleSchedule",
        "TaskScheduleBase",
    ),
    "nonet.settings": ("Settings", "load_settings"),
    "nonet.task": (
        "BaseTask",
        "Isolation",
        "PeriodicBaseTask",
        "PeriodicVoAwareBaseTask",
        "Priority",
        "Size",
    ),
    "nonet.unique": ("Unique", "UniqueMode"),
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
