"""Tenants: the starts that each is due, which are reported by name, and how they are sorted."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nonet.rules.fairness import NOBODY, OTHERS, fold, order, tenant_of
from nonet.rules.figures import Times
from nonet.rules.tenants import (
    ORDERS,
    Share,
    TenantFigures,
    TenantLoad,
    due,
    shares,
    sorted_by,
    tenant_figures,
)
from nonet.rules.vectors import end_counts, vector

NAMES = ("a", "b", "c")


def started(small: int = 0, medium: int = 0, large: int = 0) -> dict[int, int]:
    return vector([], [], [], {}, (small, medium, large))


@pytest.mark.parametrize(
    ("wanted", "weights", "expected"),
    [
        ((100, 100, 100), (1, 1, 1), (30, 30, 30)),
        ((100, 100, 0), (3, 1, 1), (67.5, 22.5, 0)),
        ((10, 100, 100), (1, 1, 1), (10, 40, 40)),  # what one does not want is for the others
        ((10, 20, 100), (8, 1, 1), (10, 20, 60)),  # and again, what the next one does not want
        ((30, 30, 30), (1, 1, 100), (30, 30, 30)),
    ],
)
def test_starts_are_due_by_weight(
    wanted: tuple[int, ...], weights: tuple[int, ...], expected: tuple[float, ...]
) -> None:
    found = due(90, dict(zip(NAMES, wanted, strict=True)), dict(zip(NAMES, weights, strict=True)))
    assert tuple(found.get(name, 0) for name in NAMES) == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 50)), min_size=1), st.data())
def test_the_starts_that_are_due_are_fair(
    tenants: list[tuple[int, int]], data: st.DataObject
) -> None:
    """All starts are due, none beyond what is wanted, and who wants more has no less by weight."""
    wanted = {str(n): number for n, (number, _) in enumerate(tenants)}
    weights = {str(n): float(weight) for n, (_, weight) in enumerate(tenants)}
    starts = data.draw(st.integers(0, sum(wanted.values())))
    found = due(starts, wanted, weights)
    assert sum(found.values()) == pytest.approx(starts)
    by_weight = {name: number / weights[name] for name, number in found.items()}
    for name, number in found.items():
        assert number <= wanted[name] + 1e-6
        if number < wanted[name] - 1e-6:
            assert by_weight[name] >= max(by_weight.values()) - 1e-6


def test_the_starts_of_each_size_are_divided_separately() -> None:
    vectors = {"a": started(small=90), "b": started(large=10)}
    loads = {
        "a": TenantLoad(waiting={"small": 500}),
        "b": TenantLoad(waiting={"large": 500}),
        "idle": TenantLoad(waiting={}),
    }
    found = shares(vectors, loads, {"a": 1, "b": 1, "idle": 5})
    assert found == {"a": Share(0.9, 0.9), "b": Share(0.1, 0.1), "idle": Share(0, 0)}


def test_a_tenant_that_starts_too_little_is_behind() -> None:
    vectors = {"a": started(small=90), "b": started(small=10)}
    loads = {name: TenantLoad(waiting={"small": 1000}) for name in "ab"}
    found = shares(vectors, loads, {"a": 1, "b": 1})
    assert (found["b"].used, found["b"].due) == (0.1, 0.5)
    assert shares({}, loads, {"a": 1, "b": 1}) == {}


def test_the_figures_of_a_tenant_are_sums_over_all_slots() -> None:
    waits = [0] * 10 + [4]
    counts = end_counts(2, {"retries": 1}, 2)
    slots = [vector(counts, waits, [], {}, (5, 0, 1)), vector([1], [], [], {}, (1, 0, 0))]
    found = tenant_figures("a", TenantLoad(live=7), slots, 2.0, Share(0.5, 0.25))
    assert (found.started, found.ended, found.failed, found.retried) == (7, 4, 1, 2)
    assert found.wait.p50 is not None and 1 < found.wait.p50 <= 2.5


def test_configured_tenants_are_kept_before_those_with_most_tasks() -> None:
    tasks = {"b": 5.0, "c": 9.0, "d": 7.0, OTHERS: 1000.0}
    assert order(["z", "b"], tasks, most=3) == (["z", "b", "c"], 2)
    assert order(["z", "y", "x"], tasks, most=2) == (["z", "y"], 2)
    assert list(fold(tasks, ["c"])) == [(OTHERS, 5), ("c", 9), (OTHERS, 7), (OTHERS, 1000)]


@pytest.mark.parametrize("name", [OTHERS, NOBODY])
def test_a_reserved_name_of_a_tenant_is_replaced(name: str) -> None:
    assert tenant_of("label:group", "m:T", "", {"group": name}) == f"?{name[1:]}"


def test_a_tenant_is_printable_and_short() -> None:
    assert tenant_of("label:group", "m:T", "", {"group": "a\tb" + "c" * 64}) == "a?b" + "c" * 61


@pytest.mark.parametrize("by", ORDERS)
def test_the_sum_of_other_tenants_is_last_in_any_order(by: str) -> None:
    def tenant(name: str, number: int) -> TenantFigures:
        return TenantFigures(
            *(name, 1.0, number, number, float(number), number, 0.1, 0.1 * number),
            *(number, number, number, number, Times()),
        )

    found = [
        item.name for item in sorted_by([tenant("a", 1), tenant(OTHERS, 9), tenant("b", 2)], by)
    ]
    assert found == (["a", "b", OTHERS] if by in ("tasks", "name") else ["b", "a", OTHERS])
