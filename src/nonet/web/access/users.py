"""The file of users and tokens, which is read again when it changes."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from nonet.base.errors import ConfigurationError
from nonet.config.document import Document
from nonet.rules.permissions import Principal, Role
from nonet.web.access.passwords import PasswordHash

logger = logging.getLogger(__name__)

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}$")]


def _end_of(value: Any) -> Any:
    """Take a day as its end in UTC."""
    if isinstance(value, str) and _DAY.fullmatch(value):
        value = date.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime.combine(value, time.max, UTC)
    return value


def _in_zone(value: datetime) -> datetime:
    if value.tzinfo is None:  # it could not be compared with the current time
        raise ValueError("has no time zone: write it as in 2027-02-21T19:28:22Z")
    return value


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Holder(_Line):
    """Who has a role, in some namespaces or (None) in all."""

    name: _Name
    role: Role
    namespaces: tuple[str, ...] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _has_values(self) -> _Holder:
        for name in ("namespaces", "expires"):
            if name in self.model_fields_set and getattr(self, name) is None:
                # Perhaps all its values are comments now: it must not count as no limit.
                raise ValueError(f"has no value for {name}: give one, or leave it out for no limit")
        return self


class User(_Holder):
    """A user who logs in by a password."""

    password: str

    @field_validator("password")
    @classmethod
    def _is_hash(cls, value: str) -> str:
        PasswordHash.read(value)
        return value

    @property
    def hash(self) -> PasswordHash:
        """The hash of the password."""
        return PasswordHash.read(self.password)

    @property
    def proof(self) -> str:
        """Changes with the password, which ends the sessions of the old one."""
        return hashlib.sha256(self.password.encode()).hexdigest()

    def principal(self, session: str) -> Principal:
        """Return this user as the caller in one of its sessions."""
        return Principal(self.name, self.role, self.namespaces, session)


class Token(_Holder):
    """A program that sends a bearer token."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    expires: Annotated[datetime, BeforeValidator(_end_of), AfterValidator(_in_zone)] | None = None

    def principal(self) -> Principal:
        """Return this token as a caller."""
        return Principal(f"token:{self.name}", self.role, self.namespaces)


class _File(_Line):
    users: tuple[User, ...] = ()
    tokens: tuple[Token, ...] = ()


class Users:
    """The users and tokens of a file.

    The file is read again at the first use after it changed, so that a removed line counts at
    once. If the new file cannot be read, the old content stays, and the log says so.

    Args:
        path: of the file; None: there are no users.

    Raises:
        ConfigurationError: the file cannot be read, or is invalid: one line per problem.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, ...] | str = ""
        self._users: Mapping[str, User] = {}
        self._tokens: Mapping[str, Token] = {}
        if path is not None:
            self._seen = _state(path)  # first, so that a change while it is read counts
            self._take(path)
            if path.stat().st_mode & 0o004:
                logger.warning(
                    "all users of this machine can read the hashes of passwords and tokens: "
                    "run 'chmod o-r %s'",
                    path,
                )

    def user(self, name: str) -> User | None:
        """Return a user."""
        self._refresh()
        return self._users.get(name)

    def token(self, secret: str) -> Token | None:
        """Return the token with a secret, unless it has expired."""
        self._refresh()
        found = self._tokens.get(hashlib.sha256(secret.encode()).hexdigest())
        is_over = found is not None and found.expires and found.expires <= datetime.now(UTC)
        return None if is_over else found

    def _refresh(self) -> None:
        if self._path is None:
            return
        state = _state(self._path)
        if state == self._seen:
            return
        self._seen = state
        try:
            self._take(self._path)
            logger.info("read users and tokens again: path=%s", self._path)
        except ConfigurationError as error:
            logger.error("kept the users and tokens of the last valid file: %s", error)

    def _take(self, path: Path) -> None:
        found = read_users(path)
        self._users = {user.name: user for user in found.users}
        self._tokens = {token.sha256: token for token in found.tokens}


def read_users(path: Path) -> _File:
    """Read a file of users and tokens.

    Raises:
        ConfigurationError: it cannot be read, or is invalid: one line per problem.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigurationError(
            f"NONET_WEB_USERS: {path} cannot be read: {reason}; make its lines with "
            "'task-run web password'"
        ) from None
    document = Document(text)
    problems = [(line, text) for line, text in document.problems]
    if not problems:
        try:
            found = _File.model_validate(document.value or {})
        except ValidationError as error:
            problems = list(_problems(error, document))
        else:
            problems = list(_repeated(found, document))
            if not problems:
                return found
    lines = [f"{path}:{line}: {text}" for line, text in sorted(problems)]
    raise ConfigurationError("NONET_WEB_USERS: " + "\n".join(lines))


def _problems(error: ValidationError, document: Document) -> Iterator[tuple[int, str]]:
    # Without the input: it may be a password.
    for item in error.errors(include_url=False, include_input=False):
        at = tuple(item["loc"])
        name = re.sub(r"\.(\d+)", r"[\1]", ".".join(map(str, at))) or "the file"
        text = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            text = "is not known"
        elif item["type"] == "missing":
            text = "is missing"
        elif at[-1:] == ("sha256",):
            text = "is not the SHA-256 of a token: make the line with 'task-run web token'"
        elif at[-1:] == ("name",) and item["type"] == "string_pattern_mismatch":
            text = "has other characters than letters, digits and . _ @ + -"
        yield document.line_of(at), f"{name} {text[:1].lower()}{text[1:]}"


def _repeated(found: _File, document: Document) -> Iterator[tuple[int, str]]:
    for kind, items in (("users", found.users), ("tokens", found.tokens)):
        names = [item.name for item in items]
        for number, name in enumerate(names):
            if name in names[:number]:
                yield document.line_of((kind, number)), f"{kind}[{number}] repeats {name!r}"
    hashes = [token.sha256 for token in found.tokens]
    for number, value in enumerate(hashes):
        if value in hashes[:number]:  # which of the two has the right scope?
            line = document.line_of(("tokens", number))
            yield line, f"tokens[{number}] is the token of another line: make a new one"


def _state(path: Path) -> tuple[int, ...] | str:
    """What differs after a change of a file."""
    try:
        found = path.stat()
    except OSError as error:
        return str(error)
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns
