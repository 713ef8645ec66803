"""The page on the architecture leads to code that is there."""

from __future__ import annotations

import re

from docs.pages import DOCS, ROOT

SOURCE = ROOT / "src" / "nonet"
PAGE = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
# Scripts are told without the folder in which all of them are.
PLACES = ("", "stores/")


def texts(pattern: str) -> list[str]:
    """What stands in the files of a name."""
    pattern = pattern.replace("NOUN", "*")
    paths = [found for place in PLACES for found in SOURCE.glob(f"{place}{pattern}")]
    paths += ROOT.glob(pattern) if pattern.startswith("tests/") else ()
    return [path.read_text(encoding="utf-8") for path in paths]


def test_each_file_is_there_and_has_the_name() -> None:
    """Each path leads to a file, which defines the name behind it."""
    for file, name in re.findall(r"`((?:[\w*]+/)*[\w*]+\.(?:py|lua))(?:: ([\w.]+))?`", PAGE):
        assert (found := texts(file)), file
        for part in filter(None, name.split(".")):
            pattern = rf"\b(?:class|def|function) {part}\b|^{part}\b[^=\n]* = "
            assert any(re.search(pattern, text, re.M) for text in found), f"{file}: {part}"


def test_each_folder_is_there() -> None:
    """Below the package, or beside it."""
    for folder in re.findall(r"`((?:\w+/)+)`", PAGE):
        assert any((root / folder).is_dir() for root in (SOURCE, ROOT, SOURCE / "stores")), folder


def test_each_method_is_there() -> None:
    """Its class defines it."""
    sources = texts("**/*.py")
    for owner, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", PAGE):
        owners = [text for text in sources if re.search(rf"^class {owner}\b", text, re.M)]
        assert any(re.search(rf"\bdef {name}\b", text) for text in owners), f"{owner}.{name}"
