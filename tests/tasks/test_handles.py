"""Handles are texts, and what type checkers know of a submission is what it takes."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from nonet import Handle, Nonet


@pytest.fixture
def handle() -> Handle:
    return Handle("some-id", Nonet.__new__(Nonet))


@dataclasses.dataclass
class Kept:
    handle: str


def test_a_handle_compares_and_travels_as_its_id(handle: Handle) -> None:
    assert handle == "some-id"
    assert {handle: 1}["some-id"] == 1
    assert json.dumps([handle]) == '["some-id"]'
    sent = pickle.loads(pickle.dumps(handle))
    assert (type(sent), sent) == (str, "some-id")


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda one: dataclasses.asdict(Kept(one))["handle"]]
)
def test_a_copy_of_a_handle_is_the_handle(handle: Handle, copied: Callable[[Any], Any]) -> None:
    assert copied(handle) is handle
