"""Commands that messages print are quoted for a shell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docs.test_shown import INCOMPLETE, refusal, words_of

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
    assert not found, "use nonet.rules.findings.remedies: " + ", ".join(found)


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


# Stands for a value that only a running system has.
_HOLE = "HOLE"
_TYPED = r"task-(?:run|worker|scheduler|web)\b"
_WHOLE = re.compile(r"task-run [a-z]+( [\w-]+)*")
_QUOTED = re.compile(rf"'({_TYPED}[^'\n]*)'")
# What begins a command that these functions of `findings.remedies` make of arguments.
_MADE = {"command": "", "of": "", "of_task": "task-run ", "of_workflow": "task-run workflows "}
_IN_A_PAGE = re.compile(rf"(?:: |run |\(\")({_TYPED}[^\"<]*?)(?=, |\. |\.?\"|\.?<|\))")
_JINJA = re.compile(r"\" ~ .+? ~ \"|\" ~ [^,]+?(?=[,)}])|\{\{ [\w.]+ \}\}")


def _text(node: ast.AST) -> str:
    """A text of the source, with holes for its values."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else _HOLE


def _in_code(source: str) -> Iterator[str]:
    tree = ast.parse(source if "task-" in source or "remedies" in source else "")
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            start = _MADE.get(getattr(node.func, "attr", getattr(node.func, "id", "")))
            words = [_text(item) for item in node.args if not isinstance(item, ast.Starred)]
            line = "" if start is None else start + " ".join(words)
            yield from [line] if re.match(_TYPED, line) else []
        elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in docstrings:
            yield from [_text(node)] if _WHOLE.fullmatch(_text(node)) else []
            yield from _QUOTED.findall(_text(node))


def _in_a_page(template: str) -> list[str]:
    return _IN_A_PAGE.findall(_JINJA.sub(_HOLE, template))


def test_printed_commands_are_understood() -> None:
    """Findings, next steps, errors and pages print commands and options that exist."""
    printed = {
        (line, file.name)
        for suffix, lines in ((".py", _in_code), (".html", _in_a_page))
        for file in _ROOT.rglob(f"*{suffix}")
        for line in lines(file.read_text(encoding="utf-8"))
    }
    wrong = []
    for line, name in sorted(printed):
        error = refusal(words_of(line))
        if error and type(error).__name__ not in INCOMPLETE and _HOLE not in str(error):
            wrong.append(f"{name}: {line}: {error}")
        if name.endswith(".html") and _HOLE in line.replace(f"--size {_HOLE}", ""):
            wrong.append(
                f"{name}: {line}: values are not quoted, use nonet.rules.findings.remedies"
            )
    assert not wrong
