"""Read the configuration from the newest commit of a git branch, with a cache on disk."""

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
    """A branch of a repository, and the path of the configuration in it.

    Attributes:
        url: the URL for git, without credentials.
        root: repository and branch as messages show them, without credentials.
        path: a file or directory; empty: the root directory.
        credentials: user and password for an https server.
    """

    url: str
    root: str
    branch: str
    path: str
    credentials: Credentials | None = None

    @property
    def shown(self) -> str:
        """The whole address without credentials."""
        return f"{self.root}:{self.path}" if self.path else self.root

    @property
    def secrets(self) -> list[str]:
        """Texts that no message may show."""
        if self.credentials is None:
            return []
        # A token is often written as the user.
        hidden = [text for text in (self.credentials.user, self.credentials.password) if text]
        return hidden + [quote(text, safe="") for text in hidden]


def parse_address(text: str) -> Address:
    """Read ``git+URL#BRANCH`` or ``git+URL#BRANCH:PATH``.

    Raises:
        ConfigurationError: the repository, branch or path is missing or invalid.

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
        raise ConfigurationError(f"NONET_CONFIG: {shown}: {branch!r} is not a valid branch name")
    path = path.strip("/")
    if not path.isprintable() or any(part in (".", "..", "") for part in path.split("/") if path):
        raise ConfigurationError(f"NONET_CONFIG: {shown}: {path!r} is not a path in a repository")
    url, credentials = _taken_apart(url, parts)
    return Address(url, f"{shown}#{branch}", branch, path, credentials)


def _taken_apart(url: str, parts: SplitResult) -> tuple[str, Credentials | None]:
    """Split a URL into one without credentials, and the credentials."""
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
        raise refused("remove the query; write a token as git+https://TOKEN@HOST/…")
    if parts.scheme == "ssh" and parts.password is not None:
        raise refused("ssh takes no password from a URL: use a key")
    if not unquote(parts.netloc).isprintable():
        raise refused("the user or password contains control characters")
    # ssh would read such a user or host as an option.
    if any(unquote(part or "").startswith("-") for part in (parts.hostname, parts.username)):
        raise refused("the user or host begins with '-'")
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
    """The newest valid commit of a branch, polled every `poll_seconds`.

    Fetched commits stay on disk, and are used while the repository is unreachable. If the newest
    commit is invalid, the last good one stays in use, also after a restart.

    Args:
        cache: directory for the caches of all repositories.
        poll_seconds: how often to fetch.
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
        # The name excludes credentials, so that a new token finds the same cache.
        place = hashlib.sha256(address.shown.encode()).hexdigest()[:16]
        self._repository = Repository(
            cache / place,
            address.url,
            address.branch,
            address.path,
            address.secrets,
            address.credentials,
        )
        self._judged: dict[str, Judged] = {}  # at most the newest and the last good commit

    async def read(self) -> Config:
        """Return the configuration of the newest commit, or of the last good one: see `problem`.

        Raises:
            ConfigurationError: there is no valid commit.
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
        except Exception as error:  # report it; the configuration in use stays
            raise ConfigurationError(f"{self.name}: cannot be read: {told(error)}") from error

    async def _choose(self, why_not_fetched: str) -> Config:
        """Use the newest commit, or the last good one.

        Raises:
            ConfigurationError: neither is valid.
            GitError: the cache is damaged.
        """
        newest, good = await self._repository.commits()
        if newest is None and not why_not_fetched:
            raise GitError("the commit that was just fetched is missing")
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
            self._judged[commit] = await self._read_commit(commit)
        return self._judged[commit]

    async def _read_commit(self, commit: str) -> Judged:
        try:
            found = await self._repository.documents(commit)
        except ConfigurationError as error:
            return Judged(problem=f"{self.name}: {error}")
        documents = tuple((f"{self._root}:{path}", content) for path, content in found)
        return await judge(documents, self.name, self._check)
