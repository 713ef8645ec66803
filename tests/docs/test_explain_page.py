"""The page about what `explain` says: every cause and every sentence, with what to do."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from types import ModuleType
from typing import get_args

import pytest
from docs.pages import ROOT, Page, codes

from nonet.rules.explanation import Cause, explain_kept

PAGE = Page.read("how-to/find-out-why-it-waits.md")
# What differs from task to task: …, a word in capitals, a number.
_OPEN = re.compile(r"…|\b(?!SQL\b)[A-Z]+(?:@[A-Z]+)?\b|\d+")
# What may stand behind any sentence.
_TAIL = re.compile(r"(; \d+ ahead of it)?(\. It (expires in|is about to expire).*)?$")


def test_the_page_has_every_cause_and_no_other() -> None:
    """A cause that the code can name has a row, and each row is of such a cause."""
    assert {cause for cause, _, _ in _rows()} == set(get_args(Cause))


def test_the_page_has_every_sentence_by_its_cause() -> None:
    """Each sentence that the tests of `explain` know is in a row of its cause."""
    missing = [
        (cause, text)
        for cause, text in _said()
        if not any(cause == of and _is_shown_as(text, sentence) for of, sentence in _shown())
    ]
    assert not missing


def test_the_page_has_no_sentence_that_is_never_said() -> None:
    """The other way round; what is said of durable tasks is looked at below."""
    said = list(_said())
    stale = [
        (cause, sentence)
        for cause, sentence in _shown()
        if cause != "hand-over"
        and not any(cause == of and _is_shown_as(text, sentence) for of, text in said)
    ]
    assert not stale


@pytest.mark.parametrize(("seconds", "is_led"), [(0.2, True), (60, True), (60, False)])
def test_the_page_has_what_is_said_of_durable_tasks(seconds: float, is_led: bool) -> None:
    """Also in its last words, which decide what to do."""
    found = explain_kept("a", seconds=seconds, is_led=is_led)
    ((_, says, then),) = [row for row in _rows() if row[0] == found.cause]
    assert re.fullmatch(_pattern(codes(says)[0]), found.text)
    for words in ("no scheduler leads", "still not in Redis"):
        assert (words in found.text) <= (f"`{words}`" in then)


def _rows() -> list[tuple[str, str, str]]:
    """`cause`, what it says (one or more code spans), what to do."""
    return [(codes(cause)[0], says, then) for cause, says, then in PAGE.rows(head="| `cause` |")]


def _shown() -> list[tuple[str, str]]:
    return [(cause, sentence) for cause, says, _ in _rows() for sentence in codes(says)]


def _is_shown_as(text: str, sentence: str) -> bool:
    return re.fullmatch(_pattern(sentence), _TAIL.sub("", text)) is not None


def _pattern(sentence: str) -> str:
    fixed = _OPEN.split(sentence)
    return "(?s)" + ".*".join(re.escape(part) for part in fixed)


def _said() -> Iterator[tuple[str, str]]:
    """Cause and whole text of each case in the tests of `explain`."""
    cases = _cases()
    for name in ("test_the_first_cause_in_words", "test_what_ends_a_task_early"):
        (mark,) = getattr(cases, name).pytestmark
        for _, cause, text in mark.args[1]:
            yield cause, text
    (mark,) = cases.test_what_live_workers_know_is_told.pytestmark
    for peers, needs, cause, _ in mark.args[1]:
        known = {"name": "x:T", "needs": needs, "workers": len(peers), "peers": peers}
        yield cause, cases.explain(cases.queued(**known)).text


def _cases() -> ModuleType:
    path = ROOT / "tests" / "rules" / "test_explanation.py"
    spec = importlib.util.spec_from_file_location("cases_of_explain", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
