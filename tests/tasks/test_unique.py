"""Keys of unique tasks: which tasks are the same, in every process."""

from __future__ import annotations

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


def test_equal_arguments_are_one_key() -> None:
    """Whatever the order in which a set or a mapping was made."""
    one = Collect({"a", "b"}, {"x": 1, "y": {"p": 2, "q": 3}})
    other = Collect({"b", "a"}, {"y": {"q": 3, "p": 2}, "x": 1})
    assert key(one) == key(other)
    assert len(key(one)) == 32


@pytest.mark.parametrize("other", [Collect({"a"}), Collect({"a", "b"}, {"x": 1}), Collect()])
def test_other_arguments_are_another_key(other: Collect) -> None:
    """As other classes are."""
    assert key(Collect({"a", "b"})) != key(other)
    assert key(other) != key(other, name="b:A")


def test_a_key_is_the_same_in_every_process() -> None:
    """Texts have another hash in each, and sets another order."""
    names = "{'n%d' % n for n in range(50)}"
    code = f"from tasks.test_unique import Collect, key\nprint(key(Collect({names})), end='')"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(seen) == 1


def test_a_given_key_is_one_for_all_classes() -> None:
    """Given as a text, made by a function or by the method of the class."""
    given_key = key(Collect(), Unique.until_done("mine"))
    assert key(Keyed(), Unique.for_seconds(5)) == given_key
    assert key(Collect({"x"}), Unique.until_start(lambda task: "mine"), "b:B") == given_key
    assert key(Keyed(), Unique.until_done("other")) != given_key


def test_keys_of_keep_latest_are_apart() -> None:
    """What it does to an older task must not happen to one of another mode."""
    assert key(Collect(), Unique.keep_latest("mine")) != key(Collect(), Unique.until_done("mine"))


@pytest.mark.parametrize("made", ["", 7, None, b"x"])
def test_a_key_is_a_text(made: Any) -> None:
    """An id that is missing must not make all tasks the same one."""
    with pytest.raises(ValueError, match="must be a non-empty text"):
        key(Collect(), Unique.until_done(lambda task: made))


@pytest.mark.parametrize("made", ["", 7, b"x"])
def test_a_wrong_key_is_refused_where_it_is_written(made: Any) -> None:
    """Not first when a task is submitted."""
    with pytest.raises(ValueError, match=r"^unique: key .* must be a non-empty text"):
        Unique.until_done(key=made)


def test_a_mode_is_one_of_four() -> None:
    """Whoever makes one by hand is told how it is done."""
    mode: Any = "until_done"
    with pytest.raises(ValueError, match=r"is not a mode; write Unique.until_start\(\)"):
        Unique(mode)


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_two_texts_are_two_keys(one: str, other: str) -> None:
    """Also with blanks, colons and what no encoding has."""
    keys = [key(Collect(), Unique.until_done(text)) for text in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e12, "10", None, True])
def test_for_seconds_takes_a_span(seconds: Any) -> None:
    """Above nothing, and no longer than ten years."""
    with pytest.raises(ValueError, match="for_seconds"):
        Unique.for_seconds(seconds)


def test_only_keep_latest_brings_a_lock() -> None:
    """It is kept beside those that the worker computes anew."""
    uniques = [Unique.until_start(), Unique.until_done(), Unique.for_seconds(1)]
    assert [unique_lock(unique, "0f") for unique in uniques] == ["", "", ""]
    line = unique_lock(Unique.keep_latest(), "0f")
    assert with_unique_lock("", f"M|lock:mutex:job:7||||\n{line}") == line
    assert with_unique_lock("a", line) == f"a\n{line}"
    assert with_unique_lock("a", "b") == "a"
    assert {unique_term(u, "0f").split("|")[1] for u in uniques} < {str(m) for m in UniqueMode}


def test_a_refusal_is_whole_in_another_process() -> None:
    """It is raised in child processes, too."""
    import pickle

    error = AdmissionRejected(4, 5, 7, scope="stream:normal:small", wanted=3, accepted=500)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) and vars(copy) == vars(error)
    assert str(error) == (
        "3 tasks were not submitted: stream normal:small has 4 of at most 5 tasks; 500 tasks of the"
        " same call were submitted before; try again in 7 s, or raise the ceiling (ceilings in"
        " NONET_CONFIG)"
    )
