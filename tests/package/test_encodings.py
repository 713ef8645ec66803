"""Files are read and written alike in every locale."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nonet

_SOURCES = Path(nonet.__file__).parents[1]
_MODES = set("rwxabt+")


def test_every_file_has_an_encoding() -> None:
    """What is opened as text names its encoding: the locale of a container may be ASCII."""
    found = [
        f"{path.relative_to(_SOURCES)}:{call.lineno}"
        for path in sorted(_SOURCES.rglob("*.py"))
        for call in _calls(path)
        if _depends_on_locale(call)
    ]
    assert found == []


def _calls(path: Path) -> Iterator[ast.Call]:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text if re.search("open|read_text|write_text", text) else "")
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _depends_on_locale(call: ast.Call) -> bool:
    is_method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    modes = [ast.literal_eval(value) for value in values if _is_mode(value)]
    # That of a distribution takes a name, and reads UTF-8.
    is_text = name == "write_text" or (name == "read_text" and not call.args)
    if name == "fdopen" or (name == "open" and (modes or not is_method)):  # not os.open
        is_text = not any("b" in mode for mode in modes)
    return is_text and "encoding" not in {keyword.arg for keyword in call.keywords}


def _is_mode(value: ast.expr) -> bool:
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return is_text and bool(value.value) and set(value.value) <= _MODES
