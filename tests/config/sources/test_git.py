"""Configurations in git repositories: real ones, reached by file:// or on the loopback."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nonet.base.errors import ConfigurationError
from nonet.config.models import Config
from nonet.config.settings import Settings
from nonet.config.sources import Source, open_source
from nonet.config.sources import repository as module
from nonet.config.sources.git import parse_address
from nonet.config.sources.source import MAX_BYTES, MAX_FILES

pytestmark = pytest.mark.server

pytestmark = pytest.mark.server


class Remote:
    """The repository of an administrator."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *command: str) -> str:
        """Run a git command in it; its output."""
        identity = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.org")
        full = ["git", "-C", str(self.path), *identity, *command]
        return subprocess.run(full, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, files: dict[str, str | bytes], *options: str) -> str:
        """Write and commit files; the commit."""
        for name, text in files.items():
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode() if isinstance(text, str) else text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "change", *options)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path / "remote")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Where the caches are."""
    return tmp_path / "state"


@pytest.fixture
def opened(remote: Remote, state: Path) -> Callable[..., Source]:
    """Opens the remote as a process that has just started would."""

    def open_it(fragment: str = "main", check: Callable[[Config], object] | None = None) -> Source:
        settings = Settings(state_dir=state, config_poll=7)
        return open_source(f"git+file://{remote.path}#{fragment}", settings, check)

    return open_it


def objects(cache: Path) -> list[str]:
    """What is in a cache, needed or not."""
    show = ["cat-file", "--batch-all-objects", "--batch-check=%(objectname)"]
    git = ["git", f"--git-dir={cache}", *show]
    return subprocess.run(git, check=True, capture_output=True, text=True).stdout.split()


def cache_of(state: Path) -> Path:
    (cache,) = (state / "config-git").iterdir()
    return cache / "repository"


# ---- following a branch -------------------------------------------------------------------------


async def test_the_newest_commit_holds(remote: Remote, opened: Callable[..., Source]) -> None:
    """Each read asks the repository; the source tells its commit and how often to read."""
    source = opened()
    for vo in ("lhcb", "gridpp"):
        commit = remote.commit({"config.yaml": f"vos: [{vo}]"})
        assert (await source.read()).vos == [vo]
        assert (source.revision, source.problem) == (commit, "")
    assert source.poll_seconds == 7
    assert source.name == f"git+file://{remote.path}#main"


async def test_only_the_branch_counts(remote: Remote, opened: Callable[..., Source]) -> None:
    """Other branches and what is not committed change nothing."""
    remote.commit({"config.yaml": "vos: [main]"})
    remote.git("checkout", "--quiet", "-b", "team/next-1.0")
    remote.commit({"config.yaml": "vos: [next]"})
    (remote.path / "config.yaml").write_text("vos: [dirty]")
    assert (await opened().read()).vos == ["main"]
    assert (await opened("team/next-1.0").read()).vos == ["next"]


@pytest.mark.parametrize(
    ("fragment", "vos"),
    [
        ("main", ["root", "more"]),
        ("main:", ["root", "more"]),
        ("main:sites/cern", ["cern"]),
        ("main:/sites/cern/", ["cern"]),
        ("main:sites/cern/a.yaml", ["cern"]),
        ("main:odd [name]*.conf", ["odd"]),
    ],
)
async def test_a_path_may_be_a_file_or_a_directory(
    remote: Remote, opened: Callable[..., Source], fragment: str, vos: list[str]
) -> None:
    """Of a directory the *.yaml and *.yml in it count, not those below it; a file has any name."""
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
    assert (await opened(fragment).read()).vos == vos


@pytest.mark.parametrize(
    ("fragment", "reason"),
    [
        ("gone", "it has no branch 'gone'"),
        ("main:nowhere", "has no nowhere"),
        ("main:empty", r"empty has no \*\.yaml"),
        ("main:link.yaml", "link.yaml is a symbolic link"),
        ("main:big", "larger than 4 MiB"),
        ("main:many", r"has 1001 \*\.yaml and \*\.yml files, 1000 at most"),
        ("main:bad.conf", r"#main:bad\.conf.*vas"),
        ("main:latin.conf", r"#main:latin\.conf: is not UTF-8"),
    ],
)
async def test_what_cannot_be_used_is_said(
    remote: Remote, opened: Callable[..., Source], fragment: str, reason: str
) -> None:
    """With nothing to fall back on it is an error that names the repository and the reason."""
    (remote.path / "link.yaml").symlink_to("/etc/passwd")
    half = b"#" * (MAX_BYTES // 2 + 1)
    remote.commit(
        {
            "empty/x": "",
            "big/a.yaml": half,
            "big/b.yaml": half,
            "bad.conf": "vas: [lhcb]",
            "latin.conf": b"vos: [\xe9]",
            **{f"many/{n}.yaml": "{}" for n in range(MAX_FILES + 1)},
        }
    )
    source = opened(fragment)
    with pytest.raises(ConfigurationError, match=reason) as raised:
        await source.read()
    assert f"git+file://{remote.path}#{fragment.partition(':')[0]}" in str(raised.value)
    assert source.revision == ""


async def test_many_files_take_one_process(
    remote: Remote, opened: Callable[..., Source], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever is in them: empty files, and what looks like the answers of git."""
    texts = {f"{n:03}.yaml": f"common: {{tasks: {{T{n}: {{}}}}}}\n" for n in range(500)}
    blob = hashlib.sha1(b"blob 8\0vos: [a]").hexdigest()
    remote.commit({**texts, "x.yaml": f"vos: [a]\n# {blob} blob 8\n", "y.yaml": "vo-overrides: {}"})
    trace = tmp_path / "trace"
    monkeypatch.setenv("GIT_TRACE", str(trace))
    config = await opened().read()
    assert (len(config.common.tasks), config.vos) == (500, ["a"])
    started = [line for line in trace.read_text().splitlines() if "built-in: git" in line]
    assert 0 < len(started) < 20, started


async def test_history_may_be_rewritten(remote: Remote, opened: Callable[..., Source]) -> None:
    """After a forced push the branch's new commit holds, though the old one is no ancestor."""
    source = opened()
    remote.commit({"config.yaml": "vos: [old]"})
    await source.read()
    commit = remote.commit({"config.yaml": "vos: [new]"}, "--amend")
    assert (await source.read()).vos == ["new"]
    assert (source.revision, source.problem) == (commit, "")


async def test_the_cache_does_not_grow(
    remote: Remote, opened: Callable[..., Source], state: Path
) -> None:
    """Old commits are removed, by a process that has ended when the read has."""
    source = opened()
    old = remote.commit({"config.yaml": "vos: [a]"})
    for vo in ("b", "c"):
        await source.read()
        remote.commit({"config.yaml": f"vos: [{vo}]"})
    assert old in objects(cache_of(state))
    # Git guesses how many there are from those whose names begin with 17.
    texts = (f"{n}".encode() for n in range(10_000))
    names = ((hashlib.sha1(b"blob %d\0%s" % (len(text), text)).hexdigest(), text) for text in texts)
    for text in [text for name, text in names if name.startswith("17")][:3]:
        write = ["git", f"--git-dir={cache_of(state)}", "hash-object", "-w", "--stdin"]
        subprocess.run(write, check=True, input=text, capture_output=True)  # noqa: ASYNC221
    await source.read()
    assert old not in objects(cache_of(state))
    assert len(objects(cache_of(state))) == 6  # of the newest commit and the one before


# ---- the last good commit -----------------------------------------------------------------------


async def test_unreachable_goes_on_with_the_last_commit(
    remote: Remote, opened: Callable[..., Source], tmp_path: Path
) -> None:
    """Over a restart too; the problem is told, and gone when the repository is back."""
    commit = remote.commit({"config.yaml": "vos: [lhcb]"})
    source = opened()
    first = await source.read()
    remote.path.rename(tmp_path / "away")
    for again in (source, opened()):
        assert (await again.read()).fingerprint() == first.fingerprint()
        assert again.revision == commit
        assert "does not appear to be a git repository" in again.problem
        assert f"commit {commit[:12]} is in force" in again.problem
    (tmp_path / "away").rename(remote.path)
    await source.read()
    assert source.problem == ""


async def test_a_deleted_branch_changes_nothing(
    remote: Remote, opened: Callable[..., Source]
) -> None:
    """Its last commit stays in force, and the problem says that the branch is gone."""
    remote.commit({"config.yaml": "vos: [lhcb]"})
    source = opened()
    await source.read()
    remote.git("branch", "--move", "main", "other")
    assert (await source.read()).vos == ["lhcb"]
    assert "it has no branch 'main'" in source.problem


@pytest.mark.parametrize("restart", [False, True])
async def test_a_bad_commit_changes_nothing(
    remote: Remote, opened: Callable[..., Source], restart: bool
) -> None:
    """The last good one holds, in a process that begins with a bad one too, until it is good."""
    source = opened()
    good = remote.commit({"config.yaml": "vos: [lhcb]"})
    await source.read()
    for text in ("vos: [lhcb", "vas: [lhcb]"):
        bad = remote.commit({"config.yaml": text})
        if restart:
            source = opened()
        for _ in range(2):
            assert (await source.read()).vos == ["lhcb"]
            assert source.revision == good
            assert f"commit {bad[:12]} is refused" in source.problem
            assert "config.yaml" in source.problem
    commit = remote.commit({"config.yaml": "vos: [gridpp]"})
    assert (await source.read()).vos == ["gridpp"]
    assert (source.revision, source.problem) == (commit, "")


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("vos: unknown is not known"),
        ValueError("unknown is not known"),
        SystemExit("unknown is not known"),
        asyncio.CancelledError("unknown is not known"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_commit_that_the_check_refuses_is_no_good_one(
    remote: Remote, opened: Callable[..., Source], error: BaseException
) -> None:
    """What does not fit this installation is bad too, however it is said, and is checked once."""
    checked: list[list[str]] = []

    def check(config: Config) -> None:
        checked.append(config.vos)
        if config.vos == ["unknown"]:
            raise error

    remote.commit({"config.yaml": "vos: [lhcb]"})
    await opened(check=check).read()
    bad = remote.commit({"config.yaml": "vos: [unknown]"})
    source = opened(check=check)
    for _ in range(2):
        assert (await source.read()).vos == ["lhcb"]
        assert f"commit {bad[:12]} is refused: " in source.problem
        assert "unknown is not known" in source.problem
    assert checked == [["lhcb"], ["unknown"], ["lhcb"]]


async def test_neither_new_nor_good_is_an_error(
    remote: Remote, opened: Callable[..., Source]
) -> None:
    """If not even the last good commit fits any more, the newest one's problem is told."""

    def check(_: Config) -> None:
        raise ConfigurationError("nothing fits here")

    remote.commit({"config.yaml": "vos: [lhcb]"})
    await opened().read()
    remote.commit({"config.yaml": "vos: [newest"})
    with pytest.raises(ConfigurationError, match=r"config\.yaml:\d"):
        await opened(check=check).read()


# ---- the cache ----------------------------------------------------------------------------------


def _empty_ref(cache: Path) -> None:
    (cache / "refs" / "nonet" / "newest").write_bytes(b"")


def _foreign_ref(cache: Path) -> None:
    (cache / "refs" / "nonet" / "newest").write_text("1" * 40 + "\n")


def _lost_ref(cache: Path) -> None:
    (cache / "refs" / "nonet" / "good").write_text("1" * 40 + "\n")


def _lost_objects(cache: Path) -> None:
    shutil.rmtree(cache / "objects")
    (cache / "objects").mkdir()


def _torn_objects(cache: Path) -> None:
    for file in (cache / "objects").rglob("*"):
        if file.is_file():
            file.chmod(0o600)
            file.write_bytes(file.read_bytes()[:10])


def _torn_blobs(cache: Path) -> None:
    git = ["git", f"--git-dir={cache}", "cat-file", "-t"]
    for id in objects(cache):
        kind = subprocess.run([*git, id], check=True, capture_output=True, text=True).stdout
        if kind == "blob\n":
            file = cache / "objects" / id[:2] / id[2:]
            file.chmod(0o600)
            file.write_bytes(file.read_bytes()[:5])


def _no_head(cache: Path) -> None:
    (cache / "HEAD").unlink()


def _bad_config(cache: Path) -> None:
    (cache / "config").write_text("[core\n")


def _no_directory(cache: Path) -> None:
    shutil.rmtree(cache)


def _old_lock(cache: Path) -> None:
    lock = cache / "refs" / "nonet" / "newest.lock"
    lock.touch()
    os.utime(lock, (1, 1))


DAMAGE = [_empty_ref, _foreign_ref, _lost_ref, _lost_objects, _torn_objects, _torn_blobs]
DAMAGE += [_no_head, _bad_config, _no_directory, _old_lock]


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_cache_is_made_anew(
    remote: Remote,
    opened: Callable[..., Source],
    state: Path,
    damage: Callable[[Path], None],
    is_new: bool,
) -> None:
    """Whatever a crash or a full disk left there: the next read has the newest commit."""
    commit = remote.commit({"config.yaml": "vos: [lhcb]"})
    await opened().read()
    damage(cache_of(state))
    if is_new:
        commit = remote.commit({"config.yaml": "vos: [gridpp]"})
    source = opened()
    assert (await source.read()).vos == (["gridpp"] if is_new else ["lhcb"])
    assert (source.revision, source.problem) == (commit, "")


async def test_a_damaged_cache_and_no_repository_is_an_error(
    remote: Remote, opened: Callable[..., Source], state: Path, tmp_path: Path
) -> None:
    """Both reasons are told; it works again when the repository does."""
    remote.commit({"config.yaml": "vos: [lhcb]"})
    source = opened()
    await source.read()
    _lost_objects(cache_of(state))
    remote.path.rename(tmp_path / "away")
    with pytest.raises(ConfigurationError, match=r"is damaged .*cannot be fetched anew"):
        await source.read()
    (tmp_path / "away").rename(remote.path)
    assert (await source.read()).vos == ["lhcb"]


async def test_many_share_one_cache(remote: Remote, opened: Callable[..., Source]) -> None:
    """Readers that begin at once on no cache at all, and follow commits, all get each of them."""
    sources = [opened() for _ in range(6)]
    for vo in ("a", "b", "c"):
        commit = remote.commit({"config.yaml": f"vos: [{vo}]"})
        found = await asyncio.gather(*(source.read() for source in sources))
        assert [config.vos for config in found] == [[vo]] * 6
        assert {(source.revision, source.problem) for source in sources} == {(commit, "")}


async def test_somebody_who_holds_the_cache_keeps_nobody_from_reading(
    remote: Remote, opened: Callable[..., Source], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that is stopped in a fetch: the others go on with what is there."""
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.2)
    commit = remote.commit({"config.yaml": "vos: [lhcb]"})
    source = opened()
    await source.read()
    remote.commit({"config.yaml": "vos: [gridpp]"})
    holder = module.Repository(cache_of(state).parent, "", "", "", [])
    async with holder.exclusive() as is_alone:
        assert is_alone
        assert (await source.read()).vos == ["lhcb"]
        assert source.revision == commit
        assert "another process" in source.problem
    assert (await source.read()).vos == ["gridpp"]


async def test_a_state_directory_that_cannot_be_written_is_named(
    remote: Remote, tmp_path: Path
) -> None:
    """It is a setting that is wrong."""
    (tmp_path / "file").touch()
    settings = Settings(state_dir=tmp_path / "file")
    source = open_source(f"git+file://{remote.path}#main", settings)
    with pytest.raises(ConfigurationError, match="NONET_STATE_DIR"):
        await source.read()


# ---- bad servers, bad words ---------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        yield server


def _closed(connection: socket.socket) -> bool:
    """Wait until the other side has gone."""
    with connection:
        connection.settimeout(30)
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass
        return True


async def test_a_silent_server_is_given_up(
    silent: socket.socket, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command and its helper are killed; the message shows neither user nor password."""
    monkeypatch.setattr(module, "_FIRST_FETCH_SECONDS", 1.0)
    port = silent.getsockname()[1]
    url = f"git+https://t0ken:s3cret@127.0.0.1:{port}/conf.git#main"
    reading = asyncio.create_task(open_source(url, Settings(state_dir=state)).read())
    connection, _ = await asyncio.to_thread(silent.accept)
    with pytest.raises(ConfigurationError, match="did not end within 1 s") as raised:
        await reading
    assert f"git+https://***@127.0.0.1:{port}/conf.git#main: git fetch" in str(raised.value)
    assert await asyncio.to_thread(_closed, connection)


async def test_a_cancelled_read_leaves_no_process(silent: socket.socket, state: Path) -> None:
    """A scheduler that stops does not wait for a server, and nobody goes on asking it."""
    url = f"git+https://127.0.0.1:{silent.getsockname()[1]}/conf.git#main"
    reading = asyncio.create_task(open_source(url, Settings(state_dir=state)).read())
    connection, _ = await asyncio.to_thread(silent.accept)
    reading.cancel()
    await asyncio.wait({reading}, timeout=10)
    assert reading.cancelled()
    assert await asyncio.to_thread(_closed, connection)


@pytest.mark.parametrize(
    "url",
    [
        "git+https://t0ken@127.0.0.1:1/conf.git",
        "git+https://user:t0ken@127.0.0.1:1/conf.git",
        "git+https://user:t%30ken@127.0.0.1:1/conf.git",
    ],
)
async def test_credentials_are_never_shown(url: str, state: Path) -> None:
    """Not in the name, not in what git says, not in what is written to disk."""
    source = open_source(f"{url}#main", Settings(state_dir=state))
    assert "ken" not in source.name
    with pytest.raises(ConfigurationError) as raised:
        await source.read()
    assert "ken" not in str(raised.value).replace("broken", "")
    files = [file for file in state.rglob("*") if file.is_file()]  # noqa: ASYNC240
    assert files
    assert not [file for file in files if b"ken" in file.read_bytes() or "ken" in str(file)]
    assert "ken" not in repr(Settings(config=url))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("git+https://host/conf.git", "name the branch: git+https://host/conf.git#main"),
        ("git+https://host/conf.git#", "name the branch"),
        ("git+https://host/conf.git#--upload-pack=x", "is not a valid branch name"),
        ("git+https://host/conf.git#a..b", "is not a valid branch name"),
        ("git+https://host/conf.git#a.lock", "is not a valid branch name"),
        ("git+https://host/conf.git#a/", "is not a valid branch name"),
        ("git+https://host/conf.git#a b", "is not a valid branch name"),
        ("git+https://host/conf.git#a^", "is not a valid branch name"),
        ("git+https://host/conf.git#a@{1}", "is not a valid branch name"),
        ("git+https://host/conf.git#+a", "is not a valid branch name"),
        ("git+https://host/conf.git#main:../x", "is not a path"),
        ("git+https://host/conf.git#main:a//b", "is not a path"),
        ("git+https://host/conf.git#main:a\nb", "is not a path"),
        ("git+ext::sh -c true#main", "use one of"),
        ("git+ext://sh#main", "use one of"),
        ("git+http://host/conf.git#main", "use one of"),
        ("git+git://host/conf.git#main", "use one of"),
        ("git+host:conf.git#main", "use one of"),
        ("git+--upload-pack=x#main", "use one of"),
        ("git+file://host/conf.git#main", "absolute path"),
        ("git+file:conf.git#main", "use one of"),
        ("git+https:///conf.git#main", "write git"),
        ("git+https://host#main", "write git"),
        ("git+https://host/#main", "write git"),
        ("git+ssh://-oProxyCommand=x/conf.git#main", "begins with '-'"),
        ("git+ssh://%2DoProxyCommand=x/conf.git#main", "begins with '-'"),
        ("git+ssh://-lroot@host/conf.git#main", "begins with '-'"),
        ("git+https://host/conf.git?access=t0ken#main", "remove the query"),
        ("git+ssh://git:t0ken@host/conf.git#main", "ssh takes no password"),
        ("git+https://user:t0k%0aen@host/conf.git#main", "control characters"),
        ("git+https://t0k%00en@host/conf.git#main", "control characters"),
        ("git+https://host/a b.git#main", "percent-encode"),
        ("git+https://host/a\tb.git#main", "percent-encode"),
        ("git+https://user:t0k/en@host/conf.git#main", "can be read in more than one way"),
        ("git+https://user:t0k@en@host/conf.git#main", "can be read in more than one way"),
    ],
)
def test_what_is_no_repository_is_refused(text: str, reason: str) -> None:
    """Before git sees it: no option, no other transport, no password that looks like a host."""
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
def test_addresses(text: str, url: str, branch: str, path: str) -> None:
    """What git gets, and where the configuration is in the branch."""
    found = parse_address(text)
    assert (found.url, found.branch, found.path) == (url, branch, path)


def test_no_token_is_in_what_git_is_told_in_the_open() -> None:
    """Its URL can be read by everybody on the host; user and password are apart, decoded."""
    found = parse_address("git+https://us%40er:p%2Fw@host:8443/a#main")
    assert found.url == "https://host:8443/a"
    assert found.credentials == module.Credentials("https://host:8443/a", "us@er", "p/w")
    assert "p/w" not in repr(found) and "us@er" not in repr(found)


def test_without_git_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A repository needs the program; that is told before anything is tried."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="install the package git"):
        open_source("git+file:///srv/conf.git#main", Settings())


async def test_the_environment_of_a_hook_does_not_matter(
    remote: Remote, opened: Callable[..., Source], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Variables that git sets for its hooks lead to no other repository."""
    commit = remote.commit({"config.yaml": "vos: [lhcb]"})
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    source = opened()
    await source.read()
    assert source.revision == commit
