"""The list of commands of ``task-run``, which imports none of them."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from nonet.cli import run

# What is left of 80 columns beside the longest name.
_COLUMNS = 62


@pytest.mark.parametrize("name", run.PLACES)
def test_the_list_has_the_first_sentence_of_the_help_of_a_command(name: str) -> None:
    """The line is not cut at 80 columns."""
    group: Any = get_command(run.app)
    assert group.commands[name].get_short_help_str(_COLUMNS) == run.PLACES[name].help
    assert len(run.PLACES[name].help) <= _COLUMNS
