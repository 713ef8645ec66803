"""Read the configuration from the newest commit of a git branch.

It runs the program git, because dulwich 1.2 ignores settings that users rely on: credential helpers
and ``GIT_SSL_CAINFO``. A fetch in a thread could not be cancelled either.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

from nonet.base.errors import ConfigurationError
from nonet.config.models import Config
from nonet.config.sources.files import snapshot
from nonet.config.sources.git_address import Address, Credentials
from nonet.config.sources.source import Check, Judged, judge

# A command that takes longer is killed.
_SECONDS = 60.0
_LONGEST_MESSAGE = 300

_OPTIONS = {
    "core.autocrlf": "false",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,  # do not run the user's hooks
    "core.symlinks": "false",  # a link becomes a file that contains its target
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": "15",
}
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


class GitSource:
    """The newest commit of a branch, polled every `poll_seconds`.

    Each poll asks the server for the newest commit. A new one is cloned into a directory that is
    deleted again: nothing stays on disk that could be damaged or shared.

    Args:
        poll_seconds: how often to ask.
        check: see `open_source`.

    Raises:
        ConfigurationError: ``git`` is not installed.
    """

    def __init__(self, address: Address, poll_seconds: float, check: Check | None = None) -> None:
        self.name = address.shown
        self.poll_seconds = poll_seconds
        self.revision = ""
        if shutil.which("git") is None:
            raise ConfigurationError(
                f"NONET_CONFIG: {self.name} needs the program 'git', which is not on PATH: "
                "install the package git, or use a file"
            )
        self._address = address
        self._check = check
        self._judged = Judged()

    async def read(self) -> Config:
        """Return the configuration of the newest commit.

        Raises:
            ConfigurationError: the repository is unavailable, or the commit is invalid.
        """
        try:
            if await self._newest() != self.revision:
                await self._read_commit()
        except OSError as error:
            raise self._error(f"cannot be cloned: {error}") from None
        return self._judged.get()

    async def _newest(self) -> str:
        """Ask for the id of the newest commit."""
        wanted = f"refs/heads/{self._address.branch}"
        output = await self._run("ls-remote", "--", self._address.url, wanted)
        for line in output.splitlines():
            commit, _, ref = line.partition("\t")
            if ref == wanted:
                return commit
        raise self._error(f"it has no branch {self._address.branch!r}")

    async def _read_commit(self) -> None:
        with tempfile.TemporaryDirectory(prefix="nonet-config-") as place:
            clone = Path(place, "clone")
            options = ("--quiet", "--depth=1", "--no-tags", "--template=")
            branch = f"--branch={self._address.branch}"
            await self._run("clone", *options, branch, "--", self._address.url, str(clone))
            commit = await self._run("rev-parse", "HEAD", where=clone)
            found = await asyncio.to_thread(snapshot, clone / self._address.path)

        def shown(text: str) -> str:
            """Name the repository instead of the clone."""
            root = self._address.root
            return text.replace(f"{clone}/", f"{root}:").replace(str(clone), root)

        if found.problem:
            self._judged = Judged(problem=shown(found.problem))
        else:
            documents = tuple((shown(name), content) for name, content in found.documents)
            self._judged = await judge(documents, self.name, self._check)
        self.revision = commit.strip()

    async def _run(self, *command: str, where: Path | None = None) -> str:
        """Run a git command in a directory, and return its output."""
        options = [part for name, value in _OPTIONS.items() for part in ("-c", f"{name}={value}")]
        # A file, not a pipe: a shared ssh connection outlives git and would keep a pipe open.
        with tempfile.TemporaryFile() as errors:
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *("git", *options, *command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    env=_environment(self._address.credentials),
                    cwd=where or tempfile.gettempdir(),
                    start_new_session=True,
                )
            )
            try:
                # Not cancelled: asyncio would kill git, but not the helper that it has started.
                process = await asyncio.shield(starting)
                async with asyncio.timeout(_SECONDS):
                    output, _ = await process.communicate()
            except TimeoutError:
                raise self._error(f"git {command[0]} did not end within {_SECONDS:g} s") from None
            finally:
                if (process := await starting).returncode is None:
                    await _kill(process)
            if process.returncode:
                errors.seek(0)
                raise self._failed(command[0], errors.read().decode(errors="replace"))
        return output.decode(errors="replace")

    def _failed(self, verb: str, errors: str) -> ConfigurationError:
        """Shorten git's error output to one line of its first paragraph."""
        lines = re.split(r"\n\s*\n", errors.strip())[0].splitlines()
        text = "; ".join(line.removeprefix("fatal: ").strip() for line in lines if line.strip())
        for secret in sorted(self._address.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return self._error(f"git {verb}: {text[:_LONGEST_MESSAGE] or 'failed without a reason'}")

    def _error(self, reason: str) -> ConfigurationError:
        return ConfigurationError(f"{self.name}: {reason}")


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a command and the processes that it started: ssh, the https helper."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


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
