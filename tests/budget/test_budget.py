"""What a task costs is counted, and compared with what was agreed (``budgets.json``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from budget import measure
from servers import RedisServer


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[measure.Bench]:
    """A server of our own: what others do there would be counted too."""
    home: Path = tmp_path_factory.mktemp("budget")
    with RedisServer() as server:
        yield measure.Bench(server, home)


@pytest.mark.parametrize("scenario", measure.SCENARIOS)
def test_costs_stay_in_their_budget(scenario: str, bench: measure.Bench) -> None:
    """No cost of a task grows by more than a tenth unnoticed; `make budget` tells and rewrites."""
    costs, budget = measure.measure(scenario, bench), measure.read_budgets()[scenario]
    wrong = measure.problems(scenario, costs, budget)
    assert wrong == [], f"see {measure.BUDGETS}; `make budget ARGS=--write` rewrites it"


@pytest.mark.parametrize(
    ("cost", "problem"),
    [
        (11.0, []),
        (11.1, ["drain: 11.1 commands, the budget is 10.0"]),
        (7.5, []),
        (7.4, ["drain: 7.4 commands: lower the budget, which is 10.0"]),
    ],
)
def test_a_budget_is_neither_exceeded_nor_forgotten(cost: float, problem: list[str]) -> None:
    """A cost that is a tenth above its budget fails, and so does one that is a quarter below."""
    assert measure.problems("drain", {"commands": cost}, {"commands": 10.0}) == problem
    few = {"trips": 0.05}  # as large as the difference between two runs
    assert measure.problems("drain", {"trips": 0.09}, few) == []
    busy = {"trips per second": 3.0}
    assert measure.problems("ten idle workers", busy, {"trips per second": 11.1}) == []


def test_each_budget_is_measured() -> None:
    """The file has what is measured, and nothing else."""
    assert list(measure.read_budgets()) == list(measure.SCENARIOS)
