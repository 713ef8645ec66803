"""Tokens and passwords of git servers: the server gets them, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from config.sources.remote import Remote
from config.sources.secure_server import SecureServer, serving

from nonet.base.errors import ConfigurationError
from nonet.config.settings import Settings
from nonet.config.sources import Source, open_source

pytestmark = pytest.mark.server

USER, PASSWORD = "bo t", 's3cret/\\n%"$x'
IN_URL = "bo%20t:s3cret%2F%5Cn%25%22$x"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A repository with one commit, below ``tmp_path / "served"``."""
    made = Remote(tmp_path / "served" / "conf")
    made.commit({"config.yaml": "vos: [lhcb]"})
    return made.path


@pytest.fixture
def server(remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecureServer]:
    with serving(remote.parent, tmp_path, (USER, PASSWORD)) as server:
        monkeypatch.setenv("GIT_SSL_CAINFO", str(server.certificate))
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
        monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
        yield server


def source_of(server: SecureServer, credentials: str) -> Source:
    url = f"git+https://{credentials}@127.0.0.1:{server.port}/conf/.git#main"
    return open_source(url, Settings())


@pytest.mark.parametrize(
    ("wanted", "written"),
    [((USER, PASSWORD), IN_URL), (("t0ken", ""), "t0ken")],
    ids=["both", "token"],
)
async def test_a_password_is_in_no_command_line(
    server: SecureServer, tmp_path: Path, wanted: tuple[str, str], written: str
) -> None:
    """The server gets it, and so it gets a token that is the user; the log of git has neither."""
    server.wanted = wanted
    assert (await source_of(server, written).read()).vos == ["lhcb"]
    assert len(server.seen) > 1
    lines = [line for seen in server.seen for line in seen]
    trace = (tmp_path / "trace").read_bytes()
    assert any(b"remote-https" in line for line in lines) and b"remote-https" in trace
    for secret in (b"s3cret", b"bo t", b"bo%", b"t0ken"):
        assert not [line for line in (*lines, trace) if secret in line]


async def test_a_credential_helper_is_asked_only_without_a_password(
    server: SecureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives the password of the user in the URL."""
    server.wanted = ("bot", "helped")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    answer = (
        '!answer() { grep -q username=bot && echo password=helped; echo "$1" >> "$ASKED"; }; answer'
    )
    (tmp_path / "gitconfig").write_text(
        f'[credential]\n\thelper = "{answer.replace(chr(34), chr(92) + chr(34))}"\n'
    )
    assert (await source_of(server, "bot").read()).vos == ["lhcb"]
    before = (tmp_path / "asked").read_text()
    with pytest.raises(ConfigurationError, match="Authentication failed"):
        await source_of(server, "bot:other").read()
    assert (tmp_path / "asked").read_text() == before


async def test_git_settings_of_the_environment_stay_in_force(
    server: SecureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are used beside the password."""
    monkeypatch.delenv("GIT_SSL_CAINFO")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "http.sslCAInfo")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(server.certificate))
    assert (await source_of(server, IN_URL).read()).vos == ["lhcb"]


async def test_a_wrong_password_is_an_error(server: SecureServer, tmp_path: Path) -> None:
    """The error does not show it, and git does not ask for another one."""
    with pytest.raises(ConfigurationError, match="Authentication failed") as raised:
        await source_of(server, "user:wr0ng").read()
    assert "wr0ng" not in str(raised.value)


async def test_a_redirect_does_not_pass_the_password_on(
    server: SecureServer, tmp_path: Path, remote: Path
) -> None:
    """Another server that asks for one gets none."""
    (tmp_path / "other").mkdir()
    with serving(remote.parent, tmp_path / "other", (USER, PASSWORD)) as other:
        both = tmp_path / "both.pem"
        both.write_bytes(server.certificate.read_bytes() + other.certificate.read_bytes())
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GIT_SSL_CAINFO", str(both))
            server.redirect_to = f"https://127.0.0.1:{other.port}"
            with pytest.raises(ConfigurationError):
                await source_of(server, IN_URL).read()
    assert other.authorized and set(other.authorized) == {None}
