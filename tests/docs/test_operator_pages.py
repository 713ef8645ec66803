"""Tables on the pages for operators that list something completely: the code has just that."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

from docs.pages import Page, codes

from nonet.operate import doctor
from nonet.rules import diagnosis, servers
from nonet.rules.explanation import Cause
from nonet.rules.outcomes import Reason
from nonet.rules.permissions import ACTIONS, Action, Role
from nonet.stores.queue import workers
from nonet.stores.queue.workers import DRAINS
from nonet.stores.sql.dead_letters import Status

OPERATE = Page.read("how-to/operate.md")
DEAD_LETTERS = Page.read("how-to/dead-letters.md")


def _first_column(page: Page, head: str) -> list[str]:
    """What the first column names in code, of the table whose head begins so."""
    return [name for row in page.rows(head=head) for name in codes(row[0])]


def _constants(module: object, call: str) -> set[str]:
    """The first argument of each call of that name."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))  # type: ignore[attr-defined]  # a module
    return {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == call
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }


def test_each_cause_of_explain_has_a_next_step() -> None:
    """The page has a row for each cause that the code can name, and for no other."""
    page = Page.read("how-to/find-out-why-it-waits.md")
    assert set(_first_column(page, "| `cause` |")) == set(get_args(Cause))


def test_each_kind_of_finding_of_the_doctor_has_a_next_step() -> None:
    """The table has the kinds of the code, and no other."""
    told = _first_column(OPERATE, "| `kind` |")
    kinds = set[str]().union(
        *(_constants(module, "Finding") for module in (diagnosis, servers, doctor))
    )
    assert sorted(told) == sorted(kinds)


def test_each_reason_of_a_dead_letter_has_a_next_step() -> None:
    """All but that of cancelled tasks, which are no dead letters."""
    told = _first_column(DEAD_LETTERS, "| `reason` |")
    assert sorted(told) == sorted(set(Reason) - {Reason.CANCELLED})


def test_the_page_explains_each_status_of_a_dead_letter() -> None:
    """With what it means."""
    assert _first_column(DEAD_LETTERS, "| `status` |") == list(Status)


def test_the_page_explains_each_state_of_a_worker() -> None:
    """With what to do."""
    told = _first_column(OPERATE, "| `state` | it means |")
    # Rest state, a beat that is due, a veto, a drain: all that the rule knows.
    states = {
        workers._state(now, 0, 30, off, running)
        for now in (1, 21, 31)
        for off in ("", DRAINS, "memory is short")
        for running in (0, 1)
    }
    assert sorted(told) == sorted(states)


def test_each_role_has_its_actions() -> None:
    """The page about the dashboard has each role with its actions, and each action once."""
    page = Page.read("how-to/secure-the-dashboard.md").source
    for role in Role:
        (row,) = re.findall(rf"(?m)^\| `{role}` \| (.+) \|$", page)
        assert set(re.findall(r"`(\w+)`", row)) == set(ACTIONS[role])
    verbs = "see|submit|pause|run|let|delete|change"
    named = re.findall(rf"(?m)^\| ((?:`\w+`(?:, )?)+) \| (?:{verbs})", page)
    assert sorted(name for row in named for name in re.findall(r"\w+", row)) == sorted(Action)
