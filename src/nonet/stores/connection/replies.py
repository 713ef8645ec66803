"""Translates errors of Redis into errors of Nonet, with one line that says what to do."""

from __future__ import annotations

import re

from redis import exceptions

from nonet.base.errors import (
    BrokerFullError,
    ConfigurationError,
    NonetError,
    ServerUnreachableError,
)
from nonet.config.settings import is_default_redis

# Errors of a server, or of the way to it. Other errors of redis-py are bugs of Nonet.
REFUSALS = (
    exceptions.ResponseError,
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.InvalidResponse,
    OSError,
)

# Replies to a command that fails each time. Any other reply means that it was not executed.
_FAILED = re.compile(r"WRONGTYPE |NONET |(?!.*Script killed).*user_script")
_LOGIN = (exceptions.AuthenticationError, exceptions.AuthenticationWrongNumberOfArgsError)

# Replies of a server that is not, or not yet, the master of the namespace. Another server behind
# the same URL may be. UNBLOCKED comes from a master that has become a replica, NOREPLICAS from a
# master that has lost its replicas.
_ELSEWHERE = {
    *("READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "NOREPLICAS", "UNBLOCKED"),
    *("MOVED", "ASK", "TRYAGAIN"),
}
# Replies of a server that will recover by itself.
_LATER = (_ELSEWHERE - {"MOVED"}) | {"BUSY", "MISCONF"}
_OCCUPIED = (
    "is busy (BUSY): a script, most likely of another program, has run for seconds. Type "
    "redis-cli {}; if the script has written, Redis refuses that: wait, or fail over"
)
# A proxy or a script error may prefix them with words.
_WORDED = re.compile(rf"(?:.*: )?-?({'|'.join(sorted(_ELSEWHERE | _LATER))}) (.*)")


def code_of(error: BaseException) -> str:
    """Return the code of an error reply; empty for other errors.

    >>> code_of(exceptions.ResponseError("ERR READONLY You can't write against a replica"))
    'READONLY'
    """
    return _reply(error)[0]


def is_elsewhere(error: BaseException) -> bool:
    """Whether an error reply means that another server may be the master of the namespace."""
    return isinstance(error, exceptions.RedisError) and code_of(error) in _ELSEWHERE


def translated(
    error: Exception, address: str, script: str = "", *, is_found: bool = False
) -> NonetError:
    """Turn an error reply of Redis into an error of Nonet.

    Args:
        error: one of `REFUSALS`.
        address: URL of the server, without a password.
        script: name of the script that was called, if any.
        is_found: the next call finds the server anew.

    Returns:
        `ServerUnreachableError` for a problem that passes by itself, and for an unknown reply, as
        proxies and providers send them; `ConfigurationError` for a problem that an
        administrator must solve; `NonetError` for a script that failed.

    >>> print(translated(exceptions.ResponseError("READONLY no writes"), "redis://db.example/0"))
    Redis at redis://db.example/0 cannot be used now: READONLY no writes
    """
    for cause in error.args[:1]:
        if isinstance(cause, NonetError):  # redis-py wraps errors of its connection
            return cause
    code, text = _reply(error)
    at = f"Redis at {address}"
    if code == "BUSY" and (kill := re.search("(SCRIPT|FUNCTION) KILL", text)):
        way_out = _OCCUPIED.format(kill[0])
        occupied = ServerUnreachableError(f"{at} {way_out}")
        occupied.way_out = way_out
        return occupied
    if code in _LATER:
        why = "its keys are being moved to another node: " if code in ("ASK", "TRYAGAIN") else ""
        return ServerUnreachableError(f"{at} cannot be used now: {why}{code} {text}")
    if code == "MOVED" and is_found:
        return ServerUnreachableError(f"{at} has another node for this namespace now: {text}")
    if code == "OOM":
        return BrokerFullError(
            f"{at} is out of memory: nothing was submitted. Try again when tasks have ended, or "
            "raise maxmemory"
        )
    if problem := _misconfigured(error, code, text, script):
        return ConfigurationError(f"{at} {problem}")
    if not isinstance(error, exceptions.ResponseError):
        problem = "cannot be used now" if code else "does not answer"
        return ServerUnreachableError(f"{at} {problem}: {text}{_unset(address)}")
    reply = text if code == "ERR" else f"{code} {text}"
    if not _FAILED.match(reply):
        return ServerUnreachableError(f"{at} cannot be used now{_in(script)}: {reply}")
    if "WRONGTYPE" in reply:
        reply += ". Run 'task-run doctor': it names the key, and how to remove it"
    return NonetError(f"{at} failed{_in(script)}: {reply}")


def _misconfigured(error: Exception, code: str, text: str, script: str) -> str:
    """Say what an administrator must change, and how; empty if no change helps."""
    if isinstance(error, _LOGIN):
        return f"refuses the login ({text}): check the user and password in NONET_REDIS_URL"
    if code == "NOPERM" or "The user executing the script can't" in text:
        return (
            f"forbids what Nonet needs{_in(script)} ({text}): allow it to the user of "
            "NONET_REDIS_URL (ACL SETUSER), or use another user"
        )
    if text.startswith("unknown command"):
        return (
            f"lacks what Nonet needs{_in(script)} ({text}): use Redis 7.0 or later that renames no "
            "command"
        )
    if re.search(r"DB index|^SELECT is not allowed", text):
        return (
            f"does not have this database ({text}): change the number at the end of NONET_REDIS_URL"
        )
    if code == "MOVED":
        return (
            f"is a node of a cluster ({code} {text}): write redis+cluster:// in NONET_REDIS_URL, "
            "or rediss+cluster:// with TLS"
        )
    if isinstance(error, exceptions.InvalidResponse):
        return f"is not a Redis server ({text}): check NONET_REDIS_URL"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            f"has a certificate that is not trusted ({text}): check ssl_ca_certs in "
            "NONET_REDIS_URL, and that the certificate contains the host name of the URL"
        )
    return ""


def _unset(address: str) -> str:
    """A note that NONET_REDIS_URL is not set, if it is not."""
    if not is_default_redis(address):
        return ""
    why = "NONET_REDIS_URL is not set: this is its default; embedded:// starts one for development"
    return f" ({why})"


def _in(script: str) -> str:
    return f" in the script {script!r}" if script else ""


def _reply(error: BaseException) -> tuple[str, str]:
    """Code and first line of a reply; the code is empty if Redis did not answer."""
    text = str(error).split("\n")[0].strip() or type(error).__name__
    code = getattr(error, "status_code", None)  # redis-py removes codes that it knows
    if code is None and isinstance(error, exceptions.ResponseError):
        found = re.match(r"([A-Z]{2,}) (.*)", text)
        code, text = (found[1], found[2]) if found else ("ERR", text)
    if code == "ERR" and (worded := _WORDED.match(text)):
        code, text = worded[1], worded[2]
    return str(code or ""), text
