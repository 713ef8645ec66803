"""Where settings come from, which ones win, and which are refused."""

import os
from pathlib import Path

import pytest

from nonet.app import Nonet
from nonet.base.errors import ConfigurationError
from nonet.config.environment import Secret
from nonet.config.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the settings of the user, and change to a directory without ``.env``."""
    for name in list(os.environ):
        if name.upper().startswith("NONET_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_options_come_before_the_environment_and_that_before_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An option of None leaves the setting to the environment."""
    (tmp_path / ".env").write_text("NONET_GRACE=1\nNONET_LEASE=61\nNONET_DEDUP_TTL=62\nOTHER=x\n")
    monkeypatch.setenv("NONET_GRACE", "2")
    monkeypatch.setenv("NONET_LEASE", "63")
    found = load_settings(grace=3, lease=None)
    assert (found.grace, found.lease, found.dedup_ttl) == (3, 63, 62)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("slots", " small:10, large:4,", {"small": 10, "large": 4}),
        ("child_max_rss", "1.5GiB", 1536 * 2**20),
        ("child_max_rss", "4096", 4096),
        ("concurrency", "", None),
        ("config", "", ""),
        ("tasks", "a.tasks, b.tasks,", ("a.tasks", "b.tasks")),
        ("extensions", "", ()),
        ("redis_url", " redis://db.example/1\n", "redis://db.example/1"),
        ("db_url", "sqlite:////tmp/x.db\n", "sqlite:////tmp/x.db"),
    ],
)
def test_a_variable_is_read(
    name: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Space, empty parts of a list and empty variables do not matter; memory may have a unit."""
    monkeypatch.setenv(f"NONET_{name.upper()}", text)
    found = getattr(load_settings(), name)
    assert (found.get_secret_value() if isinstance(found, Secret) else found) == value


def test_an_option_may_have_the_type_of_its_value() -> None:
    """Code passes mappings, tuples and numbers."""
    found = load_settings(slots={"medium": 2}, entry_points=("x", "y"), child_max_rss=4096)
    assert (found.slots, found.entry_points) == ({"medium": 2}, ("x", "y"))
    assert found.child_max_rss == 4096


def test_signing_keys_come_from_a_file_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first one signs; an error about a key does not show it."""
    secret = "c2VjcmV0" * 6
    (tmp_path / "keys").write_text(f"new:{secret},\nold:{secret}\n")
    assert load_settings().signer().signed(b"x") == b"x"
    monkeypatch.setenv("NONET_SIGNING_KEYS_FILE", str(tmp_path / "keys"))
    found = load_settings()
    assert found.signer().signed(b"x").startswith(b"\xc1\x01\x03new")
    assert secret not in repr(found) + str(found) + repr(found.signer())
    monkeypatch.setenv("NONET_SIGNING_KEYS", f"new:{secret[:16]}")
    with pytest.raises(ConfigurationError, match="NONET_SIGNING_KEYS: key 'new' has 12") as raised:
        load_settings()
    assert secret[:8] not in str(raised.value)


def test_encryption_keys_come_from_a_file_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They have exactly 32 bytes; an error about a key does not show it."""
    secret = "c2VjcmV0" * 5 + "c2U="
    (tmp_path / "keys").write_text(f"new:{secret},\nold:{secret}\n")
    assert load_settings().cipher().keys == ()
    monkeypatch.setenv("NONET_ENCRYPTION_KEYS_FILE", str(tmp_path / "keys"))
    found = load_settings()
    assert [key.partition(" ")[0] for key in found.cipher().keys] == ["new", "old"]
    assert secret not in repr(found) + str(found) + repr(found.cipher())
    assert secret in found.secrets()
    for wrong in (f"new:{secret[:16]}", f"new:{secret[:40]}c2VjcmV0"):
        monkeypatch.setenv("NONET_ENCRYPTION_KEYS", wrong)
        told = r"NONET_ENCRYPTION_KEYS: key 'new' has \d+ bytes, but needs 32; .*openssl rand"
        with pytest.raises(ConfigurationError, match=told) as raised:
            load_settings()
        assert secret[:8] not in str(raised.value)


def test_encrypting_every_class_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one every submission of the process would fail."""
    monkeypatch.setenv("NONET_ENCRYPT_ALL", "1")
    with pytest.raises(ConfigurationError, match="set NONET_ENCRYPTION_KEYS, too"):
        load_settings()
    assert load_settings(encryption_keys=f"a:{'YWFh' * 10}YWE=").cipher().everything


@pytest.mark.parametrize("name", ["redis_url", "db_url"])
def test_secrets_may_come_from_a_file(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``NONET_…_FILE`` names it, in the environment or in ``.env``; a value comes first."""
    secret, variable = tmp_path / "secret", f"NONET_{name.upper()}"
    secret.write_text("redis://:pass@db.example/1\n")
    (tmp_path / ".env").write_text(f"{variable}_FILE={secret}\n")
    assert getattr(load_settings(), name).get_secret_value() == "redis://:pass@db.example/1"
    (tmp_path / ".env").unlink()
    monkeypatch.setenv(f"{variable}_FILE", str(secret))
    assert getattr(load_settings(), name).get_secret_value() == "redis://:pass@db.example/1"
    monkeypatch.setenv(variable, "redis://other.example")
    assert getattr(load_settings(), name).get_secret_value() == "redis://other.example"


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read: No such file"), (b" \n", "is empty"), (b"\xff", "it is not text")],
)
def test_an_unusable_secret_file_is_named(
    content: bytes | None, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A failed mount must not mean the default server."""
    secret = tmp_path / "redis-url"
    if content is not None:
        secret.write_bytes(content)
    monkeypatch.setenv("NONET_REDIS_URL_FILE", str(secret))
    with pytest.raises(ConfigurationError, match=f"NONET_REDIS_URL_FILE: {secret} .*{said}"):
        load_settings()


def test_a_misspelt_setting_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error has the nearest name, for a variable, a line of ``.env`` and an option."""
    with pytest.raises(ConfigurationError, match=r"'namespce' is not known\..*namespace"):
        Nonet.from_settings(namespce="x")
    (tmp_path / ".env").write_text("NONET_NAMESPCE=x\n")
    with pytest.raises(ConfigurationError, match=r"NONET_NAMESPCE is not known.*NONET_NAMESPACE"):
        load_settings()
    (tmp_path / ".env").unlink()
    monkeypatch.setenv("NONET_NAMESPCE", "x")
    with pytest.raises(ConfigurationError, match=r"NONET_NAMESPCE is not known.*NONET_NAMESPACE"):
        load_settings()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"namespace": "a b"}, "NONET_NAMESPACE: must be 1 to 64 characters of "),
        ({"namespace": ""}, "NONET_NAMESPACE: "),
        ({"slots": "small"}, "NONET_SLOTS: must be SIZE:NUMBER, each size once, such as small:10"),
        ({"slots": "huge:1"}, "NONET_SLOTS: must be SIZE:NUMBER"),
        ({"slots": "small:0"}, "NONET_SLOTS: must be SIZE:NUMBER"),
        ({"slots": "small:1,small:2"}, "NONET_SLOTS: must be SIZE:NUMBER"),
        ({"concurrency": 0}, "NONET_CONCURRENCY: must be a whole number from 1 to 10000$"),
        ({"lease": 0}, "NONET_LEASE: "),
        ({"lease": "long"}, "NONET_LEASE: must be a number above 0"),
        ({"lock_ttl": 45}, r"lock_ttl \(45 s\) must be shorter than lease \(45 s\)"),
        ({"lock_recheck": 700}, r"lock_recheck \(700 s\) must not be longer than .*\(600 s\)"),
        ({"lease": "inf"}, "NONET_LEASE: must be a number above 0"),
        ({"load_ceiling": -1}, "NONET_LOAD_CEILING: must be a number from 0 to 1000000$"),
        ({"on_overflow": "start"}, "NONET_ON_OVERFLOW: must be MODULE:FUNCTION, such as "),
        ({"accept_unsigned": "maybe"}, "NONET_ACCEPT_UNSIGNED: must be true or false$"),
        ({"metrics_host": ""}, "NONET_METRICS_HOST: must not be empty$"),
        ({"dedup_ttl": 20}, "NONET_DEDUP_TTL: must be a number above 20"),
        ({"result_ttl": -1}, "NONET_RESULT_TTL: "),
        ({"message_limit": 5 * 1024 * 1024}, "NONET_MESSAGE_LIMIT: "),
        ({"config_poll": 0.5}, "NONET_CONFIG_POLL: must be a number from 1 to 1000000$"),
        ({"metrics_port": 65536}, "NONET_METRICS_PORT: must be a whole number from 0 to 65535$"),
        ({"child_max_tasks": -1}, "NONET_CHILD_MAX_TASKS: "),
        ({"child_max_rss": "1G"}, "NONET_CHILD_MAX_RSS: '1G' is not an amount of memory"),
        ({"grace": -1, "worker_ttl": 0}, "NONET_WORKER_TTL: .*; NONET_GRACE: "),
    ],
)
def test_a_wrong_value_is_named_by_its_variable(options: dict[str, object], reason: str) -> None:
    """The error has the reason of each."""
    with pytest.raises(ConfigurationError, match=reason):
        load_settings(**options)


def test_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an error nor the settings' text contains a password."""
    monkeypatch.setenv("NONET_REDIS_URL", "redis://:hunter2@db.example/0")
    monkeypatch.setenv("NONET_DB_URL", "mysql://u:hunter2@db.example/0")
    assert "hunter2" not in repr(load_settings())
    with pytest.raises(ConfigurationError) as caught:
        load_settings(lease=0)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["redis_url", "db_url"])
@pytest.mark.parametrize("url", ["mysql://u:s3@hunter2@h/x", "redis://:hunter2/@h/0", "hunter2"])
def test_a_url_that_can_be_read_in_two_ways_is_refused(name: str, url: str) -> None:
    """An unescaped password never becomes a host; the error does not show it."""
    with pytest.raises(ConfigurationError, match=f"NONET_{name.upper()}: it .*percent") as caught:
        load_settings(**{name: url})
    assert "hunter2" not in str(caught.value)


def test_every_setting_is_documented() -> None:
    """Each field has its line in the docstring."""
    assert Settings.__doc__
    for name in Settings.__struct_fields__:
        assert f"        {name}: " in Settings.__doc__
