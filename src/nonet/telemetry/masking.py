"""No secret in a log line or a span: what the process knows as one, and passwords in URLs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

MASK = "***"
# Shorter ones stand in ordinary words: to mask them would show where they are.
_SHORTEST = 4

# Parts of what follows "://". That is looked at once, from its beginning: the time that a text
# takes is in proportion to its length, however odd it is; nothing else of the process runs then.
_USER = re.compile(r"""[^\s:/?#@"']*""")
_PORT = re.compile(r"""[0-9]{1,5}(?![^\s/?#,;&"'<>()\[\]{}\\])""")
# A quote may be a part of a password, unless something like JSON goes on after it.
_WORD_END = re.compile(r"""\s|\\?["'](?=[\s,:}\])]|$)""")
# A user of so many characters is a token.
_TOKEN_LENGTH = 20
_PARAMETER = re.compile(r"""([?&]([\w.-]*)=)[^\s&"'#\\]+""")
_TELLING = re.compile(
    r"pass|secret|token|credential|signature|(api|access|private)[_-]?key|^sig$", re.IGNORECASE
)

_known: set[str] = set()


def keep_secret(texts: Iterable[str]) -> None:
    """From now on these are masked wherever they stand; those of a few characters are not."""
    _known.update(_forms(texts))


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with what is secret masked.

    Args:
        secrets: of the task that the text is about, beside those that `keep_secret` was given.

    >>> without_secrets("lost redis://:s3cret@db.example:6379/0", ["k3y-1"])
    'lost redis://:***@db.example:6379/0'
    >>> without_secrets('{"event": "login with k3y-1"}', ["k3y-1"])
    '{"event": "login with ***"}'
    """
    return _without(text, _longest_first(secrets))


def fields_without_secrets(
    fields: Mapping[str, Any], secrets: Iterable[str] = ()
) -> dict[str, Any]:
    """`fields` as JSON can hold them, their values masked at any depth; their names stay.

    A number is masked if it is a secret, and otherwise stays one, whatever digits are in it.

    >>> fields_without_secrets({"1234": 12345, "pin": 1234, "said": ["1234 is wrong"]}, ["1234"])
    {'1234': 12345, 'pin': '***', 'said': ['*** is wrong']}
    """
    forms = _longest_first(secrets)
    return {name: _plain(value, forms) for name, value in fields.items()}


def text_of(value: Any) -> str:
    """`value` as text, whatever its own code does."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _forms(secrets: Iterable[str]) -> Iterator[str]:
    """How secrets may be written: as they are, and in the JSON or ``repr()`` that holds them."""
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            yield secret
            yield repr(secret)[1:-1]
            yield json.dumps(secret)[1:-1]
            yield json.dumps(secret, ensure_ascii=False)[1:-1]


def _longest_first(secrets: Iterable[str]) -> list[str]:
    # One may be a part of another.
    return sorted({*_known, *_forms(secrets)}, key=len, reverse=True)


def _without(text: str, forms: Iterable[str]) -> str:
    for form in forms:
        text = text.replace(form, MASK)
    if "://" in text:
        first, *others = text.split("://")
        text = "://".join([first, *map(_without_login, others)])
    return _PARAMETER.sub(_without_value, text) if "=" in text else text


def _without_login(rest: str) -> str:
    """What follows ``://``, without the password, or token, that it may begin with.

    A password goes to the last @ of the word: it may hold an unescaped one.
    """
    user = _USER.match(rest)[0]  # type: ignore[index]  # it matches nothing, too
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
    return parameter[1] + MASK if _TELLING.search(parameter[2]) else parameter[0]


def _plain(value: Any, forms: Collection[str]) -> Any:
    match value:
        case None | bool():
            return value
        case int() | float():
            text = text_of(value)
            if text in forms:
                return MASK
            is_number = isinstance(value, int) or math.isfinite(value)
            return value if is_number else text  # JSON has neither nan nor infinity
        case dict():
            return {
                _without(text_of(key), forms): _plain(item, forms) for key, item in value.items()
            }
        case list() | tuple():
            return [_plain(item, forms) for item in value]
        case _:
            return _without(text_of(value), forms)
