"""The namespace of a task, by its tenant. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

OTHERS = "*"
"""Stands in routes for all tenants that are not listed."""

_TERM = "tenant|"


def namespace_of(routes: Mapping[str, str], tenant: str) -> str:
    """Return the namespace for tasks of a tenant; empty: the one to which they are submitted.

    >>> routes = {"lhcb": "a", "*": "main"}
    >>> namespace_of(routes, "lhcb"), namespace_of(routes, "atlas"), namespace_of({}, "lhcb")
    ('a', 'main', '')
    """
    return routes.get(tenant) or routes.get(OTHERS, "")


def tenant_in(terms: str) -> str:
    """Return the tenant in the terms of a submission; empty: it has none.

    >>> tenant_in("by|7\\ntenant|lhcb"), tenant_in("by|7")
    ('lhcb', '')
    """
    lines = (line for line in terms.split("\n") if line.startswith(_TERM))
    return next((line.removeprefix(_TERM) for line in lines), "")


def split_problem(what: str, homes: Collection[str]) -> str:
    """Return why tasks cannot be submitted together; empty: all belong to one namespace.

    Args:
        what: ``group``, ``workflow`` …
        homes: the namespaces of the tasks.

    >>> split_problem("group", ["a", "a"])
    ''
    >>> split_problem("group", ["main", "a"]).partition(":")[0]
    'its group would be in the namespaces a and main'
    """
    found = sorted({*homes})
    if len(found) < 2:
        return ""
    return (
        f"its {what} would be in the namespaces {', '.join(found[:-1])} and {found[-1]}: "
        f"a {what} belongs to one; submit the tasks of each tenant in a {what} of their own"
    )


def away_problem(what: str, namespace: str, home: str) -> str:
    """Return why a running task cannot submit something together with itself.

    Args:
        what: ``group``, ``workflow`` …
        namespace: where it runs.
        home: where the tenant of the new tasks belongs.

    >>> away_problem("group", "main", "a").partition(":")[0]
    'the group would be in namespace a, but its parent runs in namespace main'
    """
    return (
        f"the {what} would be in namespace {home}, but its parent runs in namespace "
        f"{namespace}: they belong to one; submit tasks of another tenant alone, with schedule()"
    )
