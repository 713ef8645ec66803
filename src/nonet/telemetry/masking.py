"""Mask secrets in log lines and spans: known secrets, and passwords in URLs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

MASK = "***"
# Shorter secrets occur in ordinary words, where masking would reveal them.
_SHORTEST = 4

# Parts of the text after "://". Each is matched once, from its start: the whole process waits, so
# the time must be proportional to the length of the text.
_USER = re.compile(r"""[^\s:/?#@"']*""")
_PORT = re.compile(r"""[0-9]{1,5}(?![^\s/?#,;&"'<>()\[\]{}\\])""")
# A quote may be part of a password, unless JSON seems to continue after it.
_WORD_END = re.compile(r"""\s|\\?["'](?=[\s,:}\])]|$)""")
# A user name of this length is a token.
_TOKEN_LENGTH = 20
_PARAMETER = re.compile(r"""([?&]([\w.-]*)=)[^\s&"'#\\]+""")
_SECRET_NAME = re.compile(
    r"pass|secret|token|credential|signature|(api|access|private)[_-]?key|^sig$", re.IGNORECASE
)

_known: set[str] = set()


def keep_secret(texts: Iterable[str]) -> None:
    """Mask these texts everywhere from now on, except texts of less than four characters."""
    _known.update(_forms(texts))


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` with all secrets masked.

    Args:
        secrets: secrets of the text's task, in addition to `keep_secret`.

    >>> without_secrets("lost redis://:s3cret@db.example:6379/0", ["k3y-1"])
    'lost redis://:***@db.example:6379/0'
    >>> without_secrets('{"event": "login with k3y-1"}', ["k3y-1"])
    '{"event": "login with ***"}'
    """
    return _without(text, _longest_first(secrets))


def hide(secrets: Collection[str], text: str, is_cut: bool) -> str:
    """Mask secrets in a text; with the first argument bound, a `nonet.rules.outcomes.Hide`.

    Args:
        is_cut: the text was cut at its end, which may have left a part of a secret there.
    """
    masked = without_secrets(text, secrets)
    return masked[: -max(map(len, secrets), default=0) or None] if is_cut else masked


def fields_without_secrets(
    fields: Mapping[str, Any], secrets: Iterable[str] = ()
) -> dict[str, Any]:
    """Return `fields` in a form that JSON can hold, with values masked at any depth; names stay.

    A number is masked only if it is a secret as a whole.

    >>> fields_without_secrets({"1234": 12345, "pin": 1234, "said": ["1234 is wrong"]}, ["1234"])
    {'1234': 12345, 'pin': '***', 'said': ['*** is wrong']}
    """
    forms = _longest_first(secrets)
    return {name: _plain(value, forms) for name, value in fields.items()}


def text_of(value: Any) -> str:
    """Return `value` as text, even if its own code fails."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _forms(secrets: Iterable[str]) -> Iterator[str]:
    """Yield the spellings of secrets: plain, and as in JSON or ``repr()``."""
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            yield secret
            yield repr(secret)[1:-1]
            yield json.dumps(secret)[1:-1]
            yield json.dumps(secret, ensure_ascii=False)[1:-1]


def _longest_first(secrets: Iterable[str]) -> list[str]:
    # Mask the longest first: one secret may contain another.
    return sorted({*_known, *_forms(secrets)}, key=len, reverse=True)


def _without(text: str, forms: Iterable[str]) -> str:
    for form in forms:
        text = text.replace(form, MASK)
    if "://" in text:
        first, *others = text.split("://")
        text = "://".join([first, *map(_without_login, others)])
    return _PARAMETER.sub(_without_value, text) if "=" in text else text


def _without_login(rest: str) -> str:
    """Mask the password, or token, at the start of the text after ``://``.

    A password extends to the last @ of the word: it may contain an unescaped one.
    """
    user = _USER.match(rest)[0]  # type: ignore[index]  # the pattern matches the empty string
    shown = MASK if len(user) >= _TOKEN_LENGTH else user
    after = rest[len(user) :]
    if after[:1] == "@":
        return shown + after
    if after[:1] != ":" or _PORT.match(after, 1):
        return rest
    end = _WORD_END.search(after)
    at = after.rfind("@", 0, end.start() if end else len(after))
    return rest if at < 0 else f"{shown}:{MASK}{after[at:]}"


def _without_value(parameter: re.Match[str]) -> str:
    return parameter[1] + MASK if _SECRET_NAME.search(parameter[2]) else parameter[0]


def _plain(value: Any, forms: Collection[str]) -> Any:
    match value:
        case None | bool():
            return value
        case int() | float():
            text = text_of(value)
            if text in forms:
                return MASK
            is_number = isinstance(value, int) or math.isfinite(value)
            return value if is_number else text  # JSON has no nan or infinity
        case dict():
            return {
                _without(text_of(key), forms): _plain(item, forms) for key, item in value.items()
            }
        case list() | tuple():
            return [_plain(item, forms) for item in value]
        case _:
            return _without(text_of(value), forms)
