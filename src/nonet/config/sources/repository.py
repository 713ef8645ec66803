"""A bare git repository on disk that caches one branch, and the git commands for it.

It runs the program git, because dulwich 1.2 lacks what users configure here: it asks no credential
helper and ignores ``GIT_SSL_CAINFO``. A fetch in a thread could not be cancelled either.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nonet.base.errors import ConfigurationError
from nonet.config.sources.source import (
    MAX_BYTES,
    MAX_FILES,
    Documents,
    is_document,
    too_large,
    too_many,
)

# The newest fetched commit, and the newest one with a valid configuration.
_NEWEST = "refs/nonet/newest"
_GOOD = "refs/nonet/good"
_FIRST_FETCH_SECONDS = 60.0
# Shorter, because a commit is available while the server does not answer.
_FETCH_SECONDS = 20.0
_COMMAND_SECONDS = 20.0
_LOCK_SECONDS = 5.0
_LOCK_POLL_SECONDS = 0.05
# An older lock file was left by a git process that was killed.
_STALE_SECONDS = 2 * _FIRST_FETCH_SECONDS
_LONGEST_MESSAGE = 300

_OPTIONS = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,  # do not run the user's hooks
    "core.quotePath": "false",
    # Collect garbage in the foreground, so that no process outlives the command.
    "gc.auto": "256",
    "gc.autoDetach": "false",
    "gc.pruneExpire": "now",
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": "15",
    "maintenance.autoDetach": "false",
}
# A credential helper that answers from the environment. All users of the host can read the
# arguments of git and of its https helper; only the same user can read the environment.
_ANSWER = (
    '!answer() { test "$1" = get && '
    'printf "username=%s\\npassword=%s\\n" "$NONET_GIT_USER" "$NONET_GIT_PASSWORD"; }; answer'
)
# These would direct git to another repository, or open a password prompt.
_NOT_INHERITED = {
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
    "SSH_ASKPASS",
}


@dataclass(frozen=True, order=True)
class _Entry:
    path: str
    kind: str
    id: str
    size: int


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and password for an https server.

    Attributes:
        url: the only repository that gets them.
        password: None: ask the user's credential helpers, else send an empty one.
    """

    url: str
    user: str = field(repr=False)
    password: str | None = field(repr=False)

    def environment(self, number: int) -> dict[str, str]:
        """Return variables that configure the helper, after `number` existing ones."""
        section = f"credential.{self.url.rstrip('/')}"
        # With a password, no other helper is asked for one or asked to store it.
        first = ("username", self.user) if self.password is None else ("helper", "")
        found = {"NONET_GIT_USER": self.user, "NONET_GIT_PASSWORD": self.password or ""}
        for name, value in (first, ("helper", _ANSWER)):
            found[f"GIT_CONFIG_KEY_{number}"] = f"{section}.{name}"
            found[f"GIT_CONFIG_VALUE_{number}"] = value
            number += 1
        return {**found, "GIT_CONFIG_COUNT": str(number)}


class GitError(Exception):
    """A git command failed. The message is its reason, without credentials."""


class Repository:
    """A cache of one branch. Several processes may share it.

    Args:
        directory: used by this cache alone, created on demand.
        url: the repository to fetch from.
        branch: the branch to fetch.
        path: a file or directory in it; empty: the root directory.
        secrets: texts that no message may show.
        credentials: for an https server.
    """

    in_use = "another process has been fetching it for a while"

    def __init__(
        self,
        directory: Path,
        url: str,
        branch: str,
        path: str,
        secrets: Sequence[str] = (),
        credentials: Credentials | None = None,
    ) -> None:
        self._directory = directory
        self._git_dir = directory / "repository"
        self._url = url
        self._branch = branch
        self._path = path
        self._secrets = secrets
        self._credentials = credentials

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[bool]:
        """Lock the cache for writing; yield False if another process holds the lock too long."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        handle = os.open(self._directory / "lock", flags, 0o600)
        try:
            yield await _locked(handle)
        finally:
            os.close(handle)

    async def update(self) -> str:
        """Fetch the newest commit. Return why that failed, or an empty string.

        Raises:
            GitError: the cache is damaged and cannot be rebuilt.
        """
        try:
            if not (self._git_dir / "HEAD").exists():
                await self._create(self._git_dir)
            await asyncio.to_thread(self._remove_stale_locks)
            await self._fetch(self._git_dir)
        except GitError as error:
            if await self._is_sound():
                return str(error)
            await self.rebuild(error)
        return ""

    async def rebuild(self, damage: GitError) -> None:
        """Fetch into a new cache, then replace the damaged one by it.

        Args:
            damage: what is wrong with the cache, for the message.
        """
        fresh = self._directory / "fresh"
        await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)
        try:
            await self._create(fresh)
            await self._fetch(fresh)
        except GitError as error:
            raise GitError(
                f"its cache {self._git_dir} is damaged ({damage}) and cannot be fetched anew: "
                f"{error}"
            ) from None
        await asyncio.to_thread(shutil.rmtree, self._git_dir, ignore_errors=True)
        fresh.rename(self._git_dir)

    async def commits(self) -> tuple[str | None, str | None]:
        """Return the newest commit and the last good one; None where there is none."""
        output = await self._run("for-each-ref", "--format=%(refname) %(objectname)", "refs/nonet/")
        found = dict(line.split() for line in output.decode().splitlines())
        return found.get(_NEWEST), found.get(_GOOD)

    async def keep(self, commit: str) -> None:
        """Remember a commit as the last good one."""
        _, good = await self.commits()
        if good != commit:
            await self._run("update-ref", _GOOD, commit)

    async def documents(self, commit: str) -> Documents:
        """Return the files of the configuration in a commit, ordered by name.

        Raises:
            ConfigurationError: there is no file at the path, or they are too many or too large.
            GitError: the cache is damaged.
        """
        files = await self._files(commit)
        if len(files) > MAX_FILES:
            raise too_many(f"commit {commit[:12]}", len(files))
        if sum(file.size for file in files) > MAX_BYTES:
            raise too_large(f"commit {commit[:12]}")
        asked = "".join(f"{file.id}\n" for file in files)
        output = await self._run("cat-file", "--batch", text=asked.encode())
        return tuple(_contents(output, files))

    async def _files(self, commit: str) -> list[_Entry]:
        place = self._path or "the root directory"
        found = await self._list(commit, self._path) if self._path else []
        if self._path and not found:
            raise ConfigurationError(f"commit {commit[:12]} has no {place}")
        if not found or found[0].kind == "directory":
            inside = await self._list(commit, self._path and f"{self._path}/")
            found = [entry for entry in inside if is_document(Path(entry.path).name)]
            found = [entry for entry in found if entry.kind != "directory"]
        if not found:
            raise ConfigurationError(f"commit {commit[:12]}: {place} has no *.yaml or *.yml file")
        for entry in found:
            if entry.kind != "file":
                raise ConfigurationError(
                    f"commit {commit[:12]}: {entry.path} is a {entry.kind}, write a file"
                )
        return sorted(found)

    async def _list(self, commit: str, path: str) -> list[_Entry]:
        where = ["--", path] if path else []
        output = await self._run("ls-tree", "-z", "--long", "--full-tree", commit, *where)
        return [_entry(line) for line in output.decode(errors="replace").split("\0")[:-1]]

    async def _create(self, git_dir: Path) -> None:
        await self._run("init", "--quiet", "--bare", "--template=", git_dir=git_dir)

    async def _fetch(self, git_dir: Path) -> None:
        has_commit = git_dir == self._git_dir and (await self.commits())[0] is not None
        await self._run(
            *("fetch", "--quiet", "--depth=1", "--force", "--no-tags", "--no-prune"),
            *("--no-recurse-submodules", "--no-write-fetch-head", "--"),
            *(self._url, f"+refs/heads/{self._branch}:{_NEWEST}"),
            git_dir=git_dir,
            seconds=_FETCH_SECONDS if has_commit else _FIRST_FETCH_SECONDS,
        )

    async def _is_sound(self) -> bool:
        """Return whether the cache is undamaged."""
        try:
            await self._run("fsck", "--connectivity-only", "--no-dangling", "--no-progress")
            await self.commits()
        except GitError:
            return False
        return True

    def _remove_stale_locks(self, older_than: float = _STALE_SECONDS) -> None:
        for file in self._git_dir.rglob("*.lock"):
            with suppress(FileNotFoundError):
                if time.time() - file.stat().st_mtime >= older_than:
                    file.unlink()

    async def _run(
        self,
        *command: str,
        git_dir: Path | None = None,
        seconds: float = _COMMAND_SECONDS,
        text: bytes | None = None,
    ) -> bytes:
        """Run a git command with `text` as its input, and return its output.

        Raises:
            GitError: it failed, or did not end in time.
        """
        options = [part for name, value in _OPTIONS.items() for part in ("-c", f"{name}={value}")]
        where = f"--git-dir={git_dir or self._git_dir}"
        # A file, not a pipe: a shared ssh connection outlives git and would keep a pipe open.
        with tempfile.TemporaryFile() as errors:
            try:
                process = await asyncio.create_subprocess_exec(
                    *("git", *options, where, *command),
                    stdin=asyncio.subprocess.DEVNULL if text is None else asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    env=_environment(self._credentials),
                    cwd=self._directory,
                    start_new_session=True,
                )
            except FileNotFoundError:
                raise GitError("there is no 'git' on PATH: install the package git") from None
            output = await self._output(process, command[0], seconds, text)
            if process.returncode:
                errors.seek(0)
                raise GitError(self._reason(command[0], errors.read().decode(errors="replace")))
        return output

    async def _output(
        self, process: asyncio.subprocess.Process, verb: str, seconds: float, text: bytes | None
    ) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                output, _ = await process.communicate(text)
                return output
        except TimeoutError:
            raise GitError(f"git {verb} did not end within {seconds:g} s") from None
        finally:
            if process.returncode is None:
                await _kill(process)
                await asyncio.to_thread(self._remove_stale_locks, older_than=0)

    def _reason(self, verb: str, errors: str) -> str:
        """Return the first paragraph of git's error output as one line."""
        if "couldn't find remote ref" in errors:
            return f"it has no branch {self._branch!r}"
        lines = re.split(r"\n\s*\n", errors.strip())[0].splitlines()
        text = "; ".join(line.removeprefix("fatal: ").strip() for line in lines if line.strip())
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return f"git {verb}: {text[:_LONGEST_MESSAGE] or 'failed without a reason'}"


async def _locked(handle: int) -> bool:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        await asyncio.sleep(_LOCK_POLL_SECONDS)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a command and the processes that it started: ssh, the https helper."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _entry(line: str) -> _Entry:
    """Parse one entry of ``ls-tree``."""
    about, _, path = line.partition("\t")
    mode, _, id, size = about.split()
    kinds = {"120000": "symbolic link", "160000": "submodule", "040000": "directory"}
    return _Entry(path, kinds.get(mode, "file"), id, int(size) if size.isdigit() else 0)


def _contents(output: bytes, files: Sequence[_Entry]) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each file in the output of ``cat-file --batch``."""
    at = 0
    for file in files:
        head = f"{file.id} blob {file.size}\n".encode()
        if not output.startswith(head, at):
            raise GitError(f"the content of {file.path} is missing")
        at += len(head)
        yield file.path, output[at : at + file.size]
        at += file.size + 1


def _environment(credentials: Credentials | None) -> dict[str, str]:
    inherited = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
    ssh = os.environ.get("GIT_SSH_COMMAND", "ssh")
    # Append to the git settings in our own environment, which stay first.
    count = os.environ.get("GIT_CONFIG_COUNT", "")
    number = int(count) if count.isdecimal() else 0
    return {
        **inherited,
        **(credentials.environment(number) if credentials else {}),
        "GIT_ALLOW_PROTOCOL": "file:https:ssh",
        "GIT_SSH_COMMAND": f"{ssh} -oBatchMode=yes -oConnectTimeout=15 -oServerAliveInterval=5",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
