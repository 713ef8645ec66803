"""No secret in a log line or a span: what the process knows as one, and passwords in URLs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

MASK = "***"
# Shorter ones stand in ordinary words: to mask them would show where they are.
_SHORTEST = 4

# From the colon after the user to the last @ of the word: a password may hold an unescaped one. In
# JSON a quote within it is escaped, one that is not ends the text.
_PASSWORD = re.compile(r"""(://[^\s:/?#@"']*:)(?:[^\s"'\\]|\\.)*@""")
_PARAMETER = re.compile(
    r"""([?&][\w.-]*(?:pass|secret|token)[\w.-]*=)[^\s&"'#\\]+""", re.IGNORECASE
)

_known: set[str] = set()


def keep_secret(texts: Iterable[str]) -> None:
    """From now on these are masked wherever they stand; those of a few characters are not."""
    _known.update(text for text in texts if len(text) >= _SHORTEST)


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with what is secret masked.

    Args:
        secrets: of the task that the text is about, beside those that `keep_secret` was given.

    >>> without_secrets("lost redis://:s3cret@db.example:6379/0", ["k3y-1"])
    'lost redis://:***@db.example:6379/0'
    >>> without_secrets('{"event": "login with k3y-1"}', ["k3y-1"])
    '{"event": "login with ***"}'
    """
    # The longest first: one may be a part of another.
    for secret in sorted({*_known, *secrets}, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            in_json = json.dumps(secret, ensure_ascii=False)[1:-1]
            text = text.replace(secret, MASK).replace(in_json, MASK)
    if "://" in text:
        text = _PASSWORD.sub(rf"\1{MASK}@", text)
    return _PARAMETER.sub(rf"\1{MASK}", text) if "=" in text else text
