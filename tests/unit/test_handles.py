"""Handles are texts, and what type checkers know of a submission is what it takes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from nonet import BaseTask, Client, Handle, Nonet
from nonet.tasks.task import SubmitOptions


@pytest.fixture
def handle() -> Handle:
    """One of a client that never connects."""
    return Handle("some-id", Nonet.__new__(Nonet))


@dataclasses.dataclass
class Kept:
    handle: str


def test_a_handle_is_its_id(handle: Handle) -> None:
    """It compares, hashes and serialises as such."""
    assert handle == "some-id"
    assert {handle: 1}["some-id"] == 1
    assert json.dumps([handle]) == '["some-id"]'


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda one: dataclasses.asdict(Kept(one))["handle"]]
)
def test_a_copy_of_a_handle_is_the_handle(handle: Handle, copied: Callable[[Any], Any]) -> None:
    """What holds handles can be copied, and these still ask."""
    assert copied(handle) is handle


def test_a_handle_for_another_process_is_its_id(handle: Handle) -> None:
    """The client stays here."""
    sent = pickle.loads(pickle.dumps(handle))
    assert type(sent) is str
    assert sent == "some-id"


@pytest.mark.parametrize("submit", [BaseTask.schedule, Client.submit, Nonet.submit])
def test_type_checkers_know_all_options_of_a_submission(submit: Callable[..., Any]) -> None:
    """The options that overloads name together are those that the functions take."""
    taken = [name for name in inspect.signature(submit).parameters if name not in ("self", "task")]
    assert taken == list(SubmitOptions.__annotations__)
