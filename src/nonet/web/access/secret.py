"""Find or make the secret that authenticates sessions and one-time links."""

from __future__ import annotations

import secrets
from pathlib import Path

from nonet.base.errors import ConfigurationError
from nonet.base.private import create_private
from nonet.config.web_settings import SHORTEST_SECRET, WebSettings

_FILE = "web-secret"


def find_secret(settings: WebSettings, state_dir: Path) -> bytes:
    """Return the secret of ``task-web``.

    Raises:
        ConfigurationError: it is not set, and ``task-web`` was never started with this directory.
    """
    if given := settings.secret.get_secret_value():
        return given.encode()
    file = state_dir / _FILE
    try:
        found = file.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(
            f"the secret of task-web is missing: no file {file}. Run this command on the machine "
            "of task-web, with its NONET_STATE_DIR, or set NONET_WEB_SECRET for both"
        ) from None
    except OSError as error:
        raise _unusable(file, error) from None
    if len(found) < SHORTEST_SECRET:  # with an empty secret anyone could forge a session
        raise ConfigurationError(
            f"the secret of task-web in {file} is too short: delete the file, and start task-web "
            "again, or set NONET_WEB_SECRET"
        )
    return found


def make_secret(settings: WebSettings, state_dir: Path) -> bytes:
    """Return the secret of ``task-web``; make it if it is neither set nor in the directory.

    Raises:
        ConfigurationError: the directory cannot be written.
    """
    file = state_dir / _FILE
    if not settings.secret.get_secret_value():
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            create_private(file, secrets.token_urlsafe(32))
        except OSError as error:
            raise _unusable(file, error) from None
    return find_secret(settings, state_dir)


def _unusable(file: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"task-web cannot keep its secret in {file}: {error.strerror}. Set NONET_WEB_SECRET, or "
        "NONET_STATE_DIR to a directory that you may write"
    )
