"""Configurations in git repositories: real ones, reached by file:// or on the loopback."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from config.sources.remote import Remote
from waits import WAIT_SECONDS

from nonet.base.errors import ConfigurationError
from nonet.config.models import Config
from nonet.config.settings import Settings
from nonet.config.sources import Source, git as module, open_source
from nonet.config.sources.git_address import Credentials, parse_address

pytestmark = pytest.mark.server


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path / "remote")


@pytest.fixture
def opened(remote: Remote) -> Callable[..., Source]:
    """Opens the remote as a process that has just started would."""

    def open_it(fragment: str = "main", check: Callable[[Config], object] | None = None) -> Source:
        settings = Settings(config_poll=7)
        return open_source(f"git+file://{remote.path}#{fragment}", settings, check)

    return open_it


async def test_the_newest_commit_holds(remote: Remote, opened: Callable[..., Source]) -> None:
    """Each read asks the repository, even if a forced push has rewritten the history."""
    source = opened()
    for vo, options in (("lhcb", ()), ("gridpp", ()), ("atlas", ("--amend",))):
        commit = remote.commit({"config.yaml": f"vos: [{vo}]"}, *options)
        assert (await source.read()).vos == [vo]
        assert source.revision == commit
    assert source.poll_seconds == 7
    assert source.name == f"git+file://{remote.path}#main"


async def test_other_branches_and_uncommitted_changes_do_not_count(
    remote: Remote, opened: Callable[..., Source]
) -> None:
    """A source reads the branch that it names."""
    remote.commit({"config.yaml": "vos: [main]"})
    remote.git("checkout", "--quiet", "-b", "team/next-1.0")
    remote.commit({"config.yaml": "vos: [next]"})
    (remote.path / "config.yaml").write_text("vos: [dirty]")
    assert (await opened().read()).vos == ["main"]
    assert (await opened("team/next-1.0").read()).vos == ["next"]


async def test_a_path_may_be_a_file_or_a_directory(
    remote: Remote, opened: Callable[..., Source]
) -> None:
    """The *.yaml and *.yml directly in a directory count; a file may have any name."""
    remote.commit(
        {
            "a.yaml": "vos: [root, more]",
            "b.yml": "common: {}",
            ".hidden.yaml": "x",
            "README.md": "x",
            "sites/cern/a.yaml": "vos: [cern]",
            "directory.yaml/x.yaml": "x",
            "odd [name]*.conf": "vos: [odd]",
            "odd [name]x.conf": "vos: [other]",
        }
    )
    for fragment, vos in {
        "main": ["root", "more"],
        "main:": ["root", "more"],
        "main:/sites/cern/": ["cern"],
        "main:sites/cern/a.yaml": ["cern"],
        "main:odd [name]*.conf": ["odd"],
    }.items():
        assert (await opened(fragment).read()).vos == vos


async def test_an_unusable_path_is_an_error(remote: Remote, opened: Callable[..., Source]) -> None:
    """The error names the repository and the reason; a link is not followed."""
    (remote.path / "link.yaml").symlink_to("/etc/passwd")
    (remote.path / "link").symlink_to("/etc")
    remote.commit({"empty/x": "", "bad.conf": "vas: [lhcb]"})
    for fragment, reason in {
        "gone": "it has no branch 'gone'",
        "main:nowhere": "main:nowhere: cannot be read: No such file",
        "main:link/passwd": "main:link/passwd: cannot be read: Not a directory",
        "main:empty": r"main:empty: the directory has no \*\.yaml",
        "main:link.yaml": r"#main:link\.yaml: must be a mapping",
        "main:bad.conf": r"#main:bad\.conf.*vas",
    }.items():
        with pytest.raises(ConfigurationError, match=reason) as raised:
            await opened(fragment).read()
        assert f"git+file://{remote.path}#{fragment.partition(':')[0]}" in str(raised.value)
        assert "nonet-config-" not in str(raised.value)


async def test_only_a_new_commit_is_cloned(
    remote: Remote, opened: Callable[..., Source], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A poll without a change only asks for the branch; a clone is deleted after the read."""
    remote.commit({"config.yaml": "vos: [lhcb]"})
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    source = opened()
    for _ in range(3):
        await source.read()
    assert (tmp_path / "trace").read_text().count("built-in: git clone") == 1
    assert list((tmp_path / "temporary").iterdir()) == []


async def test_an_unreachable_repository_is_an_error_until_it_is_back(
    remote: Remote, opened: Callable[..., Source], tmp_path: Path
) -> None:
    """A deleted branch is an error, too; later the newest commit is read."""
    remote.commit({"config.yaml": "vos: [lhcb]"})
    source = opened()
    await source.read()
    remote.path.rename(tmp_path / "away")
    with pytest.raises(ConfigurationError, match="does not appear to be a git repository"):
        await source.read()
    (tmp_path / "away").rename(remote.path)
    remote.git("branch", "--move", "main", "other")
    with pytest.raises(ConfigurationError, match="it has no branch 'main'"):
        await source.read()
    remote.git("branch", "--move", "other", "main")
    commit = remote.commit({"config.yaml": "vos: [gridpp]"})
    assert (await source.read()).vos == ["gridpp"]
    assert source.revision == commit


async def test_a_commit_that_the_check_refuses_is_checked_once(
    remote: Remote, opened: Callable[..., Source]
) -> None:
    """Each read reports it as a bad commit."""
    checked: list[list[str]] = []

    def check(config: Config) -> None:
        checked.append(config.vos)
        raise ValueError("unknown is not known")

    remote.commit({"config.yaml": "vos: [unknown]"})
    source = opened(check=check)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="unknown is not known"):
            await source.read()
    assert checked == [["unknown"]]


async def test_a_temporary_directory_that_cannot_be_written_is_an_error(
    remote: Remote, opened: Callable[..., Source], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is reported like a repository that does not answer."""
    remote.commit({"config.yaml": "vos: [lhcb]"})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        await opened().read()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_SECONDS)
        yield server


def _closed(connection: socket.socket) -> bool:
    """Wait until the other side has gone."""
    with connection:
        connection.settimeout(WAIT_SECONDS)
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass
        return True


async def test_a_silent_server_is_given_up(
    silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command and its helper are killed; the error shows neither user nor password."""
    monkeypatch.setattr(module, "_SECONDS", 1.0)
    port = silent.getsockname()[1]
    url = f"git+https://t0ken:s3cret@127.0.0.1:{port}/conf.git#main"
    reading = asyncio.create_task(open_source(url, Settings()).read())
    connection, _ = await asyncio.to_thread(silent.accept)
    with pytest.raises(ConfigurationError, match="did not end within 1 s") as raised:
        await reading
    assert f"git+https://***@127.0.0.1:{port}/conf.git#main: git ls-remote" in str(raised.value)
    assert await asyncio.to_thread(_closed, connection)


@pytest.mark.parametrize("starts", [False, True])
async def test_a_cancelled_read_leaves_no_process(
    silent: socket.socket, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    """A scheduler that stops does not wait for a server, also if asyncio is starting git yet."""
    start, is_started = asyncio.create_subprocess_exec, asyncio.Event()

    async def late(*command: Any, **options: Any) -> Any:
        process = await start(*command, **options)
        await is_started.wait()
        return process

    if starts:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", late)
    url = f"git+https://127.0.0.1:{silent.getsockname()[1]}/conf.git#main"
    reading = asyncio.create_task(open_source(url, Settings()).read())
    connection, _ = await asyncio.to_thread(silent.accept)
    reading.cancel()
    await asyncio.sleep(0)  # it hears of that before git has started
    is_started.set()
    await asyncio.wait({reading}, timeout=WAIT_SECONDS)
    assert reading.cancelled()
    assert await asyncio.to_thread(_closed, connection)


async def test_credentials_are_never_shown() -> None:
    """Neither the name of the source nor the error of git has them."""
    for user in ("t0ken", "user:t0ken", "user:t%30ken"):
        url = f"git+https://{user}@127.0.0.1:1/conf.git#main"
        source = open_source(url, Settings())
        with pytest.raises(ConfigurationError) as raised:
            await source.read()
        shown = f"{source.name} {raised.value} {Settings(config=url)!r}"
        assert "ken" not in shown.replace("broken", "")
    found = parse_address("git+https://us%40er:p%2Fw@host:8443/a#main")
    assert found.url == "https://host:8443/a"  # every local user can read the arguments of git
    assert found.credentials == Credentials("https://host:8443/a", "us@er", "p/w")
    assert "p/w" not in repr(found) and "us@er" not in repr(found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("git+https://host/conf.git", "name the branch: git+https://host/conf.git#main"),
        ("git+https://host/conf.git#--upload-pack=x", "is not a valid branch name"),
        ("git+https://host/conf.git#a..b", "is not a valid branch name"),
        ("git+https://host/conf.git#a.lock", "is not a valid branch name"),
        ("git+https://host/conf.git#a/", "is not a valid branch name"),
        ("git+https://host/conf.git#main:../x", "is not a path"),
        ("git+https://host/conf.git#main:a//b", "is not a path"),
        ("git+https://host/conf.git#main:a\nb", "is not a path"),
        ("git+ext::sh -c true#main", "use one of"),
        ("git+http://host/conf.git#main", "use one of"),
        ("git+--upload-pack=x#main", "use one of"),
        ("git+file://host/conf.git#main", "absolute path"),
        ("git+https:///conf.git#main", "write git"),
        ("git+https://host/#main", "write git"),
        ("git+ssh://-oProxyCommand=x/conf.git#main", "begins with '-'"),
        ("git+ssh://%2DoProxyCommand=x/conf.git#main", "begins with '-'"),
        ("git+ssh://-lroot@host/conf.git#main", "begins with '-'"),
        ("git+https://host/conf.git?access=t0ken#main", "remove the query"),
        ("git+ssh://git:t0ken@host/conf.git#main", "ssh takes no password"),
        ("git+https://user:t0k%0aen@host/conf.git#main", "control characters"),
        ("git+https://host/a b.git#main", "percent-encode"),
        ("git+https://user:t0k/en@host/conf.git#main", "can be read in more than one way"),
        ("git+https://user:t0k@en@host/conf.git#main", "can be read in more than one way"),
    ],
)
def test_an_unsafe_address_is_refused(text: str, reason: str) -> None:
    """Git never sees an option, another transport, or a password that looks like a host."""
    with pytest.raises(ConfigurationError, match=r"NONET_CONFIG: ") as raised:
        open_source(text, Settings())
    assert reason in str(raised.value)
    assert "t0k" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "url", "branch", "path"),
    [
        ("git+https://host:8443/a/b#main", "https://host:8443/a/b", "main", ""),
        ("git+ssh://git@host/a#x/y-1.0:c/d.yaml", "ssh://git@host/a", "x/y-1.0", "c/d.yaml"),
        ("git+file:///srv/a.git#ü", "file:///srv/a.git", "ü", ""),
        ("git+https://[::1]/a#main:/c/", "https://[::1]/a", "main", "c"),
    ],
)
def test_an_address_is_a_url_with_a_branch_and_a_path(
    text: str, url: str, branch: str, path: str
) -> None:
    """Git gets the URL and the branch; the path leads to the configuration."""
    found = parse_address(text)
    assert (found.url, found.branch, found.path) == (url, branch, path)


def test_without_git_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error comes before anything is tried."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="install the package git"):
        open_source("git+file:///srv/conf.git#main", Settings())


async def test_the_environment_of_a_hook_does_not_matter(
    remote: Remote, opened: Callable[..., Source], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Variables that git sets for its hooks do not lead to another repository."""
    commit = remote.commit({"config.yaml": "vos: [lhcb]"})
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    source = opened()
    await source.read()
    assert source.revision == commit
