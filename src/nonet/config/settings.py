"""Process settings: ``NONET_…`` variables of the environment or of ``.env``, and their defaults.

In code, each is an option of `Nonet.from_settings`. Commands have options for some of them, such
as ``--namespace``, ``--tasks`` and ``--concurrency``: see ``--help``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from msgspec import Meta, field, structs

from nonet.base.amounts import parse_bytes
from nonet.base.errors import ConfigurationError, masked, url_problem
from nonet.base.keys import NAMESPACE_TEXT
from nonet.base.machine import cores
from nonet.base.messages.encryption import KEY_BYTES, Cipher
from nonet.base.messages.resealing import resealed
from nonet.base.messages.signing import Signer, parse_keys
from nonet.base.streams import Size
from nonet.config.environment import (
    EnvironmentModel,
    Secret,
    read_flag,
    read_secret,
    read_variables,
    refuse_unknown_variables,
)
from nonet.config.web_settings import WebSettings
from nonet.rules.crash_limit import CRASH_LIMIT

PREFIX = "NONET_"

_DEFAULT_REDIS = "redis://127.0.0.1:6379/0"

# Small tasks share the event loop, medium tasks have a core each, a large task has the machine.
_DEFAULT_CONCURRENCY = {Size.SMALL: 100, Size.MEDIUM: cores(), Size.LARGE: 1}
_SLOTS = re.compile(rf"({'|'.join(Size)}):([1-9]\d{{0,4}})")
# In a URL: the password of the user, and parameters such as sentinel_password.
_PASSWORDS = re.compile(r"://[^:/?#@]*:([^/?#@]+)@|[?&][^=&#]*passw[^=&#]*=([^&#]+)", re.I)


def _state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    try:
        return Path(base or Path.home() / ".local" / "state") / "nonet"
    except RuntimeError:
        raise ConfigurationError(
            "settings: this user has no home directory, neither HOME nor an entry in passwd: set "
            "NONET_STATE_DIR to a writable directory"
        ) from None


def _url(value: Any) -> Secret:
    # Secrets often end with a line break.
    found = read_secret(value)
    url = found.get_secret_value().strip()
    if url and (problem := url_problem(url)):
        raise ValueError(problem)
    return Secret(url, found.file)


def _address(value: Any) -> Secret:
    found = read_secret(value)
    text = found.get_secret_value()
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_one = False
    if text and not is_one:  # it is not quoted: it may hold a token
        raise ValueError("must be an address such as https://hooks.example.org/TOKEN, or empty")
    return found


def _signing_keys(value: Any) -> Secret:
    found = read_secret(value)
    parse_keys(found.get_secret_value())
    return found


def _encryption_keys(value: Any) -> Secret:
    found = read_secret(value)
    parse_keys(found.get_secret_value(), exactly=KEY_BYTES)
    return found


def _slots(value: Any) -> dict[str, int]:
    if isinstance(value, Mapping):
        value = ",".join(f"{size}:{number}" for size, number in value.items())
    parts = [part.strip() for part in str(value).split(",")]
    found = [_SLOTS.fullmatch(part) for part in parts if part]
    numbers = {match[1]: int(match[2]) for match in found if match}
    if len(numbers) < len(found):
        raise ValueError("must be SIZE:NUMBER, each size once, such as small:10,large:4")
    return numbers


def _directory(value: Any) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError:  # ~, or ~name
        raise ValueError(f"there is no home directory for {value}: write a full path") from None
    except TypeError:
        raise ValueError("must be a path") from None


class Settings(EnvironmentModel, frozen=True, kw_only=True):
    """Settings of one process. Durations are in seconds.

    Each field ``x`` is read from the environment variable ``NONET_X``.

    Attributes:
        redis_url: ``redis://``, ``rediss://`` (TLS), ``unix://``, ``redis+sentinel://``,
            ``redis+cluster://`` (see the page "Prepare Redis") or ``embedded://`` (a private
            server under `state_dir`). ``NONET_REDIS_URL_FILE`` names a file that holds it.
        db_url: SQLAlchemy URL for dead letters and durable tasks; empty: SQLite under `state_dir`.
            ``NONET_DB_URL_FILE`` names a file that holds it.
        namespace: prefix of all keys; one Redis may have several.
        config: the central configuration, read by the scheduler: a file, a directory or a git
            repository (``git+https://HOST/REPOSITORY.git#BRANCH``); empty: none.
        config_poll: how often a git repository is polled.
        tasks: modules with tasks, in addition to entry points.
        only_tasks: a worker takes only tasks of these classes, ``ml:*,mail:Send``, and leaves all
            others to other workers; empty: of all that it has loaded.
        except_tasks: classes whose tasks a worker leaves to other workers in any case.
        entry_points: prefixes of entry point groups, in addition to ``nonet``.
        extensions: distributions by precedence, if several define the same task.
        state_dir: directory for embedded servers and SQLite.
        concurrency: tasks at a time in one worker; unset: 100 for small, the number of cores for
            medium, 1 for large.
        threads: plain ``def`` tasks at a time in the process of one worker, each in a thread of its
            own. A thread may hold a database connection.
        slots: slots per worker by size, ``small:10,large:4``, which a scheduler assumes while no
            worker is registered; unset: as last registered, else as `concurrency`.
        child_max_tasks: replace a reusable child process after this many attempts; 0: never.
        child_max_rss: replace a child process that has more memory than this after an attempt, in
            bytes or as ``1GiB``; 0: never.
        lease: another worker takes over a delivery after this time without renewal.
        lock_ttl: how long locks outlive a dead holder.
        lock_aging: a task that has waited this long for its locks counts as realtime.
        lock_recheck: first interval after which a waiting task is checked without being woken;
            doubles with each consecutive refusal.
        lock_recheck_max: the longest such interval.
        leader_ttl: how long the scheduler's lease outlives a dead leader.
        worker_ttl: how long a dead worker stays registered.
        grace: how long running tasks may continue after SIGTERM.
        cancel_grace: how long a cancelled task may take to end; then it is killed, or abandoned if
            it runs in the worker's own process.
        result_ttl: how long results are kept; 0: not at all.
        dedup_ttl: how long the id of an ended task is remembered.
        workflow_ttl: how long a failed workflow is kept, so that it can be resumed.
        history: how many ended tasks the history keeps: this many done ones, as many cancelled
            ones, and a tenth each of dead and expired ones; 0: none.
            Use one value everywhere: a process with a smaller one cuts the history of all.
        dlq_retention: how long dead letters are kept; 0: forever.
        misfire_grace: occurrences that are late by less than this are submitted one by one. It is
            capped at the interval of the schedule.
        memory_floor: a worker fetches nothing while less memory is free, in bytes or as
            ``512MiB``; 0: off.
        load_ceiling: a worker fetches nothing while the load average of the last minute per core
            is higher; 0: off.
        crash_limit: a task is dead after this many crashes, whatever its retry policy says. A crash
            counts if no other suspect ran in the process that died.
        confirm_replicas: how many replicas of Redis must confirm a submit, a settle or a
            structural lock; 0: none. See the page "Prepare Redis".
        log_format: format of a daemon's log lines: ``console`` or ``json``; ``auto``: JSON in a
            Kubernetes pod, else ``console``.
        log_level: lowest level that a daemon logs: ``debug``, ``info``, ``warning`` or ``error``.
        task_log_bytes: how much is kept, for ``task-run logs``, of the last lines that the code of
            an attempt logs, in bytes; 0: nothing. ``log_lines`` of a class bounds them, too.
        uvloop: run commands, daemons and child processes in uvloop where it is installed; False: in
            asyncio's event loop. A program that opens an application has its own loop.
        message_limit: longest envelope or result, in bytes.
        accept_unsigned: execute tasks without a signature although there are keys.
        allow_eviction: start although Redis may evict keys when its memory is full.
        on_overflow: ``module:function`` that the leading scheduler calls when workers are missing.
        overflow_cooldown: wait this long before calling it again.
        webhook_url: ``http`` or ``https`` address to which the leading scheduler reports what an
            overview finds; empty: none. ``NONET_WEBHOOK_URL_FILE`` names a file that holds it.
        webhook_secret: key of the signature of these reports; empty: none.
            ``NONET_WEBHOOK_SECRET_FILE`` names a file that holds it.
        metrics_host: address on which a daemon serves metrics and probes.
        metrics_port: port for metrics and probes; 0: off.
        signing_keys: ``id:base64,…``: the first key signs envelopes, every key verifies; empty:
            nothing is signed. ``NONET_SIGNING_KEYS_FILE`` names a file that holds them.
        encryption_keys: ``id:base64,…``: the first key encrypts the data of tasks whose classes are
            ``encrypted``, every key decrypts. ``NONET_ENCRYPTION_KEYS_FILE`` names a file that
            holds them.
        encrypt_all: encrypt the tasks of all classes.

    Example:
        settings = load_settings(namespace="test", lease=60)
        assert settings.renew_interval == 10
    """

    PREFIX: ClassVar[str] = PREFIX
    # Secrets that may be in files: NONET_REDIS_URL_FILE …
    FROM_FILES: ClassVar[tuple[str, ...]] = (
        "redis_url",
        "db_url",
        "signing_keys",
        "encryption_keys",
        "webhook_url",
        "webhook_secret",
    )
    TEXTS: ClassVar[Mapping[str, str]] = {
        "namespace": NAMESPACE_TEXT,
        "on_overflow": "MODULE:FUNCTION, such as mypackage.scaling:start, or empty",
    }
    READERS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "redis_url": _url,
        "db_url": _url,
        "state_dir": _directory,
        "slots": _slots,
        "child_max_rss": parse_bytes,
        "memory_floor": parse_bytes,
        "webhook_url": _address,
        "signing_keys": _signing_keys,
        "encryption_keys": _encryption_keys,
    }
    UNSHOWN: ClassVar[tuple[str, ...]] = ("config",)  # a URL may hold a token

    redis_url: Secret = Secret(_DEFAULT_REDIS)
    db_url: Secret = Secret("")
    namespace: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "nonet"
    config: str = ""  # a URL may hold a token
    config_poll: Annotated[float, Meta(ge=1, le=1e6)] = 60
    tasks: tuple[str, ...] = ()
    only_tasks: tuple[str, ...] = ()
    except_tasks: tuple[str, ...] = ()
    entry_points: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    state_dir: Path = field(default_factory=_state_dir)
    concurrency: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    threads: Annotated[int, Meta(ge=1, le=10_000)] = 8
    slots: Mapping[str, int] = field(default_factory=dict)
    child_max_tasks: Annotated[int, Meta(ge=0, le=10**9)] = 1000
    child_max_rss: int = 0
    lease: Annotated[float, Meta(gt=0)] = 45
    lock_ttl: Annotated[float, Meta(ge=0.1)] = 30
    lock_aging: Annotated[float, Meta(gt=0)] = 60
    lock_recheck: Annotated[float, Meta(ge=0.1)] = 30
    lock_recheck_max: Annotated[float, Meta(ge=0.1)] = 600
    leader_ttl: Annotated[float, Meta(ge=0.1)] = 30
    worker_ttl: Annotated[float, Meta(ge=0.1)] = 30
    grace: Annotated[float, Meta(ge=0)] = 25
    cancel_grace: Annotated[float, Meta(ge=0, le=1e6)] = 10
    result_ttl: Annotated[float, Meta(ge=0)] = 3600
    dedup_ttl: Annotated[float, Meta(gt=20)] = 60
    workflow_ttl: Annotated[float, Meta(ge=60, le=1e9)] = 7 * 86400
    history: Annotated[int, Meta(ge=0, le=1_000_000)] = 10_000
    # At most half a century, so that subtracting it gives a valid date.
    dlq_retention: Annotated[float, Meta(ge=0, le=1.6e9)] = 0
    misfire_grace: Annotated[float, Meta(ge=0)] = 60
    memory_floor: int = 0
    load_ceiling: Annotated[float, Meta(ge=0, le=1e6)] = 0
    crash_limit: Annotated[int, Meta(ge=1, le=1000)] = CRASH_LIMIT
    confirm_replicas: Annotated[int, Meta(ge=0, le=100)] = 0
    log_format: Literal["auto", "console", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    task_log_bytes: Annotated[int, Meta(ge=0, le=1024 * 1024)] = 16 * 1024
    uvloop: bool = True
    message_limit: Annotated[int, Meta(ge=1024, le=4 * 1024 * 1024)] = 256 * 1024
    accept_unsigned: bool = False
    allow_eviction: bool = False
    on_overflow: Annotated[str, Meta(pattern=r"^([\w.]+:[\w.]+)?$")] = ""
    overflow_cooldown: Annotated[float, Meta(ge=1)] = 60
    webhook_url: Secret = Secret("")
    webhook_secret: Secret = Secret("")
    metrics_host: Annotated[str, Meta(min_length=1)] = "0.0.0.0"
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    signing_keys: Secret = Secret("")
    encryption_keys: Secret = Secret("")
    encrypt_all: bool = False

    def __post_init__(self) -> None:
        if self.encrypt_all and not self.encryption_keys.get_secret_value():
            raise ValueError("encrypt_all needs a key: set NONET_ENCRYPTION_KEYS, too")
        if self.lock_ttl >= self.lease:
            raise ValueError(
                f"lock_ttl ({self.lock_ttl:g} s) must be shorter than lease ({self.lease:g} s), "
                "so that the locks of a dead worker expire before its tasks run again"
            )
        if self.lock_recheck > self.lock_recheck_max:
            raise ValueError(
                f"lock_recheck ({self.lock_recheck:g} s) must not be longer than "
                f"lock_recheck_max ({self.lock_recheck_max:g} s)"
            )

    def of(self, namespace: str) -> Settings:
        """For the framework: return these settings for one namespace on the same servers.

        Args:
            namespace: its name.
        """
        return structs.replace(self, namespace=namespace)

    def resealed(self, data: bytes, id: str, namespace: str) -> bytes:
        """For the framework: return the message of task `id` as another namespace needs it.

        Raises:
            MalformedMessageError: it is not valid here, or this process has no key for it.
        """
        if not (self.signing_keys.get_secret_value() or self.encryption_keys.get_secret_value()):
            return data  # a message that no key protects is the same everywhere
        other = self.of(namespace)
        here, there = (self.signer(), self.cipher()), (other.signer(), other.cipher())
        return resealed(data, id, here, there, self.message_limit)

    @property
    def renew_interval(self) -> float:
        """Seconds between two renewals by the watchdog: a third of the shortest lease."""
        return min(self.lease, self.lock_ttl, self.worker_ttl) / 3

    def signer(self) -> Signer:
        """For the framework: return the signer of envelopes in this namespace."""
        keys = parse_keys(self.signing_keys.get_secret_value())
        return Signer(keys, self.namespace, accept_unsigned=self.accept_unsigned)

    def cipher(self) -> Cipher:
        """For the framework: return the cipher of this namespace.

        Raises:
            ConfigurationError: there are keys, but not the package `cryptography`.
        """
        keys = parse_keys(self.encryption_keys.get_secret_value(), exactly=KEY_BYTES)
        return Cipher(keys, self.namespace, everything=self.encrypt_all)

    def secrets(self) -> list[str]:
        """For the framework: return the passwords and keys that no log line may show."""
        both = (self.signing_keys, self.encryption_keys)
        keys = [key for found in both for key in found.get_secret_value().split(",")]
        urls = (self.redis_url.get_secret_value(), self.db_url.get_secret_value(), self.config)
        passwords = ["".join(found) for url in urls for found in _PASSWORDS.findall(url)]
        texts = [key.partition(":")[2].strip() for key in keys]
        hook = urlsplit(self.webhook_url.get_secret_value())
        # The path of a chat service's address is a password.
        texts += [self.webhook_secret.get_secret_value(), hook.path.strip("/"), hook.query]
        return [text for text in (*texts, *passwords, *map(unquote, passwords)) if text]

    def sql_url(self) -> str:
        """Return the URL of the SQL database: `db_url`, else SQLite under `state_dir`."""
        return self.db_url.get_secret_value() or f"sqlite+aiosqlite:///{self._sqlite_file}"

    def may_have_sql(self) -> bool:
        """Return whether a SQL database is configured, or its SQLite file exists."""
        return bool(self.db_url.get_secret_value()) or self._sqlite_file.exists()

    @property
    def groups(self) -> tuple[str, ...]:
        """Prefixes of the entry point groups to load."""
        return ("nonet", *self.entry_points)

    def slots_of(self, size: Size) -> int:
        """Return how many tasks a worker runs at a time by default.

        Args:
            size: the size of its tasks.
        """
        return self.concurrency or _DEFAULT_CONCURRENCY[size]

    @property
    def _sqlite_file(self) -> Path:
        return self.state_dir / "nonet.db"


def load_settings(**options: Any) -> Settings:
    """Load the settings of this process. Options that are not None override the environment.

    Args:
        options: fields of `Settings`.

    Raises:
        ConfigurationError: values are invalid (all are listed), or an option or ``NONET_``
            variable is unknown.

    Example:
        settings = load_settings(namespace="test", tasks=("mypackage.tasks",))
    """
    refuse_unknown_variables(PREFIX, Settings.variables() | WebSettings.variables())
    return Settings.load(**options)


def ensure_settings(given: object) -> None:
    """Raise TypeError if what an application was created with is not settings."""
    if not isinstance(given, Settings):
        shown = repr(masked(given)) if isinstance(given, str) else f"{given!r:.100}"
        raise TypeError(
            f"Nonet: {shown} is not a nonet.Settings: write Nonet.from_settings(redis_url=…)"
        )


def plain_settings(**options: Any) -> Settings:
    """Build settings from options and defaults, ignoring the environment and ``.env``.

    Raises:
        ConfigurationError: like `load_settings`.
    """
    return Settings.plain(**options)


def uses_uvloop() -> bool:
    """Return `Settings.uvloop` without loading the others: a command starts its loop before that.

    Raises:
        ConfigurationError: the variable is invalid.
    """
    text = read_variables().get(f"{PREFIX}UVLOOP")
    try:
        return read_flag(text or True)
    except ValueError:
        raise ConfigurationError(f"settings: {PREFIX}UVLOOP: must be true or false") from None


def is_default_redis(url: str) -> bool:
    """Return whether `url` is the default and the environment sets no Redis."""
    if url != _DEFAULT_REDIS:
        return False
    variables = read_variables()
    return not any(variables.get(f"{PREFIX}{name}") for name in ("REDIS_URL", "REDIS_URL_FILE"))
