"""A configuration in a git repository: the newest commit of a branch, cached on disk."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from nonet.base.errors import ConfigurationError, url_problem
from nonet.config.models import Config
from nonet.config.sources.repository import Credentials, GitError, Repository
from nonet.config.sources.source import Check, Judged, judge, told

_SCHEMES = ("https", "ssh", "file")
_BRANCH = re.compile(r"[^\W_][\w./+@=-]{0,250}")
_NOT_IN_BRANCHES = re.compile(r"\.\.|//|/\.|\.lock(/|$)|[./]$")


@dataclass(frozen=True, slots=True)
class Address:
    """A branch of a repository, and where the configuration is in it.

    Attributes:
        url: for git, without what is secret.
        root: the root directory of the branch, without credentials.
        path: of a file or directory; empty: the root directory.
        credentials: for a server of https.
    """

    url: str
    root: str
    branch: str
    path: str
    credentials: Credentials | None = None

    @property
    def shown(self) -> str:
        """The whole text without credentials."""
        return f"{self.root}:{self.path}" if self.path else self.root

    @property
    def secrets(self) -> list[str]:
        """What no message may show."""
        if self.credentials is None:
            return []
        # A token is often given as the user.
        hidden = [text for text in (self.credentials.user, self.credentials.password) if text]
        return hidden + [quote(text, safe="") for text in hidden]


def parse_address(text: str) -> Address:
    """Read ``git+URL#BRANCH`` or ``git+URL#BRANCH:PATH``.

    Raises:
        ConfigurationError: it names no repository or branch, or could be taken for an option.

    >>> parse_address("git+https://t0ken@git.example.org/conf.git#main:prod").shown
    'git+https://***@git.example.org/conf.git#main:prod'
    """
    url, _, fragment = text.removeprefix("git+").partition("#")
    parts = _split(url)
    branch, _, path = fragment.partition(":")
    shown = f"git+{_shown(parts)}"
    if not branch:
        raise ConfigurationError(f"NONET_CONFIG: {shown}: name the branch: {shown}#main")
    if not _BRANCH.fullmatch(branch) or _NOT_IN_BRANCHES.search(branch):
        raise ConfigurationError(f"NONET_CONFIG: {shown}: {branch!r} is no name of a branch")
    path = path.strip("/")
    if not path.isprintable() or any(part in (".", "..", "") for part in path.split("/") if path):
        raise ConfigurationError(f"NONET_CONFIG: {shown}: {path!r} is no path in a repository")
    url, credentials = _taken_apart(url, parts)
    return Address(url, f"{shown}#{branch}", branch, path, credentials)


def _taken_apart(url: str, parts: SplitResult) -> tuple[str, Credentials | None]:
    """A URL that may be shown to everybody on this host, and what git is told in secret."""
    userinfo, _, host = parts.netloc.rpartition("@")
    if parts.scheme != "https" or not userinfo:
        return url, None
    url = f"https://{host}{parts.path}"
    user, has_password, password = userinfo.partition(":")
    return url, Credentials(url, unquote(user), unquote(password) if has_password else None)


def _split(url: str) -> SplitResult:
    scheme = re.match(r"[a-z]*", url)
    start = f"git+{scheme[0] if scheme else ''}://…"

    def refused(reason: str) -> ConfigurationError:
        return ConfigurationError(f"NONET_CONFIG: {start}: {reason}")

    if not url.startswith(tuple(f"{known}://" for known in _SCHEMES)):
        raise refused(f"use one of {', '.join(f'git+{known}://' for known in _SCHEMES)}")
    if not url.isprintable() or " " in url:
        raise refused("percent-encode blanks and control characters")
    if url.startswith("file:"):
        if not url.startswith("file:///"):
            raise refused("write the absolute path, as in git+file:///srv/nonet.git#main")
        return urlsplit(url)
    if problem := url_problem(url):
        raise refused(problem)
    parts = urlsplit(url)
    if not parts.hostname or not parts.path.strip("/"):
        raise refused("write git+SCHEME://HOST/PATH/OF/REPOSITORY.git#BRANCH")
    if parts.scheme == "https" and parts.query:
        raise refused("no git server reads a query; write a token as git+https://TOKEN@HOST/…")
    if parts.scheme == "ssh" and parts.password is not None:
        raise refused("ssh takes no password from a URL: use a key")
    if not unquote(parts.netloc).isprintable():
        raise refused("control characters cannot be part of a user or password")
    # ssh would take them for options.
    if any(unquote(part or "").startswith("-") for part in (parts.hostname, parts.username)):
        raise refused("neither user nor host may begin with '-'")
    return parts


def _shown(parts: SplitResult) -> str:
    user, has_user, host = parts.netloc.rpartition("@")
    if parts.scheme == "https" and has_user:
        user = "***"
    name, has_password, _ = user.partition(":")
    credentials = f"{name}:***" if has_password else name
    place = f"{credentials}@{host}" if has_user else host
    return f"{parts.scheme}://{place}{parts.path}" + ("?…" if parts.query else "")


class GitSource:
    """The newest commit of a branch that can be used; looked for each `poll_seconds`.

    What was fetched stays on disk: it is used while the repository cannot be reached. A commit
    that is refused changes nothing: the last good one holds, over a restart too.

    Args:
        cache: directory for the caches of all repositories.
        poll_seconds: how often to ask for a newer commit.
        check: see `open_source`.

    Raises:
        ConfigurationError: ``git`` is not installed.
    """

    def __init__(
        self, address: Address, cache: Path, poll_seconds: float, check: Check | None = None
    ) -> None:
        self.name = address.shown
        self._root = address.root
        self.poll_seconds = poll_seconds
        self.problem = ""
        self.revision = ""
        if shutil.which("git") is None:
            raise ConfigurationError(
                f"NONET_CONFIG: {self.name} needs the program 'git', which is not on PATH: "
                "install the package git, or use a file"
            )
        self._check = check
        # Without the credentials: a new token finds the old cache.
        place = hashlib.sha256(address.shown.encode()).hexdigest()[:16]
        self._repository = Repository(
            cache / place,
            address.url,
            address.branch,
            address.path,
            address.secrets,
            address.credentials,
        )
        self._judged: dict[str, Judged] = {}  # of the newest and the last good commit

    async def read(self) -> Config:
        """The configuration of the newest commit, or of the last good one: see `problem`.

        Raises:
            ConfigurationError: there is no commit that can be used.
        """
        repository = self._repository
        try:
            async with repository.exclusive() as is_alone:
                why = await repository.update() if is_alone else repository.in_use
                try:
                    return await self._choose(why)
                except GitError as damage:
                    if not is_alone:
                        raise
                    await repository.rebuild(damage)
                    return await self._choose("")
        except GitError as error:
            raise ConfigurationError(f"{self.name}: {error}") from None
        except OSError as error:
            raise ConfigurationError(
                f"{self.name}: its cache under NONET_STATE_DIR cannot be used: {error}"
            ) from None
        except ConfigurationError:
            raise
        except Exception as error:  # whatever it is: what holds stays, and this is told
            raise ConfigurationError(f"{self.name}: cannot be read: {told(error)}") from error

    async def _choose(self, why_not_fetched: str) -> Config:
        """Take the newest commit, or the last good one.

        Raises:
            ConfigurationError: neither can be used.
            GitError: the cache is damaged.
        """
        newest, good = await self._repository.commits()
        if newest is None and not why_not_fetched:
            raise GitError("what was just fetched is gone")
        if newest is None:
            raise ConfigurationError(f"{self.name}: {why_not_fetched}")
        problems = [f"{self.name}: {why_not_fetched}"] if why_not_fetched else []
        taken, judged = newest, await self._judge(newest)
        if judged.config is not None:
            await self._repository.keep(newest)
        elif good is not None:
            problems.append(f"commit {newest[:12]} is refused: {judged.problem}")
            taken, refused = good, judged
            judged = await self._judge(good)
            if judged.config is None:
                judged = refused
        self._judged = {id: self._judged[id] for id in {newest, taken}}
        config = judged.get()
        if problems:
            problems.append(f"commit {taken[:12]} is in force")
        self.problem, self.revision = "\n".join(problems), taken
        return config

    async def _judge(self, commit: str) -> Judged:
        if commit not in self._judged:
            self._judged[commit] = await self._look(commit)
        return self._judged[commit]

    async def _look(self, commit: str) -> Judged:
        try:
            found = await self._repository.documents(commit)
        except ConfigurationError as error:
            return Judged(problem=f"{self.name}: {error}")
        documents = tuple((f"{self._root}:{path}", content) for path, content in found)
        return await judge(documents, self.name, self._check)
