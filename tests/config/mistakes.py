"""Tables of mistakes in a configuration, and what is reported of each."""

from __future__ import annotations

import pytest

from nonet.base.errors import ConfigurationError
from nonet.config.reading import parse_config


def refusal(text: str) -> list[str]:
    """The problems of a configuration that is refused."""
    with pytest.raises(ConfigurationError) as refused:
        parse_config(text, "c.yaml")
    return str(refused.value).splitlines()


def mistakes(template: str, prefix: str, table: str) -> list[tuple[str, str]]:
    """The cases of a table with lines ``YAML => PROBLEM``.

    `template` is the document around the YAML, and `prefix` comes before the problem.
    """
    lines = [line.split("=>") for line in table.strip().splitlines()]
    return [(template % text.strip(), f"{prefix}{problem.strip()}") for text, problem in lines]


def reports(line: str, expected: str) -> bool:
    """Whether a line begins as expected and contains, in order, the parts around each ``…``."""
    first, *others = expected.split(" … ")
    at = len(first)
    for part in others:
        at = line.find(part, at)
        if at < 0:
            return False
    return line.startswith(first)
