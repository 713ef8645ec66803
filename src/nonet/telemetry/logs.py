"""Log lines of a daemon: text or JSON, labelled with their task, without secrets.

Code logs with `logging` or structlog. The task is looked up when a line is written, so a task that
logs nothing costs nothing. Nonet does not require structlog: it is set up where the code of tasks
has imported it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

from nonet.tasks.carried import carried_texts
from nonet.tasks.execution import current_secrets, current_subject
from nonet.telemetry.log_guard import guard_logging
from nonet.telemetry.masking import fields_without_secrets, text_of
from nonet.telemetry.tracing import current_ids

logger = logging.getLogger(__name__)

Format = Literal["auto", "console", "json"]

# Loggers whose INFO lines no operator needs: alembic names the kind of database each time.
_VERBOSE = ("alembic",)

# Parent of all our loggers.
_OURS = "nonet"

# The fields that Nonet sets; an author's field with one of these names is renamed.
_OWN = {"timestamp", "level", "logger", "namespace", "size", "worker"}
_OWN |= {"task_id", "task", "attempt", "trace_id", "span_id"}
# Escapes for text lines. Continuation lines are indented, so that logged text cannot forge a line,
# and control characters are escaped, so that it cannot control a terminal.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_ESCAPES |= {ord("\n"): "\n  ", ord("\t"): "\t"}
# How long to wait for the reader of a pipe, or for the line of another process.
_WRITE_SECONDS = 2.0
_POLL_SECONDS = 0.001

# What `logging` itself keeps in a record; everything else is a field that its author gave.
_STANDARD = logging.makeLogRecord({}).__dict__.keys()

_Fields = dict[str, Any]

_about_process: dict[str, str] = {}
# The handler of `set_up_logs`.
_lines: _Lines | None = None
# Whether `keep_logs` has reported what it restored.
_has_warned = False


def set_up_logs(format: Format, level: int, kept: int = 0) -> None:
    """Send the log lines of this process to its current stderr.

    Args:
        format: ``auto`` is JSON in a Kubernetes pod, text elsewhere.
        level: of the root logger, as a number of `logging`.
        kept: how many bytes of the lines of each attempt are also kept in its context.

    Example:
        set_up_logs("json", logging.INFO)
    """
    global _lines
    root = logging.getLogger()
    if _lines is not None:
        root.removeHandler(_lines)
        _lines.end()
    is_json = format == "json" or (format == "auto" and "KUBERNETES_SERVICE_HOST" in os.environ)
    _lines = _Lines(kept)
    _lines.setFormatter(_Formatter(_as_json if is_json else _as_text))
    guard_logging()
    root.addHandler(_lines)
    root.setLevel(level)
    # An application may set the level of the root logger, which must not change that of our lines.
    logging.getLogger(_OURS).setLevel(level)
    _enable_loggers()  # Django has configured logging before its commands start
    if level > logging.DEBUG:
        for name in _VERBOSE:
            logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_error
    sys.excepthook = _log_process_error
    adopt_structlog()


def keep_logs() -> None:
    """Restore the handler and loggers of `set_up_logs` if an application has removed them.

    ``logging.config.dictConfig`` removes the handlers of the root logger and disables all loggers
    that it does not name. This is cheap if there is nothing to restore.
    """
    global _has_warned
    root = logging.getLogger()
    if _lines is None or (_lines in root.handlers and not logger.disabled):
        return
    others = ", ".join(type(handler).__qualname__ for handler in root.handlers) or "none"
    if _lines not in root.handlers:
        root.addHandler(_lines)
    _enable_loggers()
    if not _has_warned:
        _has_warned = True
        logger.warning(
            "restored the log lines of this process: the application configured logging and "
            "removed them; its own handlers: %s",
            others,
        )


def _enable_loggers() -> None:
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(f"{_OURS}."):
            logging.getLogger(name).disabled = False


def adopt_structlog() -> None:
    """Send lines of structlog to `logging`, if this process logs as a daemon and has imported it.

    An application calls it when it has loaded the modules of tasks.
    """
    if _lines is None or "structlog" not in sys.modules:
        return
    structlog: Any = sys.modules["structlog"]  # code of tasks has imported it

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,  # without values of variables
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def describe_process(**fields: str) -> None:
    """Add fields to every JSON line of this process: ``namespace``, ``size``, ``worker``."""
    _about_process.update(fields)


def process_description() -> Mapping[str, str]:
    """The fields of `describe_process`, to pass on to child processes."""
    return dict(_about_process)


class _Lines(logging.Handler):
    """Write lines to a file descriptor of its own; drop lines that cannot be written.

    Nothing is buffered: a full disk neither raises at exit nor holds back later lines. The
    descriptor is a copy: if code closes ``sys.stderr``, the lines do not end up in another file.

    Several processes may share a pipe. Each takes the lock of the pipe to write a line; the kernel
    releases the lock of a process that dies.
    """

    def __init__(self, kept: int) -> None:
        super().__init__()
        self._kept = kept
        self._fd: int | None = None
        with suppress(AttributeError, OSError, ValueError):  # no stderr, or one without a file
            self._fd = os.dup(sys.stderr.fileno())
        self._may_block = self._fd is not None and not stat.S_ISREG(os.fstat(self._fd).st_mode)
        self._is_read = True
        self._is_cut = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, and keep it if the code of a task has logged it."""
        subject = current_subject() if self._kept else None
        if subject is not None and not f"{record.name}.".startswith(f"{_OURS}."):
            subject.keep_line(_formatted(record, _OF_A_TASK), self._kept)
        if self._fd is None:
            return
        data = _formatted(record, self).encode("utf-8", "backslashreplace") + b"\n"
        with suppress(OSError):
            if self._may_block:
                self._write_in_time(self._fd, data)
                return
            while data:
                data = data[os.write(self._fd, data) :]

    def _write_in_time(self, fd: int, data: bytes) -> None:
        """Write a line if the reader takes it within two seconds; never wait after a failure."""
        until = time.monotonic() + (_WRITE_SECONDS if self._is_read else 0)
        is_locked = _lock(fd, until)
        rest = b"\n" + data if self._is_cut else data
        self._is_read = False
        try:
            while rest and _is_writable(fd, until):
                # A pipe that is ready takes at least this much without blocking.
                rest = rest[os.write(fd, rest[: select.PIPE_BUF]) :]
                self._is_cut = bool(rest)
            self._is_read = not rest
        finally:
            if is_locked:
                fcntl.lockf(fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Do nothing: ``logging.config.dictConfig`` closes all handlers that exist."""

    def end(self) -> None:
        """Close the descriptor."""
        super().close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _lock(fd: int, until: float) -> bool:
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except (BlockingIOError, PermissionError):  # another process writes
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)
        except OSError:  # the file does not support locks
            return False


def _is_writable(fd: int, until: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(max(0.0, until - time.monotonic()) * 1000))


def _log_thread_error(what: threading.ExceptHookArgs) -> None:
    if what.exc_value is not None and not issubclass(what.exc_type, SystemExit):
        name = what.thread.name if what.thread is not None else "unknown"
        info = (what.exc_type, what.exc_value, what.exc_traceback)
        logger.error("thread ended with an error: thread=%s", name, exc_info=info)


def _log_process_error(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        logger.critical("the process ends with an error", exc_info=(kind, error, traceback))
    else:
        sys.__excepthook__(kind, error, traceback)


# ---- fields of a line ----------------------------------------------------------------------------


class _Formatter(logging.Formatter):
    """Make one line of a record of `logging`, or of structlog's, whose message is a mapping."""

    def __init__(self, render: Callable[[logging.LogRecord, _Fields], str]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        fields = self._own(record, carried_texts())
        subject = current_subject()
        if subject is not None:
            fields.update(task_id=subject.id, task=subject.name, attempt=subject.attempt)
        fields.update(current_ids())
        return self._render(record, fields)

    def _own(self, record: logging.LogRecord, more: Mapping[str, str]) -> _Fields:
        fields = _of_structlog(record) or self._of_logging(record)
        fields = {f"extra_{name}" if name in _OWN else name: fields[name] for name in fields}
        # Mask before rendering: a secret that JSON has escaped would not be recognized.
        return fields_without_secrets({**more, **fields}, current_secrets())

    def _of_logging(self, record: logging.LogRecord) -> _Fields:
        """Return message, ``extra`` and traceback; an extra does not replace the message."""
        fields: _Fields = {"event": record.getMessage()}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)  # without variables
        if record.stack_info:
            fields["stack"] = record.stack_info
        given = record.__dict__.items()
        extra = {name: value for name, value in given if name not in _STANDARD}
        named = {f"extra_{name}" if name in fields else name: extra[name] for name in extra}
        return {**_bound_by_structlog(), **named, **fields}


class _FormatterOfTask(_Formatter):
    """Make a line for the log of one attempt, which names neither the attempt nor its trace."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return _as_text(record, self._own(record, {}))


def _formatted(record: logging.LogRecord, by: logging.Handler | logging.Formatter) -> str:
    try:
        return by.format(record)
    except Exception as error:  # the arguments do not fit, or their own code fails
        where = f"{record.filename}:{record.lineno}"
        problem = f"log line cannot be formatted: at={where} error={type(error).__name__}"
        plain = (record.name, record.levelno, record.pathname, record.lineno, problem, (), None)
        return by.format(logging.LogRecord(*plain))


def _of_structlog(record: logging.LogRecord) -> _Fields | None:
    """Return the fields of a record of `adopt_structlog`, None for another."""
    if not hasattr(record, "_logger") or not isinstance(record.msg, dict):
        return None
    return {**_bound_by_structlog(), **record.msg}


def _bound_by_structlog() -> Mapping[str, Any]:
    """Return what the author has bound to the context with structlog, for lines of both kinds."""
    if "structlog.contextvars" not in sys.modules:
        return {}
    found: Mapping[str, Any] = sys.modules["structlog.contextvars"].get_contextvars()
    return found


def _as_json(record: logging.LogRecord, fields: _Fields) -> str:
    line = {
        "timestamp": _utc(record.created),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": text_of(fields.pop("event", "")),
        **_about_process,
        **fields,
    }
    return json.dumps(line, ensure_ascii=False)


def _as_text(record: logging.LogRecord, fields: _Fields) -> str:
    event = text_of(fields.pop("event", ""))
    below = [fields.pop(name) for name in ("stack", "exception") if name in fields]
    if str(fields.get("task_id")) in event:  # the line names its task already
        for name in ("task_id", "task", "attempt"):
            fields.pop(name, None)
    named = "".join(f" {name}={text_of(value)}" for name, value in fields.items())
    head = f"{_utc(record.created)} {record.levelname} {record.name}: {event}{named}"
    text = "\n".join([head, *map(text_of, below)])
    return text if text.isprintable() else text.translate(_ESCAPES)


def _utc(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


_OF_A_TASK = _FormatterOfTask(_as_text)
