"""What is masked in log lines and spans."""

from __future__ import annotations

import json

import pytest
from pydantic import SecretBytes, SecretStr

from nonet.secrecy import secret_texts
from nonet.settings import plain_settings
from nonet.telemetry.masking import without_secrets

AWKWARD = 'pa"ss\\wörd\n'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:pw@h:6379/0 is away", "redis://:***@h:6379/0 is away"),
        ("mysql+aiomysql://me:p%40w@h/db", "mysql+aiomysql://me:***@h/db"),
        ("redis://me:un@escaped/@h/0", "redis://me:***@h/0"),
        ('{"event": "redis://:p\\"w@h"}', '{"event": "redis://:***@h"}'),
        ('{"a": "http://h:80/x", "b": "me@h"}', '{"a": "http://h:80/x", "b": "me@h"}'),
        (
            "redis+sentinel://h/s?sentinel_password=pw&db=1",
            "redis+sentinel://h/s?sentinel_password=***&db=1",
        ),
        ("https://h/x?access_token=abc#top", "https://h/x?access_token=***#top"),
        ("ssh://git@h:22/x and http://h:80/x", "ssh://git@h:22/x and http://h:80/x"),
        ("nothing to hide: 3 = 1 + 2", "nothing to hide: 3 = 1 + 2"),
    ],
)
def test_passwords_in_urls_are_masked(text: str, shown: str) -> None:
    """Also in JSON, and where somebody has not escaped them; what is none stays."""
    assert without_secrets(text) == shown


def test_a_secret_is_found_as_it_is_and_in_json() -> None:
    """JSON stays JSON; a part of a secret that is one itself does not keep the rest visible."""
    line = json.dumps({"event": f"login with {AWKWARD}", "n": 1}, ensure_ascii=False)
    masked = without_secrets(line, ["pa", "wörd", AWKWARD])
    assert json.loads(masked) == {"event": "login with ***", "n": 1}
    assert without_secrets(f"{AWKWARD}!", [AWKWARD]) == "***!"
    assert without_secrets("a pad", ["pad"]) == "a pad", "short ones stand in ordinary words"


def test_which_arguments_are_secret() -> None:
    """Annotated ones at any depth, and those with a telling name; of any type."""

    class Login:
        def __init__(
            self,
            host: str,
            pin: SecretStr,
            keys: dict[str, SecretBytes],
            api_token: int,
            options: dict[str, object],
        ) -> None: ...

    arguments = {
        "host": "db.example",
        "pin": "1234",
        "keys": {"a": b"binary"},
        "api_token": 567890,
        "options": {"user": "me", "auth": [{"password": "hidden"}], "secret": True},
    }
    assert secret_texts(arguments, Login) == ("1234", "binary", "567890", "hidden")


def test_secrets_of_the_settings() -> None:
    """Passwords as they are written and as they are meant, and every signing key."""
    key = "q83vAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    settings = plain_settings(
        redis_url="rediss+sentinel://me:p%40w@h1:26379,h2:26379/svc?sentinel_password=other",
        db_url="mysql+aiomysql://me:dbpw@h/db",
        config="git+https://x:t0ken@h/r.git#main",
        signing_keys=f"new:{key}",
    )
    assert {"p%40w", "p@w", "other", "dbpw", "t0ken", key} <= set(settings.secrets())
