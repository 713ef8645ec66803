"""Arguments and rows of scripts for tests that run them without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Fields of a delivered row, see the script fetch.
ID, GEN, FENCE, STREAM, ENTRY, ENVELOPE, LOCKS, WHOSE, STATE, ATTEMPT, DEATHS, HELD = range(12)
DOCUMENT, REASON, DIED, SAVED, CRASHES, SUSPECT, JUDGE = 13, 14, 15, 17, 18, 19, 20
# What a row leaves out, of which it says nothing.
_NOTHING_MORE = [*[""] * 8, "running", "0", "0", *[""] * 7, *["0"] * 3]


def whole_row(row: Sequence[str]) -> list[str]:
    """A row of a fetch with all fields."""
    return [*row, *_NOTHING_MORE[len(row) :]]


def settle_args(delivery: Sequence[Any], outcome: str, *rest: Any) -> tuple[Any, ...]:
    """What `settle` takes for one delivery, as the broker sends it.

    Args:
        delivery: id, gen, fence, stream and entry.
        rest: document, text, delay, started, how many tasks follow, and their arguments.
    """
    document, _, _, started, followers, *_ = rest
    if outcome == "done" and started == 1 and not followers:
        return (*delivery, "done", document)
    return (*delivery, "commit" if outcome == "done" else outcome, *rest)
