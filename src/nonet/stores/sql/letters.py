"""The table of dead letters: its columns, rows and conditions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from nonet.base.errors import MalformedMessageError
from nonet.base.messages.documents import decrypted_bytes
from nonet.base.messages.encryption import MARK, Cipher, is_encrypted_text
from nonet.rules.findings import remedies
from nonet.rules.fingerprints import fingerprint_of, location_of
from nonet.rules.letters import DeadLetter, LetterFilter, NewDeadLetter, Status
from nonet.stores.sql.database import LONG_BINARY, LONG_TEXT, UtcDateTime

TEXT_BYTES = 65_535  # of a TEXT column in MySQL
TRACEBACK_BYTES = 256 * 1024
DETAIL_BYTES = 4096  # of each text in the history and the labels
HISTORY_ENTRIES = 100


# ---- the table (created by migrations/versions; a test compares the two) ------------------------


class _Json(sa.types.TypeDecorator[Any]):
    """A JSON column in which malformed text is None: SQLite stores any text."""

    impl = sa.JSON
    cache_ok = True

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], Any]:
        parse = self.impl_instance.result_processor(dialect, coltype)

        def parsed(value: Any) -> Any:
            with suppress(ValueError):
                return parse(value) if parse else value
            return None

        return parsed


dlq_tasks = sa.Table(
    "dlq_tasks",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    sa.Column("namespace", sa.String(64), nullable=False),
    sa.Column("task_id", sa.String(128), nullable=False),
    sa.Column("generation", sa.BigInteger(), nullable=False),
    sa.Column("status", sa.String(16), nullable=False, index=True),
    sa.Column("task_class", sa.String(255), nullable=False),
    sa.Column("reason", sa.String(64), nullable=False),
    sa.Column("vo", sa.String(255)),
    sa.Column("parent_id", sa.String(128)),
    sa.Column("resubmitted_from", sa.BigInteger()),
    sa.Column("resubmitted_as", sa.String(128)),
    sa.Column("resubmissions", sa.Integer(), nullable=False),
    sa.Column("submitted_at", UtcDateTime(), nullable=False),
    sa.Column("last_attempted_at", UtcDateTime()),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("retry_count", sa.Integer(), nullable=False),
    sa.Column("max_retries", sa.Integer()),
    sa.Column("error_type", sa.String(255), nullable=False),
    sa.Column("error_message", sa.Text(), nullable=False),
    sa.Column("last_error", sa.Text(), nullable=False),
    sa.Column("fingerprint", sa.String(16), nullable=False),
    sa.Column("location", sa.String(255), nullable=False),
    sa.Column("note", sa.String(1000), nullable=False),
    sa.Column("labels", _Json(), nullable=False),
    sa.Column("history", _Json(), nullable=False),
    # Large values last: SQLite must read through them to reach later columns.
    sa.Column("traceback", LONG_TEXT, nullable=False),
    sa.Column("task_args", LONG_BINARY, nullable=False),
    sa.UniqueConstraint("namespace", "task_id", "generation", name="uq_dlq_tasks_identity"),
    # Clusters are counted by this index alone, without reading rows.
    sa.Index("ix_dlq_tasks_clusters", "namespace", "fingerprint", "status", "created_at", "id"),
)


def clauses(selection: LetterFilter) -> list[sa.ColumnElement[bool]]:
    """Return the filters as conditions on the table."""
    names = ("status", "reason", "task_id")
    wanted = {name: getattr(selection, name) for name in names}
    found = [dlq_tasks.c[name] == value for name, value in wanted.items() if value is not None]
    if selection.task_class is not None:
        column = dlq_tasks.c.task_class
        bare = column.endswith(f":{selection.task_class}", autoescape=True)
        found.append(column == selection.task_class if ":" in selection.task_class else bare)
    if selection.died_before is not None:
        found.append(dlq_tasks.c.created_at < selection.died_before)
    if selection.died_after is not None:
        found.append(dlq_tasks.c.created_at > selection.died_after)
    if selection.error is not None:
        found.append(dlq_tasks.c.error_type.icontains(selection.error, autoescape=True))
    if selection.fingerprints is not None:
        found.append(dlq_tasks.c.fingerprint.in_(selection.fingerprints))
    if selection.up_to is not None:
        found.append(dlq_tasks.c.id <= selection.up_to)
    if selection.rows is not None:
        found.append(dlq_tasks.c.id.in_(selection.rows))
    return found


def columns(letter: NewDeadLetter, cipher: Cipher) -> dict[str, Any]:
    """The columns of a new row.

    Args:
        cipher: decrypts the traceback, which has the location of the error.
    """
    error = _last_error(letter.error_type, letter.error_message) or letter.reason
    traceback = cipher.decrypt_text(letter.traceback, letter.task_id, "traceback")
    return {
        "task_id": identity(letter.task_id),
        "generation": letter.generation,
        "status": Status.PENDING,
        "task_class": _chars(letter.task_class, 255),
        "reason": _chars(letter.reason, 64),
        "vo": None if letter.vo is None else _chars(letter.vo, 255),
        "parent_id": None if letter.parent_id is None else identity(letter.parent_id),
        "resubmitted_from": letter.resubmitted_from,
        "resubmissions": 0,
        "submitted_at": letter.submitted_at,
        "last_attempted_at": letter.last_attempted_at,
        "created_at": datetime.now(UTC),
        "retry_count": letter.retry_count,
        "max_retries": letter.max_retries,
        "error_type": _chars(letter.error_type, 255),
        "error_message": storable(letter.error_message, TEXT_BYTES),
        "last_error": storable(error, TEXT_BYTES),
        "note": "",
        "labels": _storable_json(letter.labels),
        "history": _storable_json(letter.history[-HISTORY_ENTRIES:]),
        "traceback": storable(letter.traceback, TRACEBACK_BYTES),
        "task_args": letter.task_args,
        **cause(letter.task_class, letter.error_type, letter.reason, traceback),
    }


def _last_error(error_type: str, message: str) -> str:
    """The error as one text; of an encrypted one only the class."""
    if is_encrypted_text(message):
        return error_type
    return f"{error_type}: {message}".strip(": ")


def cause(task_class: str, error_type: str, reason: str, traceback: str) -> dict[str, str]:
    """The columns ``fingerprint`` and ``location`` of a letter."""
    location = _chars(location_of(storable(traceback, TRACEBACK_BYTES)), 255)
    values = _chars(task_class, 255), _chars(error_type, 255), _chars(reason, 64)
    return {"fingerprint": fingerprint_of(*values, location), "location": location}


def letter_of(row: sa.Row[Any], cipher: Cipher, **absent: Any) -> DeadLetter:
    """The letter of a row, decrypted as far as `cipher` has the keys."""
    values = {**row._mapping, **absent}
    if not isinstance(values["labels"], dict) or not isinstance(values["history"], list):
        discard = remedies.command("task-run", "dlq", "discard", str(values["id"]))
        raise MalformedMessageError(
            f"dead letter {values['id']}: another program damaged its labels or its history: "
            f"discard it with '{discard}'"
        )
    id, error = values["task_id"], values["error_message"]
    values["task_args"] = decrypted_bytes(values["task_args"], id, cipher)
    values["history"] = [_decrypted(item, id, cipher) for item in values["history"]]
    if is_encrypted_text(error):
        values["error_message"] = cipher.decrypt_text(error, id, "error")
        values["last_error"] = _last_error(values["error_type"], values["error_message"])
    if traceback := values.get("traceback"):
        values["traceback"] = cipher.decrypt_text(traceback, id, "traceback")
    return DeadLetter(**{**values, "status": Status(values["status"])})


def _decrypted(attempt: Mapping[str, Any], id: str, cipher: Cipher) -> Mapping[str, Any]:
    """Decrypt error and log of an attempt; the class name before the error is not encrypted."""
    if log := attempt.get("log"):
        attempt = {**attempt, "log": cipher.decrypt_text(str(log), id, "log")}
    error_type, mark, text = str(attempt.get("error", "")).partition(f": {MARK}")
    if not mark:
        return attempt
    return {**attempt, "error": f"{error_type}: {cipher.decrypt_text(MARK + text, id, 'error')}"}


# ---- texts that every database accepts -----------------------------------------------------------


def storable(text: str, limit: int) -> str:
    r"""Shorten ``text`` to at most ``limit`` bytes of UTF-8 by cutting its middle.

    NUL (which PostgreSQL refuses) and lone surrogates (which UTF-8 cannot encode) are escaped.

    >>> storable("caf\xe9 \udce9\0", 100)
    'café \\udce9\\x00'
    >>> storable("a" * 50 + "z" * 50, 40)
    'aaaaaa … cut from 100 bytes … zzzzzz'
    """
    data = text.encode("utf-8", "backslashreplace").replace(b"\0", b"\\x00")
    if len(data) <= limit:
        return data.decode()
    mark = f" … cut from {len(data)} bytes … ".encode()
    end = (limit - len(mark)) // 2
    return b"".join((data[:end], mark, data[-end:])).decode(errors="ignore")


def _chars(text: str, limit: int) -> str:
    """Shorten a text for a column that counts characters."""
    return storable(text, 4 * limit)[:limit]


def identity(task_id: str) -> str:
    """Shorten a task id to its column: its start and a digest.

    Without the digest two long ids could become one, and the second letter would be lost. An id
    that ends with blanks gets a digest, too, as MySQL ignores them in comparisons.
    """
    if task_id == storable(task_id, 512)[:128].rstrip():
        return task_id
    digest = hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{storable(task_id, 512)[:63]}~{digest}"


def _storable_json(value: Any) -> Any:
    """Copy a value for a JSON column: no NaN, no types that JSON lacks, each text `storable`."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return storable(value, DETAIL_BYTES)
        case Mapping():
            return {storable(str(k), DETAIL_BYTES): _storable_json(v) for k, v in value.items()}
        case list() | tuple():
            return [_storable_json(item) for item in value]
        case _:
            return storable(str(value), DETAIL_BYTES)
