"""Whose task it is: its tenant. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LONGEST = 64  # characters of a tenant
_LABEL = "label:"
BY_VO = "vo"  # what tells tenants apart unless the configuration says otherwise


def by_problem(by: str) -> str:
    """Return why `by` cannot tell tenants apart; empty if it can.

    >>> by_problem("label:group"), by_problem("label:")
    ('', 'must be vo, class or label:NAME')
    """
    is_known = by in (BY_VO, "class") or by.removeprefix(_LABEL) not in ("", by)
    return "" if is_known else "must be vo, class or label:NAME"


def tenant_of(by: str, name: str, vo: str, labels: Mapping[str, Any]) -> str:
    """Return the tenant of a task; empty for those that have none, which share as one.

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
    return "".join(char if char.isprintable() else "?" for char in found[:_LONGEST])
