"""Tracebacks as bounded text, and the exceptions that are made of them for logs."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from nonet.rules.outcomes import ErrorSummary, summarize
from nonet.rules.tracebacks import TRACEBACK_BYTES, bounded, exception_of

SECRET = "hunter2"


def hide(text: str, is_cut: bool) -> str:
    return text.replace(SECRET, "***")


def caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it raises nothing")


def fall(depth: int, text: str = "bottom") -> None:
    if depth == 0:
        raise ValueError(text)
    fall(depth - 1, text)


def chained(text: str = SECRET) -> None:
    try:
        try:
            fall(0, text)
        except ValueError:
            raise KeyError(text)  # noqa: B904  # its context is what is tested
    except KeyError as error:
        raise OSError(text) from error


def grouped() -> None:
    parts = [caught(lambda: fall(0, "one")), caught(lambda: fall(0, "two"))]
    raise BaseExceptionGroup("both", parts)


def test_the_text_contains_the_causes_with_masked_texts() -> None:
    text = summarize(caught(chained), hide).traceback
    assert (
        text.index("ValueError: ***") < text.index("KeyError: '***'") < text.index("OSError: ***")
    )
    assert text.count("Traceback (most recent call last):") == 3
    assert "During handling of the above" in text and "was the direct cause" in text
    assert SECRET not in text


def test_the_text_leaves_out_a_suppressed_context() -> None:
    def raises() -> None:
        try:
            fall(0)
        except ValueError:
            raise KeyError from None

    assert "ValueError" not in summarize(caught(raises)).traceback


def test_the_text_contains_the_parts_of_a_group() -> None:
    text = summarize(caught(grouped)).traceback
    assert text.index("ValueError: one") < text.index("ValueError: two") < text.index("both")
    assert text.count("in fall") == 2


def test_a_cycle_of_causes_ends() -> None:
    error = caught(chained)
    assert error.__cause__ is not None
    error.__cause__.__cause__ = error
    assert summarize(error).traceback.count("OSError: ") == 1


@pytest.mark.parametrize(
    "error",
    [
        caught(lambda: fall(200)),
        caught(lambda: fall(20, "é" * 20_000)),
        caught(lambda: chained("x" * 20_000)),
    ],
)
def test_a_long_traceback_keeps_its_innermost_frames(error: BaseException) -> None:
    text = summarize(error).traceback
    assert len(text.encode()) <= TRACEBACK_BYTES
    assert "raise ValueError(text)" in text
    assert f"{type(error).__name__}: " in text


def test_a_bounded_text_is_cut_at_a_frame_and_has_a_mark() -> None:
    text = summarize(caught(lambda: fall(200))).traceback
    assert text.startswith("Traceback (most recent call last):\n  …\n  File ")
    text = summarize(caught(lambda: fall(50))).traceback
    cut = bounded("x" * 3000 + "\n" + text)
    assert len(cut.encode()) <= TRACEBACK_BYTES and cut.startswith("  …\n  File ")
    made = exception_of("ValueError", "bottom", cut)
    assert len(traceback.extract_tb(made.__traceback__)) > 10


def test_the_text_contains_notes() -> None:
    error = ValueError("no")
    error.add_note(f"row {SECRET}")
    assert summarize(error, hide) == ErrorSummary("ValueError", "no\nrow ***")


def as_logged(error: BaseException) -> BaseException:
    """What handlers of a log record get for an error."""
    found = summarize(error, hide)
    return exception_of(found.type, found.text, found.traceback)


def test_a_made_exception_reads_like_the_original() -> None:
    error = caught(chained)
    shown = "".join(traceback.format_exception(error)).replace(SECRET, "***")
    bare = [line for line in shown.splitlines(keepends=True) if line.strip(" ~^\n") or line == "\n"]
    made = as_logged(error)
    assert traceback.format_exception(made) != []
    assert "".join(traceback.format_exception(made)) == "".join(bare)
    assert (type(made).__name__, str(made)) == ("OSError", "***")


@pytest.mark.parametrize("raises", [chained, grouped])
def test_a_made_exception_has_no_values(raises: Callable[[], object]) -> None:
    ahead: list[BaseException | None] = [as_logged(caught(raises))]
    seen = 0
    while ahead:
        made = ahead.pop()
        if made is None:
            continue
        seen += 1
        ahead += [made.__cause__, made.__context__]
        assert SECRET not in repr(made.args) and vars(made) == {}
        for frame, _ in traceback.walk_tb(made.__traceback__):
            assert frame.f_locals == {} and frame.f_back is None
            assert set(frame.f_globals) <= {"__name__", "__builtins__"}
    assert seen == 3


@pytest.mark.parametrize("name", ["Outer.<locals>.Inner", "with\0null", ""])
def test_any_name_and_text_makes_an_exception(name: str) -> None:
    made = exception_of(name, "text", 'garbage\n\n  File "x", line 99999999, in y\n')
    assert str(made) == "text" and traceback.format_exception(made)
