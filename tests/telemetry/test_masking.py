"""What is masked in log lines and spans."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path

import pytest
from hypothesis import assume, given, strategies as st
from pydantic import SecretBytes, SecretStr

from nonet.config.settings import plain_settings
from nonet.tasks.secrecy import secret_texts
from nonet.telemetry.masking import fields_without_secrets, without_secrets

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
        ("redis://:12345@h and redis://:123456/7@h", "redis://:***@h and redis://:***@h"),
        ('redis://:p"w@h is away', "redis://:***@h is away"),
        ("redis://a:b@h,redis://c:d@i", "redis://a:***@h,redis://c:***@i"),
        ('{"a":"redis://h:6379","b":"me@h"}', '{"a":"redis://h:6379","b":"me@h"}'),
        ('{"a":"redis://:pw@h","b":"me@h"}', '{"a":"redis://:***@h","b":"me@h"}'),
        ("https://ghp_0123456789abcdef@h/r.git", "https://***@h/r.git"),
        ("?a=1&api_key=k&apikey=k&access_key=k", "?a=1&api_key=***&apikey=***&access_key=***"),
        ("/f?X-Amz-Signature=ab&sig=c&assigned=d", "/f?X-Amz-Signature=***&sig=***&assigned=d"),
        ("nothing to hide: 3 = 1 + 2", "nothing to hide: 3 = 1 + 2"),
    ],
)
def test_passwords_in_urls_are_masked(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_a_secret_is_found_as_it_is_and_in_json() -> None:
    line = json.dumps({"event": f"login with {AWKWARD}", "n": 1}, ensure_ascii=False)
    masked = without_secrets(line, ["pa", "wörd", AWKWARD])
    assert json.loads(masked) == {"event": "login with ***", "n": 1}
    assert without_secrets(f"{AWKWARD}!", [AWKWARD]) == "***!"
    assert without_secrets("a pad", ["pad"]) == "a pad", "short ones stand in ordinary words"


PIECES = ["://x:", "://x:1,", "://", "://:a@", "?token", "?token=a", "?", "&a.", "://x:'", "@"]


@pytest.mark.soak
@pytest.mark.parametrize("piece", [*PIECES, "://x:\\"])
def test_a_megabyte_that_looks_like_urls_takes_seconds(piece: str) -> None:
    began = time.process_time()
    for text in (piece * (1_000_000 // len(piece)), "://x:" + piece * (1_000_000 // len(piece))):
        without_secrets(text)
    assert time.process_time() - began < 5


@given(
    st.text("ab1:/?#,", max_size=20),
    st.from_regex(r"[a-z]{0,8}", fullmatch=True),
    st.from_regex(r"[!-~]{0,12}[g-z!$.~_-][!-~]{0,12}", fullmatch=True),
    st.sampled_from(["h", "h:1/2", "[::1]", "h,i:1"]),
)
def test_any_password_in_a_url_is_masked(before: str, user: str, password: str, host: str) -> None:
    assume("://" not in f":{password}" and not re.search(r"""["'][,:}\])]|["']$""", password))
    assume(not re.match(r"""[0-9]{1,5}([/?#,;&"'<>()\[\]{}\\]|$)""", password))
    said = f"{before} redis://{user}:{password}@{host} is away"
    assert without_secrets(said) == f"{before} redis://{user}:***@{host} is away"


def test_a_masked_line_is_valid_json() -> None:
    """Texts are masked at any depth, keys in them too; names stay, and numbers but for secrets."""
    awkward = ["true", "null", "1234", "0.25", '", "', "event", "level", "\\\\\\\\", "}, {"]
    fields = {
        "event": "true, 1234 or event",
        "level": 4,
        "all": {"a": [True, None, 12345, 1234, 0.25, math.nan, -math.inf], "event": awkward},
        "path": Path("/1234"),
        "huge": 10**400,
        "pair": {(1, 2): ("x", {1234: b"1234"})},
        "broken": Broken(),
    }
    masked = fields_without_secrets(fields, awkward)
    assert json.loads(json.dumps(masked, allow_nan=False)) == masked
    assert masked == {
        "event": "***, *** or ***",
        "level": 4,
        "all": {
            "a": [True, None, 12345, "***", "***", "nan", "-inf"],
            "***": ["***"] * len(awkward),
        },
        "path": "/***",
        "huge": 10**400,
        "pair": {"(1, 2)": ["x", {"***": "b'***'"}]},
        "broken": "<Broken>",
    }


class Broken:
    def __str__(self) -> str:
        raise ValueError("no text")


def test_annotated_and_telling_arguments_are_secret() -> None:
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


def test_passwords_and_keys_of_the_settings_are_secret() -> None:
    key = "q83vAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    settings = plain_settings(
        redis_url="rediss+sentinel://me:p%40w@h1:26379,h2:26379/svc?sentinel_password=other",
        db_url="mysql+aiomysql://me:dbpw@h/db",
        config="git+https://x:t0ken@h/r.git#main",
        signing_keys=f"new:{key}",
        webhook_url="https://chat.example/T0/B0?key=abc",
        webhook_secret="signs",
    )
    in_urls = {"p%40w", "p@w", "other", "dbpw", "t0ken", "T0/B0", "key=abc"}
    assert set(settings.secrets()) == {*in_urls, "signs", key}


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379/0",
        "redis+cluster://h1:6379,h2:6380",
        "rediss+sentinel://h1:26379,h2:26379/svc/0?ssl_check_hostname=true",
        "redis://me@h:6379/0?client_name=a",
        "unix:///run/redis.sock?db=1",
    ],
)
def test_a_url_without_a_password_has_none(url: str) -> None:
    assert plain_settings(redis_url=url, db_url="").secrets() == []
