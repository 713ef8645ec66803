"""Complete words in a shell: task classes that are registered here; entries, workflows in Redis.

Each press of TAB is a process, so everything slow is in `completion_words`. A completion
never reports an error: without Redis, or with a broken task module, it offers nothing.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from nonet.rules.periodic import EntryStatus

# Set by the shell's function, which typer writes.
_VARIABLE = "_TASK_RUN_COMPLETE"


def is_wanted() -> bool:
    """Return whether a shell has started this process to complete a line."""
    return _VARIABLE in os.environ


def complete(app: Callable[[], Any]) -> None:
    """Run an application that completes a line, and exits.

    Bash takes a colon for the end of a word. So it passes ``mailer:Se`` as three words, and
    expects only what follows the colon. Other shells pass it whole.
    """
    # Typer would use it to remove markup, which our help does not have: it is slow to import.
    sys.modules["rich"] = None  # type: ignore[assignment]
    if os.environ[_VARIABLE] != "complete_bash":
        app()
        return
    words = _joined(os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1])
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    before, colon, _ = words[-1].rpartition("=")[2].rpartition(":")
    found = io.StringIO()
    try:
        with redirect_stdout(found):
            app()
    finally:
        for line in found.getvalue().splitlines():
            typer.echo(line.removeprefix(before + colon))


def _joined(words: Iterable[str]) -> list[str]:
    """Join what bash has split at colons and equals signs.

    >>> _joined(["task-run", "list", "--task", "=", "mailer", ":", "Se"])
    ['task-run', 'list', '--task=mailer:Se']
    """
    joined: list[str] = []
    for word in words:
        if joined and word and (word[0] in ":=" or joined[-1][-1:] in (":", "=")):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def classes(context: typer.Context, incomplete: str) -> list[str]:
    """Return the full names of the task classes, and the bare names that begin like the word."""
    given = _given(context, "namespace", "state_dir", "tasks")
    return _names(_found(lambda finding: finding.classes(given)), incomplete)


def entry_classes(context: typer.Context, incomplete: str) -> list[str]:
    """Return the classes that have periodic entries, as `classes` does."""
    return _names([item.task for item in _entries(context)], incomplete)


def _names(classes: Iterable[str], incomplete: str) -> list[str]:
    names = sorted(set(classes))
    bare = sorted({name.rpartition(":")[2] for name in names}) if incomplete else []
    return [*names, *bare]


def entry_names(context: typer.Context) -> list[str]:
    """Return the names of the entries of the class on the line."""
    return sorted({item.name for item in _entries(context)})


def entry_vos(context: typer.Context) -> list[str]:
    """Return the VOs of the entries of the class on the line."""
    return sorted({item.vo for item in _entries(context) if item.vo})


def workflow_ids(context: typer.Context) -> list[str]:
    """Return the ids of the workflows whose state changed last."""
    given = _given(context, "namespace", "state_dir")
    return _found(lambda finding: finding.workflow_ids(given))


def _entries(context: typer.Context) -> list[EntryStatus]:
    given, task = _given(context, "namespace", "state_dir"), context.params.get("task")
    return _found(lambda finding: finding.entries(given, task))


def _given(context: typer.Context, *options: str) -> dict[str, Any]:
    """Return options that are on the line before the word."""
    return {name: context.params.get(name) for name in options}


def _found(find: Callable[[Any], list[Any]]) -> list[Any]:
    """Call a function that may print, log or fail; return nothing if it fails."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            from nonet.cli import completion_words  # slow; most presses of TAB do without

            return find(completion_words)
        except (Exception, SystemExit):
            return []
