"""Keys of unique tasks: which tasks are the same, in every process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nonet import BaseTask, Unique
from nonet.base.errors import AdmissionRejected
from nonet.tasks.arguments import Arguments
from nonet.tasks.unique import UniqueMode, unique_lock, unique_term, with_unique_lock


@dataclass
class Collect(BaseTask):
    names: set[str] = field(default_factory=set)
    options: dict[str, Any] = field(default_factory=dict)

    async def execute(self) -> None: ...


class Keyed(Collect):
    def unique_key(self) -> str:
        return "mine"


UNTIL_DONE = Unique.until_done()


def key(task: BaseTask, unique: Unique = UNTIL_DONE, name: str = "a:A") -> str:
    return unique.key_of(task, name, Arguments(type(task)).pack(task))


def test_tasks_of_one_class_with_equal_arguments_have_one_key() -> None:
    """The order in which a set or a mapping was made does not matter."""
    one = Collect({"a", "b"}, {"x": 1, "y": {"p": 2, "q": 3}})
    other = Collect({"b", "a"}, {"y": {"q": 3, "p": 2}, "x": 1})
    assert key(one) == key(other) != key(one, name="b:B")
    assert len(key(one)) == 32
    different = [Collect({"a"}), Collect({"a", "b"}, {"x": 1}), Collect()]
    assert len({key(task) for task in (one, *different)}) == 4


def test_a_key_is_the_same_in_every_process() -> None:
    names = "{'n%d' % n for n in range(50)}"
    code = f"from tasks.test_unique import Collect, key\nprint(key(Collect({names})), end='')"
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout == key(Collect({f"n{number}" for number in range(50)}))


def test_a_given_key_is_shared_by_all_classes() -> None:
    given_key = key(Collect(), Unique.until_done("mine"))
    assert key(Keyed(), Unique.for_seconds(5)) == given_key
    assert key(Collect({"x"}), Unique.until_start(lambda task: "mine"), "b:B") == given_key
    assert key(Keyed(), Unique.until_done("other")) != given_key


def test_keep_latest_has_keys_of_its_own() -> None:
    assert key(Collect(), Unique.keep_latest("mine")) != key(Collect(), Unique.until_done("mine"))


@pytest.mark.parametrize("made", ["", 7, b"x"])
def test_a_key_must_be_a_non_empty_text(made: Any) -> None:
    """A missing id must not make all tasks one."""
    with pytest.raises(ValueError, match="must be a non-empty text"):
        key(Collect(), Unique.until_done(lambda task: made))
    with pytest.raises(ValueError, match=r"^unique: key .* must be a non-empty text"):
        Unique.until_done(key=made)


def test_an_unknown_mode_is_refused() -> None:
    mode: Any = "until_done"
    with pytest.raises(ValueError, match=r"is not a mode; write Unique.until_start\(\)"):
        Unique(mode)


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_texts_are_different_keys(one: str, other: str) -> None:
    keys = [key(Collect(), Unique.until_done(text)) for text in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e12, "10", None, True])
def test_for_seconds_refuses_an_impossible_span(seconds: Any) -> None:
    with pytest.raises(ValueError, match="for_seconds"):
        Unique.for_seconds(seconds)


def test_debounce_is_keep_latest_with_a_delay() -> None:
    """Same keys and lock; the time is a delay of the submission, and no time of the key."""
    debounce = Unique.debounce(5, "mine")
    assert key(Collect(), debounce) == key(Collect(), Unique.keep_latest("mine"))
    assert unique_lock(debounce, "0f") == unique_lock(Unique.keep_latest(), "0f")
    assert unique_term(debounce, "0f") == unique_term(Unique.keep_latest(), "0f")
    with pytest.raises(ValueError, match="debounce: 0 must be a number of seconds"):
        Unique.debounce(0)


def test_only_keep_latest_brings_a_lock() -> None:
    uniques = [Unique.until_start(), Unique.until_done(), Unique.for_seconds(1)]
    assert [unique_lock(unique, "0f") for unique in uniques] == ["", "", ""]
    line = unique_lock(Unique.keep_latest(), "0f")
    assert with_unique_lock("", f"M|lock:mutex:job:7||||\n{line}") == line
    assert with_unique_lock("a", line) == f"a\n{line}"
    assert with_unique_lock("a", "b") == "a"
    assert {unique_term(u, "0f").split("|")[1] for u in uniques} < {str(m) for m in UniqueMode}


def test_a_refusal_can_be_pickled() -> None:
    error = AdmissionRejected(4, 5, 7, scope="stream:normal:small", wanted=3, accepted=500)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) and vars(copy) == vars(error)
    assert "3 tasks were not submitted: stream normal:small has 4 of at most 5 tasks" in str(error)
    assert "500 tasks of the same call were submitted before; try again in 7 s" in str(error)
