"""Nothing in Nonet makes code of bytes or of names that come from outside: promise 17."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import nonet
from nonet.tasks.registry import Registry

SOURCE = Path(nonet.__file__).parent
MODULES = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}
# Readers of these build any object that their bytes ask for.
BUILDERS = {
    *("pickle", "_pickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"),
    *("code", "codeop", "runpy", "multiprocessing"),
}
CALLS = {"eval", "exec", "compile", "__import__"}
YAML = {"load", "load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all"}
# They import what a setting, an entry point, their own table or (in a child process) their worker
# names, never what a message does.
IMPORTERS = {"__init__.py", "cli/run.py", "types.py"}
IMPORTERS |= {f"tasks/{name}.py" for name in ("middleware", "overflow", "registry")}


def suspicious(tree: ast.Module, *, may_import: bool) -> Iterator[str]:
    """What in a module could make code of data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {node.module or ""}
        elif isinstance(node, ast.Name):
            names = {node.id} & CALLS
        elif isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            is_import = node.attr in ("import_module", "exec_module") and not may_import
            is_yaml = of == "yaml" and node.attr in YAML
            names = {node.attr} if is_import or is_yaml else set()
        else:
            continue
        for name in names:
            if isinstance(node, ast.Name | ast.Attribute) or name.partition(".")[0] in BUILDERS:
                yield f"line {node.lineno}: {name}"


def test_no_module_can_make_code_of_data() -> None:
    """No pickle and its like, no eval; modules are imported by name where settings name them."""
    found = [
        f"{name}, {problem}"
        for name, path in MODULES.items()
        for problem in suspicious(
            ast.parse(path.read_text(encoding="utf-8")), may_import=name in IMPORTERS
        )
    ]
    assert MODULES and found == []


def test_the_name_of_a_task_imports_nothing() -> None:
    """A class is known because it was registered, not because a module of that name exists."""
    for module in ("this", "antigravity"):
        assert module not in sys.modules
        assert Registry().find(f"{module}:Task") is None
        assert module not in sys.modules
