"""Compare a sentence with the part of it that matters."""

from __future__ import annotations

import re


def contains(sentence: str, part: str) -> bool:
    """Whether `part` is in the sentence; ``…`` in it is any text, ``$`` the end."""
    pattern = ".*".join(map(re.escape, part.split("…"))).replace(r"\$", "$")
    return re.search(pattern, sentence) is not None
