"""The page before one's first task, followed literally where Nonet is installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from docs.followed import followed
from docs.pages import Page

pytestmark = pytest.mark.server


def test_a_task_is_added_from_this_page_alone() -> None:
    """A lock, a policy and a test; it runs, fails, is a dead letter and is submitted again."""
    installed = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])}
    with followed(Page.read("how-to/add-a-task.md"), environment=installed) as terminal:
        assert terminal.left() == []
