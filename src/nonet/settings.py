"""Process settings: variables ``NONET_…`` of the environment or of ``.env``, and their defaults.

In code each is an option of `Nonet.from_settings`. Of the commands, some have an option for a
few of them (``--namespace``, ``--tasks``, ``--state-dir``, ``--concurrency`` …): see ``--help``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, DotEnvSettingsSource, NoDecode, SettingsConfigDict

from nonet.errors import ConfigurationError, suggestion, url_problem
from nonet.signing import Signer, parse_keys

_PREFIX = "NONET_"
# Secrets, which may come in files: NONET_REDIS_URL_FILE …
_FROM_FILES = ("redis_url", "db_url", "signing_keys")
Names = Annotated[tuple[str, ...], NoDecode]


def _state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "nonet"


class Settings(BaseSettings):
    """Settings of one process; durations in seconds.

    Every field ``x`` is the environment variable ``NONET_X``.

    Attributes:
        redis_url: ``redis://``, ``rediss://``, ``unix://`` or ``embedded://`` (a private server
            under `state_dir`). ``NONET_REDIS_URL_FILE`` names a file that holds it.
        db_url: SQLAlchemy URL for dead letters and durable tasks; empty: SQLite under `state_dir`.
            ``NONET_DB_URL_FILE`` names a file that holds it.
        namespace: prefix of all keys; one Redis may hold several.
        config: the central configuration, read by the scheduler: a file, a directory or a git
            repository (``git+https://HOST/REPOSITORY.git#BRANCH``); empty: none.
        config_poll: how often a git repository is asked for a newer configuration.
        tasks: modules with tasks, beside those from entry points.
        entry_points: prefixes of entry point groups, beside ``nonet``.
        extensions: distributions, first wins, where two define the same task.
        state_dir: where embedded servers, SQLite and the run files of workers are.
        concurrency: tasks at a time in one worker; unset: 100 for small, 1 for the others.
        lease: after this time without renewal another worker takes a delivery.
        lock_ttl: how long locks outlive a dead holder.
        lock_aging: a task that has waited so long for its locks counts as realtime.
        lock_recheck: a waiting task is looked at after so long although nothing woke it; the
            pause doubles with each refusal in a row.
        lock_recheck_max: the longest such pause.
        leader_ttl: how long the scheduler's lease outlives a dead leader.
        worker_ttl: how long a dead worker stays registered.
        grace: how long running tasks may go on after SIGTERM.
        result_ttl: how long results are kept; 0: not at all.
        dedup_ttl: how long the id of an ended task is remembered.
        dlq_retention: how long dead letters are kept; 0: for ever.
        misfire_grace: missed occurrences younger than this are all made up for.
        message_limit: longest envelope or result, in bytes.
        accept_unsigned: execute tasks without a signature although there are keys.
        allow_eviction: start although Redis may drop keys when its memory is full.
        metrics_host: address on which a daemon answers probes.
        metrics_port: port for that; 0: it does not.
        signing_keys: ``id:base64,…``: the first key signs envelopes, all of them verify; empty:
            nothing is signed. ``NONET_SIGNING_KEYS_FILE`` names a file that holds them.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_file=".env",
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
    )

    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    db_url: SecretStr = SecretStr("")
    namespace: str = Field(default="nonet", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    config: str = Field(default="", repr=False)  # a URL may hold a token
    config_poll: float = Field(default=60, ge=1, le=1e6)
    tasks: Names = ()
    entry_points: Names = ()
    extensions: Names = ()
    state_dir: Path = Field(default_factory=_state_dir)
    concurrency: int | None = Field(default=None, ge=1, le=10_000)
    lease: float = Field(default=45, gt=0)
    lock_ttl: float = Field(default=30, ge=0.1)
    lock_aging: float = Field(default=60, gt=0)
    lock_recheck: float = Field(default=30, ge=0.1)
    lock_recheck_max: float = Field(default=600, ge=0.1)
    leader_ttl: float = Field(default=30, ge=0.1)
    worker_ttl: float = Field(default=30, ge=0.1)
    grace: float = Field(default=25, ge=0)
    result_ttl: float = Field(default=3600, ge=0)
    dedup_ttl: float = Field(default=60, gt=20)
    # Half a century at most: the date that far back must exist.
    dlq_retention: float = Field(default=0, ge=0, le=1.6e9)
    misfire_grace: float = Field(default=60, ge=0)
    message_limit: int = Field(default=256 * 1024, ge=1024, le=4 * 1024 * 1024)
    accept_unsigned: bool = False
    allow_eviction: bool = False
    metrics_host: str = Field(default="0.0.0.0", min_length=1)
    metrics_port: int = Field(default=0, ge=0, le=65535)
    signing_keys: SecretStr = SecretStr("")

    @field_validator("tasks", "entry_points", "extensions", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("config", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    @field_validator("redis_url", "db_url")
    @classmethod
    def _unambiguous(cls, value: SecretStr) -> SecretStr:
        url = value.get_secret_value()
        if url and (problem := url_problem(url)):
            raise ValueError(problem)
        return value

    @field_validator("signing_keys")
    @classmethod
    def _usable(cls, value: SecretStr) -> SecretStr:
        parse_keys(value.get_secret_value())
        return value

    @model_validator(mode="before")
    @classmethod
    def _read_files(cls, values: Any) -> Any:
        for name in _FROM_FILES:
            path = _variables().get(f"{_PREFIX}{name.upper()}_FILE")
            if path and name not in values:
                values[name] = Path(path).read_text(encoding="utf-8").strip()
        return values

    @model_validator(mode="after")
    def _relations(self) -> Settings:
        if self.lock_ttl >= self.lease:
            raise ValueError(
                f"lock_ttl ({self.lock_ttl:g} s) must be shorter than lease ({self.lease:g} s), "
                "so that a dead worker's locks are gone before its tasks run again"
            )
        if self.lock_recheck > self.lock_recheck_max:
            raise ValueError(
                f"lock_recheck ({self.lock_recheck:g} s) must not be longer than "
                f"lock_recheck_max ({self.lock_recheck_max:g} s)"
            )
        return self

    @property
    def renew_interval(self) -> float:
        """Seconds between two beats of the watchdog: a third of the shortest lease."""
        return min(self.lease, self.lock_ttl, self.worker_ttl) / 3

    def signer(self) -> Signer:
        """What signs and verifies the envelopes of this namespace."""
        keys = parse_keys(self.signing_keys.get_secret_value())
        return Signer(keys, self.namespace, accept_unsigned=self.accept_unsigned)

    def sql_url(self) -> str:
        """Where dead letters and durable tasks go: `db_url`, else SQLite under `state_dir`."""
        return self.db_url.get_secret_value() or f"sqlite+aiosqlite:///{self._sqlite_file}"

    def may_have_sql(self) -> bool:
        """Whether there is a database to look into; False: nobody has written one here."""
        return bool(self.db_url.get_secret_value()) or self._sqlite_file.exists()

    @property
    def _sqlite_file(self) -> Path:
        return self.state_dir / "nonet.db"


def load_settings(**options: Any) -> Settings:
    """Settings of this process; options that are not None win over the environment.

    Raises:
        ConfigurationError: a value does not fit; all of them are named. A misspelt option or
            ``NONET_`` variable is refused too.
    """
    _refuse_unknown_options(options)
    _refuse_unknown_variables()
    try:
        return Settings(**{name: value for name, value in options.items() if value is not None})
    except OSError as error:
        raise ConfigurationError(f"settings: {error}") from None
    except ValidationError as error:
        problems = [
            "".join(f"{_PREFIX}{str(name).upper()}: " for name in item["loc"][:1])
            + item["msg"].removeprefix("Value error, ")
            for item in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigurationError("settings: " + "; ".join(problems)) from None


def _refuse_unknown_options(options: Iterable[str]) -> None:
    for name in options:
        if name not in Settings.model_fields:
            raise ConfigurationError(
                f"setting {name!r} is not known.{suggestion(name, Settings.model_fields)}"
            )


def _variables() -> dict[str, str | None]:
    """The environment over ``.env``."""
    from_file = DotEnvSettingsSource(Settings).env_vars
    return {**{name.upper(): value for name, value in from_file.items()}, **os.environ}


def _refuse_unknown_variables() -> None:
    known = {f"{_PREFIX}{name.upper()}" for name in Settings.model_fields}
    known |= {f"{_PREFIX}{name.upper()}_FILE" for name in _FROM_FILES}
    for name in _variables():
        if name.startswith(_PREFIX) and name not in known:
            raise ConfigurationError(f"setting {name} is not known.{suggestion(name, known)}")
