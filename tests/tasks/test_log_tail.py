"""`LogTail`: what is kept of the lines of an attempt."""

from __future__ import annotations

from hypothesis import given, strategies as st

from nonet.tasks.log_tail import LogTail


@given(st.lists(st.text(max_size=30), min_size=1), st.integers(1, 5), st.integers(1, 60))
def test_the_newest_lines_are_kept_within_both_bounds(
    lines: list[str], most_lines: int, most_bytes: int
) -> None:
    """However long they are, and whatever characters they have."""
    tail = LogTail(most_lines, most_bytes)
    for line in lines:
        tail.add(line)
    kept = [line for line, _ in tail._lines]
    assert 1 <= len(kept) <= min(most_lines, len(lines))
    assert len("\n".join(kept).encode()) <= most_bytes
    whole = [line.encode("utf-8", "backslashreplace").decode() for line in lines]
    for line, original in zip(kept[::-1], whole[::-1], strict=False):
        assert original.startswith(line)
    dropped = f"… {len(lines) - len(kept)} earlier lines were dropped\n"
    assert tail.take().startswith(dropped) == (len(kept) < len(lines))
