"""The page on the architecture leads to code that is there."""

from __future__ import annotations

import re

import pytest
from docs.pages import DOCS, ROOT

SOURCE = ROOT / "src" / "nonet"
PAGE = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
# Scripts are told without the folder in which all of them are.
PLACES = ("", "stores/")
FILES = sorted(set(re.findall(r"`((?:[\w*]+/)*[\w*]+\.(?:py|lua))(?:: ([\w.]+))?`", PAGE)))
FOLDERS = sorted(set(re.findall(r"`((?:\w+/)+)`", PAGE)))
METHODS = sorted(set(re.findall(r"`([A-Z]\w+\.\w+)`", PAGE)))


def texts(pattern: str) -> list[str]:
    """What stands in the files of a name."""
    paths = [found for place in PLACES for found in SOURCE.glob(f"{place}{pattern}")]
    return [path.read_text(encoding="utf-8") for path in paths]


@pytest.mark.parametrize(("file", "name"), FILES)
def test_each_file_is_there_and_has_the_name(file: str, name: str) -> None:
    """Each path leads to a file, which defines the name behind it."""
    found = texts(file)
    assert found, file
    for part in filter(None, name.split(".")):
        pattern = rf"\b(?:class|def|function) {part}\b"
        assert any(re.search(pattern, text) for text in found), f"{file}: {part}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_is_there(folder: str) -> None:
    """Below the package, or beside it."""
    assert any((root / folder).is_dir() for root in (SOURCE, ROOT, SOURCE / "stores")), folder


@pytest.mark.parametrize("method", METHODS)
def test_each_method_is_there(method: str) -> None:
    """Its class defines it."""
    owner, _, name = method.partition(".")
    owners = [text for text in texts("**/*.py") if re.search(rf"^class {owner}\b", text, re.M)]
    assert any(re.search(rf"\bdef {name}\b", text) for text in owners), method
