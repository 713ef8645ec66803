"""Format the output of ``task-run dlq list`` and ``show``."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nonet.cli.output import print_fields, print_table, print_text, usage_in_words

if TYPE_CHECKING:
    from nonet.stores.sql.dead_letters import Cluster, DeadLetter

# Fields that lists leave out, and that `details` shows.
_LONG = ("task_args", "traceback", "history", "labels")


def document(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter as JSON, without its long fields."""
    return {
        field.name: getattr(letter, field.name)
        for field in dataclasses.fields(letter)
        if field.name not in _LONG
    }


def details(letter: DeadLetter) -> dict[str, Any]:
    """Return the long fields of a letter, except its arguments."""
    from nonet.tasks.secrecy import mask_names

    return {
        "labels": mask_names(letter.labels),
        "history": [{**attempt, "at": _instant(attempt.get("at"))} for attempt in letter.history],
        "traceback": letter.traceback,
    }


def row(letter: DeadLetter, *, with_namespace: bool) -> dict[str, Any]:
    """Return a letter as a row of a table."""
    return {
        "row": letter.id,
        **({"namespace": letter.namespace} if with_namespace else {}),
        "status": letter.status,
        "task": letter.task_class or "(not decodable)",
        "task_id": letter.task_id,
        "reason": letter.reason,
        "retries": letter.retry_count,
        "died": letter.created_at,
        "error": letter.last_error.partition("\n")[0][:200],
    }


def cluster_row(found: Cluster) -> dict[str, Any]:
    """Return a cluster as a row of a table."""
    from nonet.stores.sql.letters import Status  # slow to import: 170 ms

    return {
        "cluster": found.fingerprint,
        "task": found.task_class or "(not decodable)",
        "error": found.error_type or found.reason,
        "place": found.place,
        "letters": found.count,
        "pending": found.statuses[Status.PENDING],
        "last_day": found.last_day,
        "first": found.first,
        "last": found.last,
    }


def print_letter(document: dict[str, Any]) -> None:
    """Print a letter with its attempts and its traceback."""
    texts = {name: document.pop(name) for name in ("traceback", "history")}
    print_fields(document)
    if texts["history"]:
        print_text("\nattempts")
        print_table([], [_attempt_cells(attempt) for attempt in texts["history"]])
    if texts["traceback"]:
        print_text(f"\n{texts['traceback']}")


def _instant(seconds: Any) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _attempt_cells(attempt: dict[str, Any]) -> list[Any]:
    from nonet.messages.message import Usage

    usage = Usage(*(attempt.get(name) for name in ("wall", "cpu", "rss")))
    return [attempt.get(name) for name in ("attempt", "at", "error")] + [usage_in_words(usage)]
