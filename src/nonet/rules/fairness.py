"""The tenant of a task, and which tenants are listed separately. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

_LONGEST = 64  # characters of a tenant
_LABEL = "label:"
BY_VO = "vo"  # what identifies a tenant unless the configuration says otherwise
MOST_TENANTS = 100
"""How many tenants are listed separately; the figures of all others are summed."""
OTHERS = "(others)"
"""The name of all tenants beyond that number."""
NOBODY = "(none)"
"""How tasks without a tenant are shown; their name is empty."""
_Value = TypeVar("_Value")


def by_problem(by: str) -> str:
    """Return why `by` does not identify tenants; empty if it does.

    >>> by_problem("label:group"), by_problem("label:")
    ('', 'must be vo, class or label:NAME')
    """
    is_known = by in (BY_VO, "class") or by.removeprefix(_LABEL) not in ("", by)
    return "" if is_known else "must be vo, class or label:NAME"


def tenant_of(by: str, name: str, vo: str, labels: Mapping[str, Any]) -> str:
    """Return the tenant of a task; empty: none. Tasks without a tenant share as one.

    Args:
        by: ``vo``, ``class`` or ``label:NAME``.
        name: full name of the class.
        vo: see `nonet.tasks.task.vo_of`.
        labels: labels of the submission.

    >>> tenant_of("label:group", "demo:Hash", "lhcb", {"group": 7})
    '7'
    >>> tenant_of("class", "demo:Hash", "lhcb", {}), tenant_of("vo", "demo:Hash", "", {})
    ('demo:Hash', '')
    """
    if by == BY_VO:
        found = vo
    elif by == "class":
        found = name
    else:
        found = str(labels.get(by.removeprefix(_LABEL), ""))
    if found in (OTHERS, NOBODY):  # it would be mistaken for the others
        found = f"?{found[1:]}"
    found = found[:_LONGEST]
    if found.isprintable():
        return found
    return "".join(char if char.isprintable() else "?" for char in found)


def tenant_labels(by: str, tenant: str) -> dict[str, str]:
    """Return the labels that give a task to a tenant.

    Raises:
        ValueError: `by` is ``class``.

    >>> tenant_labels("vo", "lhcb"), tenant_labels("label:group", "a"), tenant_labels("vo", "")
    ({'vo': 'lhcb'}, {'group': 'a'}, {})
    """
    if tenant and by == "class":
        raise ValueError("tenant: its class is the tenant of a task here (fairness: by: class)")
    return {by.removeprefix(_LABEL): tenant} if tenant else {}


def inherited_labels(by: str, vo: str, labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels that give the tenant of a running task to the tasks that it creates.

    Args:
        by, vo, labels: of the running task, as for `tenant_of`.

    >>> inherited_labels("label:group", "lhcb", {"group": 7, "colour": "red"})
    {'vo': 'lhcb', 'group': 7}
    >>> inherited_labels("vo", "", {"colour": "red"}), inherited_labels("class", "lhcb", {})
    ({}, {'vo': 'lhcb'})
    """
    found: dict[str, Any] = {"vo": vo} if vo else {}
    name = by.removeprefix(_LABEL)
    if name != by and name in labels:
        found[name] = labels[name]
    return found


def order(
    named: Collection[str], tasks: Mapping[str, float], most: int = MOST_TENANTS
) -> tuple[list[str], int]:
    """Choose the tenants to list separately, and return how many of them are named.

    Args:
        named: the tenants that the configuration names: they come first, in this order.
        tasks: a number by tenant; the largest follow.

    >>> order(["lhcb"], {"cms": 2, "atlas": 7, "lhcb": 1, "belle": 3}, most=3)
    (['lhcb', 'atlas', 'belle'], 1)
    """
    first = list(named)[:most]
    known = {*first, OTHERS}
    others = sorted((-number, name) for name, number in tasks.items() if name not in known)
    return first + [name for _, name in others[: most - len(first)]], len(first)


def fold(values: Mapping[str, _Value], chosen: Collection[str]) -> Iterable[tuple[str, _Value]]:
    """Yield each value with the name to add it to: its own, or the common name of the others.

    >>> list(fold({"lhcb": 1, "cms": 2}, ["lhcb"]))
    [('lhcb', 1), ('(others)', 2)]
    """
    own = frozenset(chosen)
    return ((name if name in own else OTHERS, value) for name, value in values.items())
