"""How Sphinx makes the site of these pages; `make docs` runs it, and a warning is an error."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx import addnodes
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms.post_transforms import SphinxPostTransform

_DOCS = Path(__file__).parent
_ROOT = _DOCS.parent
# Files at the top of the repository that are pages of the site, too.
_PAGES = {
    "CHANGELOG.md": "project/changelog",
    "CONTRIBUTING.md": "project/contributing",
    "SECURITY.md": "project/security",
}
# Pages that end with what a script prints, as that is read from the code.
_BUILT = {
    "explanation/architecture": ["nouns"],
    "reference/commands": ["commands"],
    "reference/rest-api": ["rest-api"],
    **{
        f"reference/{page}": ["reference", page]
        for page in ("configuration", "events", "metrics", "redis-keys", "scripts", "settings")
    },
    "reference/errors-and-exit-codes": ["reference", "errors"],
}

project = "Nonet"
author = "the authors of Nonet"
copyright = "the authors of Nonet, Apache-2.0"
release = version = version_of("nonet")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Nonet"
html_copy_source = False
html_show_sphinx = False
# The shell's prompt is not part of a command.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

# Pages are Markdown, as a repository's browser shows them, too: links go to files and headings.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

# Docstrings: `name` refers to something of Nonet or of Python, ``code`` does not.
default_role = "py:obj"
nitpicky = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Class attributes", "params_style")]

_EXAMPLE = re.compile(r"\s*Examples?:\s*$")


def _show_example_as_code(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Make a code block of what stands below ``Example:``, before napoleon takes it for prose."""
    made: list[str] = []
    margin: int | None = None
    for line in lines:
        if _EXAMPLE.match(line):
            margin = len(line) - len(line.lstrip())
            indent = " " * margin
            made += [f"{indent}.. rubric:: Example", "", f"{indent}.. code-block:: python", ""]
            continue
        if margin is not None and line.strip() and len(line) - len(line.lstrip()) <= margin:
            margin = None
        made.append(line)
    lines[:] = made


def _add_what_a_script_prints(app: Any, name: str, source: list[str]) -> None:
    """Complete the pages of `_BUILT`."""
    if words := _BUILT.get(name):
        command = [sys.executable, str(_ROOT / "scripts" / words[0]), *words[1:]]
        source[0] += subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _forget_overloads(app: Any) -> None:
    """Show of a function that has overloads for type checkers the one that lists its options."""
    analyzer = ModuleAnalyzer.for_module("nonet.tasks.task")
    analyzer.analyze()
    analyzer.overloads.clear()


def _find_name(app: Any, env: Any, node: Any, shown: Any) -> Any:
    """What a name in a docstring or signature is that is not documented where it is defined.

    Public names are documented as `nonet.X`. What is in lower case, without a dot, is a parameter;
    types of signatures may be of other packages, whose documentation is not at hand.
    """
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    known = env.domains["py"].objects
    owner, _, name = target.rpartition(".")
    # Whole, as of another module, and as an attribute that its class tells of.
    for short in (target, name, owner):
        for public in (f"nonet.{short}", f"nonet.testing.{short}"):
            if public in known and public != target:
                return env.domains["py"].resolve_xref(
                    env, node["refdoc"], app.builder, "obj", public, node, shown
                )
    is_parameter = node["reftype"] == "obj" and target.isidentifier() and target.islower()
    return shown if is_parameter or node["reftype"] != "obj" else None


class _RepositoryLinks(SphinxPostTransform):
    """Links to files of the repository that are no pages: their text, or the page that has them.

    A link to what does not exist stays what it is, and MyST warns of it.
    """

    default_priority = 8  # before MyST resolves links, at 9

    def run(self, **options: Any) -> None:
        for node in self.document.findall(addnodes.pending_xref):
            if node.get("refdomain") == "doc":
                here = Path(self.env.doc2path(node["refdoc"])).parent
                path = (here / f"{node['reftarget']}.md").resolve()
            elif node.get("reftype") == "myst" and node["refdoc"].startswith("project/"):
                # These pages are files at the top, from where their links lead.
                path = (_ROOT / node["reftarget"]).resolve()
            else:
                continue
            if not path.is_relative_to(_ROOT):
                continue
            if page := _PAGES.get(path.relative_to(_ROOT).as_posix()):
                node["refdomain"], node["reftarget"] = "doc", page
                node.setdefault("reftargetid", None)
            elif path.exists() and not path.is_relative_to(_DOCS):
                node.replace_self(node.children)


def setup(app: Any) -> dict[str, bool]:
    """Connect what is above."""
    app.connect("autodoc-process-docstring", _show_example_as_code, priority=100)
    app.connect("source-read", _add_what_a_script_prints)
    app.connect("builder-inited", _forget_overloads)
    app.connect("missing-reference", _find_name)
    app.add_post_transform(_RepositoryLinks)
    app.add_lexer("acl", TextLexer)
    return {"parallel_read_safe": True}
