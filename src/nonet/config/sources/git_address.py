"""Addresses of git repositories: ``git+URL#BRANCH:PATH``, and the credentials in them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, unquote, urlsplit

from nonet.base.errors import ConfigurationError, url_problem

_SCHEMES = ("https", "ssh", "file")
_BRANCH = re.compile(r"[^\W_][\w./+@=-]{0,250}")
_NOT_IN_BRANCHES = re.compile(r"\.\.|//|/\.|\.lock(/|$)|[./]$")
# A credential helper that answers from the environment. All users of the host can read the
# arguments of git and of its https helper; only the same user can read the environment.
_ANSWER = (
    '!answer() { test "$1" = get && '
    'printf "username=%s\\npassword=%s\\n" "$NONET_GIT_USER" "$NONET_GIT_PASSWORD"; }; answer'
)


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
