"""Nonet: an async-first task system for Python on Redis Streams.

This module is the public interface; everything else may change. Names are imported on first use, so
that a module that defines tasks loads neither the client nor Redis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nonet.base.exports import imported_on_use

if TYPE_CHECKING:
    from nonet.app import Nonet as Nonet
    from nonet.base.errors import (
        AdmissionRejected as AdmissionRejected,
        BrokerFullError as BrokerFullError,
        ConfigurationError as ConfigurationError,
        ConflictError as ConflictError,
        CpuLimitExceeded as CpuLimitExceeded,
        DeadlockError as DeadlockError,
        DependencyError as DependencyError,
        InvalidArgumentsError as InvalidArgumentsError,
        LeaseLostError as LeaseLostError,
        LimitImpossible as LimitImpossible,
        MalformedMessageError as MalformedMessageError,
        MemoryLimitExceeded as MemoryLimitExceeded,
        NonetError as NonetError,
        NotBoundError as NotBoundError,
        NotConfirmedError as NotConfirmedError,
        NotFoundError as NotFoundError,
        RegistrationError as RegistrationError,
        ResultError as ResultError,
        ResultUnavailable as ResultUnavailable,
        RowsBusy as RowsBusy,
        ServerUnreachableError as ServerUnreachableError,
        StopRetrying as StopRetrying,
        TaskCancelled as TaskCancelled,
        TaskCrashed as TaskCrashed,
        TaskExpired as TaskExpired,
        TaskFailed as TaskFailed,
        TaskRetryRequested as TaskRetryRequested,
        TaskTimeoutError as TaskTimeoutError,
        UnableToAcquireLockError as UnableToAcquireLockError,
        UnknownTaskError as UnknownTaskError,
    )
    from nonet.base.messages.message import Usage as Usage
    from nonet.base.streams import Priority as Priority, Size as Size
    from nonet.base.version import __version__ as __version__
    from nonet.client.client import Client as Client
    from nonet.client.shortcuts import (
        CallbackSpawner as CallbackSpawner,
        cancel_many as cancel_many,
        spawn_with_callback as spawn_with_callback,
    )
    from nonet.client.sync_application import SyncNonet as SyncNonet
    from nonet.config.models import TaskConfig as TaskConfig
    from nonet.config.settings import Settings as Settings, load_settings as load_settings
    from nonet.daemon.embedding import RunningDaemons as RunningDaemons
    from nonet.rules.findings.explanation import Explanation as Explanation
    from nonet.rules.findings.refusal import LockHolder as LockHolder
    from nonet.tasks.carried import carry_context as carry_context
    from nonet.tasks.execution import TaskContext as TaskContext, context as context
    from nonet.tasks.function import FunctionTask as FunctionTask, task as task
    from nonet.tasks.handles import (
        ChildResult as ChildResult,
        EndedTask as EndedTask,
        Handle as Handle,
        Progress as Progress,
        TaskPage as TaskPage,
        TaskStatus as TaskStatus,
    )
    from nonet.tasks.hooks import Epoch as Epoch, startup_hook as startup_hook
    from nonet.tasks.injection import (
        Depends as Depends,
        override_dependency as override_dependency,
        register_dependency as register_dependency,
    )
    from nonet.tasks.locks import (
        BaseLimiter as BaseLimiter,
        BaseLock as BaseLock,
        ConcurrencyLimiter as ConcurrencyLimiter,
        ExclusiveRWLock as ExclusiveRWLock,
        LockedObjectType as LockedObjectType,
        MutexLock as MutexLock,
        RateLimiter as RateLimiter,
        SharedRWLock as SharedRWLock,
        register_locked_object_type as register_locked_object_type,
    )
    from nonet.tasks.middleware import (
        Middleware as Middleware,
        OutgoingTask as OutgoingTask,
        RunningTask as RunningTask,
        register_middleware as register_middleware,
    )
    from nonet.tasks.overflow import Overflow as Overflow
    from nonet.tasks.retry import (
        ExponentialBackoff as ExponentialBackoff,
        NoRetry as NoRetry,
        RetryPolicyBase as RetryPolicyBase,
    )
    from nonet.tasks.runs import (
        Signalled as Signalled,
        StepResult as StepResult,
        StepStatus as StepStatus,
        WorkflowRun as WorkflowRun,
        WorkflowStatus as WorkflowStatus,
    )
    from nonet.tasks.schedules import (
        CatchUp as CatchUp,
        CronSchedule as CronSchedule,
        IntervalSeconds as IntervalSeconds,
        IntervalSecondsSchedule as IntervalSecondsSchedule,
        Overlap as Overlap,
        RRuleSchedule as RRuleSchedule,
        TaskScheduleBase as TaskScheduleBase,
    )
    from nonet.tasks.steps import (
        PREVIOUS as PREVIOUS,
        Step as Step,
        ended as ended,
        failed as failed,
    )
    from nonet.tasks.sync_handles import SyncHandle as SyncHandle
    from nonet.tasks.sync_runs import SyncWorkflowRun as SyncWorkflowRun
    from nonet.tasks.task import (
        BaseTask as BaseTask,
        Given as Given,
        Isolation as Isolation,
        PeriodicBaseTask as PeriodicBaseTask,
        PeriodicVoAwareBaseTask as PeriodicVoAwareBaseTask,
        TaskWithOptions as TaskWithOptions,
    )
    from nonet.tasks.unique import Unique as Unique, UniqueMode as UniqueMode
    from nonet.tasks.workflows import (
        Workflow as Workflow,
        chain as chain,
        chord as chord,
        group as group,
    )

# The module below `nonet` that defines each public name.
_HOMES = {
    "app": "Nonet",
    "client.client": "Client",
    "client.shortcuts": "CallbackSpawner cancel_many spawn_with_callback",
    "client.sync_application": "SyncNonet",
    "config.models": "TaskConfig",
    "daemon.embedding": "RunningDaemons",
    "base.errors": (
        "AdmissionRejected BrokerFullError ConfigurationError ConflictError CpuLimitExceeded "
        "DeadlockError DependencyError InvalidArgumentsError LeaseLostError LimitImpossible "
        "MalformedMessageError MemoryLimitExceeded NonetError NotBoundError "
        "NotConfirmedError NotFoundError RegistrationError ResultError ResultUnavailable "
        "RowsBusy ServerUnreachableError StopRetrying TaskCancelled TaskCrashed TaskExpired "
        "TaskFailed TaskRetryRequested TaskTimeoutError UnableToAcquireLockError "
        "UnknownTaskError"
    ),
    "base.streams": "Priority Size",
    "base.version": "__version__",
    "tasks.carried": "carry_context",
    "tasks.execution": "TaskContext context",
    "tasks.function": "FunctionTask task",
    "rules.findings.explanation": "Explanation",
    "rules.findings.refusal": "LockHolder",
    "tasks.handles": "ChildResult EndedTask Handle Progress TaskPage TaskStatus",
    "tasks.hooks": "Epoch startup_hook",
    "tasks.injection": "Depends override_dependency register_dependency",
    "tasks.locks": (
        "BaseLimiter BaseLock ConcurrencyLimiter ExclusiveRWLock LockedObjectType MutexLock "
        "RateLimiter SharedRWLock register_locked_object_type"
    ),
    "tasks.middleware": "Middleware OutgoingTask RunningTask register_middleware",
    "base.messages.message": "Usage",
    "tasks.overflow": "Overflow",
    "tasks.retry": "ExponentialBackoff NoRetry RetryPolicyBase",
    "tasks.schedules": (
        "CatchUp CronSchedule IntervalSeconds IntervalSecondsSchedule Overlap RRuleSchedule "
        "TaskScheduleBase"
    ),
    "config.settings": "Settings load_settings",
    "tasks.sync_handles": "SyncHandle",
    "tasks.sync_runs": "SyncWorkflowRun",
    "tasks.task": (
        "BaseTask Given Isolation PeriodicBaseTask PeriodicVoAwareBaseTask TaskWithOptions"
    ),
    "tasks.runs": "Signalled StepResult StepStatus WorkflowRun WorkflowStatus",
    "tasks.unique": "Unique UniqueMode",
    "tasks.steps": "PREVIOUS Step ended failed",
    "tasks.workflows": "Workflow chain chord group",
}
if not TYPE_CHECKING:  # type checkers read the imports above
    __all__, __getattr__, __dir__ = imported_on_use(__name__, _HOMES)
