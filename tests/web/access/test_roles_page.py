"""The page of the dashboard says what each role may do."""

from __future__ import annotations

import re
from pathlib import Path

from nonet.rules.permissions import ACTIONS, Action, Role

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "secure-the-dashboard.md"


def test_roles_are_those_of_the_code() -> None:
    """The tables have each role with its actions, and each action once."""
    text = PAGE.read_text(encoding="utf-8")
    for role in Role:
        (row,) = re.findall(rf"(?m)^\| `{role}` \| (.+) \|$", text)
        assert set(re.findall(r"`(\w+)`", row)) == set(ACTIONS[role])
    told = re.findall(
        r"(?m)^\| ((?:`\w+`(?:, )?)+) \| (?:see|submit|pause|run|let|delete|change)", text
    )
    assert sorted(name for row in told for name in re.findall(r"\w+", row)) == sorted(Action)
