"""Compare a sentence with the part of it that matters, and check the command below it."""

from __future__ import annotations

import re
import shlex

from docs.test_shown import refusal


def contains(sentence: str, part: str) -> bool:
    """Whether `part` is in the sentence; ``…`` in it is any text, ``$`` the end."""
    pattern = ".*".join(map(re.escape, part.split("…"))).replace(r"\$", "$")
    return re.search(pattern, sentence) is not None


# Words of commands that take what an admin allowed away, or end what may work.
_HARM = {"set", "--force", "--yes", "discard", "drain"}


def harms(command: str) -> str:
    """Say what is wrong with a printed command; empty if it can be typed, and does no harm."""
    words = shlex.split(command)
    if words and words[0] == "redis-cli":
        return "" if words[1:3] == ["-u", "$NONET_REDIS_URL"] else "it may reach another server"
    if words and (error := refusal(words)):
        return str(error)
    return ", ".join(sorted(_HARM.intersection(words)))
