"""Retry policies: when to repeat a failed attempt. They do no I/O and only read the clock."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.json_schema import SkipJsonSchema

from nonet.base.errors import RegistrationError, TaskRetryRequested, is_caught, unknown_argument

_YEAR = timedelta(days=365).total_seconds()


def _names(errors: tuple[type[BaseException], ...]) -> tuple[str, ...]:
    return tuple(error.__name__ for error in errors)


def _tuple(errors: Any) -> Any:
    if isinstance(errors, type):
        raise ValueError(f"write a tuple: ({errors.__name__},)")
    return errors


# Classes of errors are no data: neither the configuration nor JSON names them.
_Errors = Annotated[
    tuple[type[BaseException], ...], BeforeValidator(_tuple), SkipJsonSchema(), Field(exclude=True)
]
_ERRORS = {"retry_on", "give_up_on"}


class RetryPolicyBase(BaseModel):
    """Base class of retry policies: subclass it and override `schedule_retry`.

    Declare arguments as annotated fields instead of writing an ``__init__``. pydantic validates
    them, so that a policy can be written in the configuration too. Instances are frozen.

    Example:
        class OnlyTimeouts(RetryPolicyBase):
            pause_seconds: float = 5

            def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
                if isinstance(exception, TimeoutError):
                    return datetime.now(UTC) + timedelta(seconds=self.pause_seconds)
                return None

        class Download(BaseTask):
            retry_policy = OnlyTimeouts(pause_seconds=60)
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a `schedule_retry` that is a coroutine function."""
        super().__pydantic_init_subclass__(**kwargs)
        if inspect.iscoroutinefunction(cls.schedule_retry):
            raise RegistrationError(
                f"{cls.__module__}.{cls.__qualname__}: schedule_retry is not awaited: write "
                "`def schedule_retry`, without async"
            )

    # Hidden from type checkers, which read the signature from the fields.
    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **fields: Any) -> Self:
            # Not in __init__: with a custom __init__ pydantic calls it for the configuration too
            # and no longer validates strictly.
            if cls.__init__ is BaseModel.__init__:
                _refuse_unknown(cls, args, fields)
            return super().__new__(cls)

        def __setattr__(self, name: str, value: Any) -> None:
            try:
                super().__setattr__(name, value)
            except ValidationError:
                raise AttributeError(
                    f"{type(self).__name__}.{name} cannot be set: a policy is frozen; declare "
                    f"arguments as annotated fields (`{name}: float = 30`), without an __init__"
                ) from None

    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        """Return the time of the next attempt, or None to give up.

        Args:
            attempt: number of the attempt that failed, from 1.
            exception: the exception object that ended it.

        Returns:
            An aware datetime (a naive one counts as UTC), or None.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define schedule_retry()")


def _refuse_unknown(cls: type[BaseModel], args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
    """Refuse unknown fields in one line instead of pydantic's three."""
    known = list(cls.model_fields)
    if args:
        names = ", ".join(f"{name}=…" for name in known) or "it has none"
        raise TypeError(f"{cls.__name__}: pass arguments by name: {names}")
    if cls.model_config.get("extra") != "forbid":
        return
    if any(field.validation_alias is not None for field in cls.model_fields.values()):
        return
    for name in given:
        if name not in known:
            raise TypeError(f"{cls.__name__}: {unknown_argument(name, known, cls.__name__)}")


class NoRetry(RetryPolicyBase):
    """Never retry: the first failure is final. This is the default.

    Example:
        class SendMail(BaseTask):
            retry_policy = NoRetry()
    """

    max_retries: ClassVar[int] = 0

    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        """Return None; see `RetryPolicyBase.schedule_retry`."""
        return None


class ExponentialBackoff(RetryPolicyBase):
    """Retry after `base_delay_seconds`, then double the delay after each failure.

    Args:
        base_delay_seconds: delay before the first retry, in seconds.
        max_retries: number of retries, so the task runs at most ``max_retries + 1`` times.
        cap: longest delay, in seconds; a year by default, which is also the upper limit.
        jitter: random share of the delay, 0 to 1: 0.2 turns a delay of 10 s into 8 to 12 s.
        retry_on: retry only after errors of these classes and their subclasses, and after
            `TaskRetryRequested`. By default after all.
        give_up_on: never retry after these, even if `retry_on` names them. A policy that the
            configuration sets instead of this one keeps both.

    Example:
        >>> policy = ExponentialBackoff(base_delay_seconds=10, max_retries=3)
        >>> [policy.delay(attempt).total_seconds() for attempt in (1, 2, 3)]
        [10.0, 20.0, 40.0]
    """

    base_delay_seconds: float = Field(default=10, ge=0)
    max_retries: int = Field(default=5, ge=0)
    cap: float | None = Field(default=None, gt=0)
    jitter: float = Field(default=0, ge=0, le=1)
    retry_on: _Errors = (BaseException,)
    give_up_on: _Errors = ()

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show classes of errors by their names, and only if they are set."""
        for name, value in super().__repr_args__():
            if name not in _ERRORS:
                yield name, value
            elif name in self.model_fields_set:
                yield name, _names(value)

    def delay(self, attempt: int) -> timedelta:
        """The delay after a failed attempt, without jitter.

        Args:
            attempt: number of the attempt that failed, from 1.
        """
        # A float overflows at 2.0**1024, and a delay of more than a year could overflow the date.
        seconds = self.base_delay_seconds * 2.0 ** min(attempt - 1, 60)
        longest = min(self.cap or _YEAR, _YEAR)
        return timedelta(seconds=min(seconds, longest))

    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        """Return now plus the delay; see `RetryPolicyBase.schedule_retry`."""
        is_retried = is_caught(exception, (*self.retry_on, TaskRetryRequested))
        if attempt > self.max_retries or not is_retried or is_caught(exception, self.give_up_on):
            return None
        spread = 1 + self.jitter * random.uniform(-1, 1)
        return datetime.now(UTC) + self.delay(attempt) * spread


def with_errors_of(policy: RetryPolicyBase, other: RetryPolicyBase) -> RetryPolicyBase:
    """Return a policy with the classes of errors that `other` retries and gives up on."""
    if not (isinstance(policy, ExponentialBackoff) and isinstance(other, ExponentialBackoff)):
        return policy
    update = {name: getattr(other, name) for name in other.model_fields_set & _ERRORS}
    return policy.model_copy(update=update) if update else policy


NO_RETRY = NoRetry()

# The configuration knows their arguments, and workers call them without a child process.
BUILT_IN_POLICIES: tuple[type[RetryPolicyBase], ...] = (NoRetry, ExponentialBackoff)
