"""Keep errors of log handlers away from the code that logs.

A handler that raises, such as a shipper whose server is down, would end the loop, attempt or daemon
that logs. Count the errors of each handler, and log the first one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from functools import wraps
from typing import Any, TypeVar

from nonet.telemetry.metrics import Sample

logger = logging.getLogger(__name__)

_T = TypeVar("_T", logging.Handler, logging.Logger)

_errors: Counter[str] = Counter()
# Loggers with this prefix are guarded; None: the guards are not installed.
_prefix: str | None = None


def guard_logging(prefix: str = "") -> None:
    """Catch the exceptions of handlers, filters and record factories in this process.

    All other handlers still get the record.

    Args:
        prefix: guard the loggers whose names begin with it; empty: all.
    """
    global _prefix
    if _prefix is None:
        # Wrap the current methods: an integration such as Sentry's may have replaced them.
        _guard(logging.Handler)
        _guard(logging.Logger)  # its filters, and handlers with a `handle` of their own
        _guard_factory()
    if _prefix != "":
        _prefix = prefix


def log_error_samples() -> Iterator[Sample]:
    """Yield how often each handler has raised in this process."""
    for name, count in list(_errors.items()):
        yield "nonet_log_errors_total", (name,), count


def _guard(kind: type[_T]) -> None:
    original = kind.handle

    @wraps(original)
    def handle(self: _T, record: logging.LogRecord) -> Any:
        try:
            return original(self, record)
        except Exception as error:
            if not record.name.startswith(_prefix or ""):
                raise
            _failed(type(self).__qualname__, error)
            return False

    kind.handle = handle  # type: ignore[method-assign]


def _guard_factory() -> None:
    original = logging.Logger.makeRecord

    @wraps(original)
    def make_record(self: logging.Logger, *args: Any, **options: Any) -> logging.LogRecord:
        try:
            return original(self, *args, **options)
        except Exception as error:
            if not self.name.startswith(_prefix or ""):
                raise
            _failed("record factory", error)
            return logging.LogRecord(*args[:7])  # without what the author added

    logging.Logger.makeRecord = make_record  # type: ignore[method-assign]


def _failed(name: str, error: Exception) -> None:
    _errors[name] += 1
    if _errors[name] == 1:  # this line may fail in the same handler
        logger.error(
            "log handler raises, its lines are lost: handler=%s error=%s: %s; further errors are "
            "counted in nonet_log_errors_total",
            name,
            type(error).__name__,
            error,
        )
