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


def test_commands_print_with_the_functions_that_escape() -> None:
    """Text of tasks may contain control characters, so only `nonet.cli.output` prints text."""
    own = {"output.py", "progress.py", "completion.py", "options.py", "probing.py"}
    printing = re.compile(r"\btyper\.(echo|secho)\(|\bprint\(")
    found = [
        f"{file.relative_to(_ROOT)}:{number}"
        for file in sorted((_ROOT / "cli").rglob("*.py"))
        if file.name not in own
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if printing.search(line)
    ]
    assert not found, "use echo or print_line of nonet.cli.output: " + ", ".join(found)
