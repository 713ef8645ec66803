"""Log lines of a daemon: text or JSON, with the task that they are about and without secrets.

Whoever logs uses `logging`, or structlog; here it is decided what becomes of that. Nothing is done
for a task before a line is written: what the line is about is looked up then.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal

import structlog
from structlog.processors import StackInfoRenderer, format_exc_info
from structlog.stdlib import ExtraAdder, PositionalArgumentsFormatter, ProcessorFormatter

from nonet.execution import current_subject
from nonet.telemetry.masking import fields_without_secrets, text_of
from nonet.telemetry.tracing import current_ids

Format = Literal["auto", "console", "json"]

# Who tells more than an operator wants: of each look at the tables, which kind of database it is.
_TALKATIVE = ("alembic",)

_Fields = MutableMapping[str, Any]

_about_process: dict[str, str] = {}


def set_up_logs(format: Format, level: int) -> None:
    """From now on this process logs to what is its stderr now.

    Args:
        format: ``auto`` is JSON in a pod of Kubernetes, text elsewhere.
        level: of the root logger, as `logging` numbers them.

    Example:
        set_up_logs("json", logging.INFO)
    """
    root = logging.getLogger()
    for former in [item for item in root.handlers if isinstance(item, _Lines)]:
        root.removeHandler(former)
        former.close()
    is_json = format == "json" or (format == "auto" and "KUBERNETES_SERVICE_HOST" in os.environ)
    handler = _Lines()
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[ExtraAdder()],
            processors=[
                structlog.contextvars.merge_contextvars,
                StackInfoRenderer(),
                format_exc_info,  # text, and never values of variables
                _mask,
                _add_subject,
                _as_json if is_json else _as_text,
            ],
        )
    )
    root.addHandler(handler)
    root.setLevel(level)
    if level > logging.DEBUG:
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            PositionalArgumentsFormatter(),
            ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def describe_process(**fields: str) -> None:
    """What every JSON line of this process says: ``namespace``, ``size``, ``worker``."""
    _about_process.update(fields)


def process_description() -> Mapping[str, str]:
    """What `describe_process` was told, for processes that work for this one."""
    return dict(_about_process)


class _Lines(logging.Handler):
    """Writes lines to a file descriptor of its own, and does without those that nobody takes.

    Nothing is buffered, so that a full disk neither raises at the exit nor keeps the lines after it
    from being written; and whoever closes ``sys.stderr`` does not let another file have them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fd: int | None = None
        with suppress(AttributeError, OSError, ValueError):  # there is none, or none of a file
            self._fd = os.dup(sys.stderr.fileno())

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        if self._fd is None:
            return
        try:
            line = self.format(record)
        except Exception as error:  # arguments that do not fit, or whose own code fails
            where = f"{record.filename}:{record.lineno}"
            problem = f"a log line could not be made at {where}: {type(error).__name__}"
            plain = (record.name, record.levelno, record.pathname, record.lineno, problem, (), None)
            line = self.format(logging.LogRecord(*plain))
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with suppress(OSError):
            while data:
                data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Give the descriptor back."""
        super().close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


# ---- processors of structlog ---------------------------------------------------------------------


def _mask(_logger: Any, _method: str, fields: _Fields) -> _Fields:
    """Mask what somebody said, before it is rendered: a secret may look like a part of JSON."""
    own = {name: fields.pop(name) for name in ("_record", "_from_structlog")}
    subject = current_subject()
    secrets = subject.secrets if subject is not None else ()
    return {**fields_without_secrets(fields, secrets), **own}


def _add_subject(_logger: Any, _method: str, fields: _Fields) -> _Fields:
    """Add which attempt, and which span, the line is about."""
    subject = current_subject()
    if subject is not None:
        fields.update(task_id=subject.id, task=subject.name, attempt=subject.attempt)
    fields.update(current_ids())
    return fields


def _as_json(_logger: Any, _method: str, fields: _Fields) -> str:
    record = fields.pop("_record")
    del fields["_from_structlog"]
    line = {
        "timestamp": _utc(record.created),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": text_of(fields.pop("event", "")),
        **_about_process,
        **fields,
    }
    return json.dumps(line, ensure_ascii=False)


def _as_text(_logger: Any, _method: str, fields: _Fields) -> str:
    record, event = fields.pop("_record"), text_of(fields.pop("event", ""))
    del fields["_from_structlog"]
    below = [fields.pop(name) for name in ("stack", "exception") if name in fields]
    if str(fields.get("task_id")) in event:  # the line says itself what it is about
        for name in ("task_id", "task", "attempt"):
            fields.pop(name, None)
    named = "".join(f" {name}={text_of(value)}" for name, value in fields.items())
    head = f"{_local(record.created)} {record.levelname} {record.name}: {event}{named}"
    return "\n".join([head, *map(text_of, below)])


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _local(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds)
    return f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03}"
