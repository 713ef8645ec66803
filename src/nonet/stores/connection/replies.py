"""What it means that Redis refuses: one of our errors, with one line for whoever must act."""

from __future__ import annotations

import re

from redis import exceptions

from nonet.base.errors import (
    BrokerFullError,
    ConfigurationError,
    NonetError,
    ServerUnreachableError,
)

# All that a server or the way to it can answer; other errors of redis-py are mistakes of ours.
REFUSALS = (
    exceptions.ResponseError,
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.InvalidResponse,
    OSError,
)

# Replies of a server that will work again by itself, after a failover for example.
_LATER = {
    *("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK"),
    *("BUSY", "MISCONF", "NOREPLICAS", "UNBLOCKED"),
}


def translated(
    error: Exception, address: str, script: str = "", *, is_found: bool = False
) -> NonetError:
    """The error of ours that says what Redis answered.

    Args:
        error: one of `REFUSALS`.
        address: URL of the server, without a password.
        script: the one that was called, if any.
        is_found: the server is looked for again with the next call.

    Returns:
        `ServerUnreachableError` for what passes by itself, `ConfigurationError` for what somebody
        must change first, `NonetError` for a script that failed.

    >>> print(translated(exceptions.ResponseError("READONLY no writes"), "redis://db.example/0"))
    Redis at redis://db.example/0 cannot be used now: READONLY no writes
    """
    for cause in error.args[:1]:
        if isinstance(cause, NonetError):  # redis-py wraps what fails while it connects
            return cause
    code, text = _reply(error)
    at = f"Redis at {address}"
    if code in _LATER:
        why = "its keys are being moved to another node: " if code in ("ASK", "TRYAGAIN") else ""
        return ServerUnreachableError(f"{at} cannot be used now: {why}{code} {text}")
    if code == "OOM":
        return BrokerFullError(
            f"{at} is out of memory: nothing was submitted. Try again when tasks have ended, or "
            "raise maxmemory"
        )
    if _is_about_login(error, text):
        return ConfigurationError(
            f"{at} does not let us in ({text}): check the user and password in NONET_REDIS_URL"
        )
    if code == "NOPERM" or "The user executing the script can't" in text:
        return ConfigurationError(
            f"{at} forbids what Nonet needs{_in(script)} ({text}): allow it to the user of "
            "NONET_REDIS_URL (ACL SETUSER), or name another one"
        )
    if re.search(r"DB index|^SELECT is not allowed", text):
        return ConfigurationError(
            f"{at} does not have this database ({text}): change the number that NONET_REDIS_URL "
            "ends with"
        )
    if code == "MOVED" and is_found:
        return ServerUnreachableError(f"{at} has another node for this namespace now: {text}")
    if code == "MOVED":
        return ConfigurationError(
            f"{at} is a node of a cluster ({code} {text}): write redis+cluster:// in "
            "NONET_REDIS_URL, or rediss+cluster:// with TLS"
        )
    if isinstance(error, exceptions.InvalidResponse):
        return ConfigurationError(f"{at} is no Redis server ({text}): check NONET_REDIS_URL")
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return ConfigurationError(
            f"{at} has a certificate that is not trusted ({text}): check ssl_ca_certs in "
            "NONET_REDIS_URL, and that the certificate has the name by which it is reached"
        )
    if not isinstance(error, exceptions.ResponseError):
        problem = "cannot be used now" if code else "does not answer"
        return ServerUnreachableError(f"{at} {problem}: {text}{_unset(address)}")
    said = text if code == "ERR" else f"{code} {text}"
    return NonetError(f"{at} failed{_in(script)}: {said}")


def _unset(address: str) -> str:
    """That nobody has named this server, if nobody has."""
    from nonet.config.settings import is_default_redis  # here, as it reads files

    if not is_default_redis(address):
        return ""
    why = "NONET_REDIS_URL is not set: this is its default; embedded:// starts one for development"
    return f" ({why})"


def _in(script: str) -> str:
    return f" in the script {script!r}" if script else ""


def _reply(error: Exception) -> tuple[str, str]:
    """Code and text of a reply, in one line; the code is empty if Redis did not answer."""
    text = str(error).split("\n")[0].strip() or type(error).__name__
    code = getattr(error, "status_code", None)  # redis-py cut it off, if it knows the code
    if code is not None:
        return str(code), text
    if not isinstance(error, exceptions.ResponseError):
        return "", text
    found = re.match(r"([A-Z]{2,}) (.*)", text)
    return (found[1], found[2]) if found else ("ERR", text)


def _is_about_login(error: Exception, text: str) -> bool:
    kinds = (exceptions.AuthenticationError, exceptions.AuthenticationWrongNumberOfArgsError)
    # The second is what Redis says to who sends a long command before logging in.
    return isinstance(error, kinds) or text.startswith("Protocol error: unauthenticated")
