"""Commands that messages print are quoted for a shell."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nonet

_ROOT = Path(nonet.__file__).parent
# The text of a message before a value that is a word of a command.
_COMMAND = re.compile(r"\b(task-(run|worker|scheduler)|redis-cli)( [\w-]+)* ?$")
# Numbers, and names that we have chosen.
_SAFE = {"size", "verb", "letter.id", "row"}


def test_values_in_commands_are_quoted() -> None:
    """Ids are chosen by callers, so a printed `task-run cancel {id}` could be any command."""
    found = []
    for file in sorted(_ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.JoinedStr):
                continue
            for before, value in zip(node.values, node.values[1:], strict=False):
                if isinstance(before, ast.Constant) and isinstance(value, ast.FormattedValue):
                    source = ast.unparse(value.value)
                    is_word = _COMMAND.search(str(before.value)) and source not in _SAFE
                    if is_word and not isinstance(value.value, ast.Call):
                        found.append(f"{file.relative_to(_ROOT)}:{node.lineno}: {source}")
    assert not found, "use nonet.rules.remedies: " + ", ".join(found)
