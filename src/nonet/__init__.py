"""Nonet: an async-first task system for Python on Redis Streams.

Everything that programs may rely on is imported here; all else may change.
"""

from nonet.app import Nonet
from nonet.client import CallbackSpawner, ChildResult, Client, Handle, spawn_with_callback
from nonet.errors import (
    BrokerFullError,
    ConfigurationError,
    ConflictError,
    DeadlockError,
    DependencyError,
    InvalidArgumentsError,
    LeaseLostError,
    LimitImpossible,
    MalformedMessageError,
    NonetError,
    NotBoundError,
    NotFoundError,
    RegistrationError,
    ResultError,
    ResultUnavailable,
    ServerUnreachableError,
    StopRetrying,
    TaskCancelled,
    TaskFailed,
    TaskRetryRequested,
    UnableToAcquireLockError,
    UnknownTaskError,
)
from nonet.execution import TaskContext, context
from nonet.explanation import Explanation, LockHolder
from nonet.hooks import Epoch, startup_hook
from nonet.injection import Depends, register_dependency
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
from nonet.retry import ExponentialBackoff, NoRetry, RetryPolicyBase
from nonet.schedules import (
    CronSchedule,
    IntervalSeconds,
    IntervalSecondsSchedule,
    RRuleSchedule,
    TaskScheduleBase,
)
from nonet.settings import Settings, load_settings
from nonet.stores.results import TaskStatus
from nonet.task import BaseTask, PeriodicBaseTask, PeriodicVoAwareBaseTask, Priority, Size

__all__ = [
    "BaseLimiter",
    "BaseLock",
    "BaseTask",
    "BrokerFullError",
    "CallbackSpawner",
    "ChildResult",
    "Client",
    "ConcurrencyLimiter",
    "ConfigurationError",
    "ConflictError",
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
    "LeaseLostError",
    "LimitImpossible",
    "LockHolder",
    "LockedObjectType",
    "MalformedMessageError",
    "MutexLock",
    "NoRetry",
    "Nonet",
    "NonetError",
    "NotBoundError",
    "NotFoundError",
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
    "TaskContext",
    "TaskFailed",
    "TaskRetryRequested",
    "TaskScheduleBase",
    "TaskStatus",
    "UnableToAcquireLockError",
    "UnknownTaskError",
    "context",
    "load_settings",
    "register_dependency",
    "register_locked_object_type",
    "spawn_with_callback",
    "startup_hook",
]
