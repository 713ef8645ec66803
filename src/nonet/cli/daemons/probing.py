"""Query the health of a daemon on this machine. Imports only sockets, so that it starts fast."""

from __future__ import annotations

import json
import os
import socket
import sys

# Longer than a healthy daemon takes to answer, and shorter than the probe time-out of containers.
_TIMEOUT_SECONDS = 4.0
_FINE, _FAILED, _USAGE = 0, 1, 2


def probe(path: str, port: int | None = None) -> int:
    """Query a probe of the daemon on this machine, and print the answer.

    Args:
        path: ``livez`` or ``readyz``.
        port: by default ``NONET_METRICS_PORT``.

    Returns:
        The exit code: 0 yes, 1 no or no answer, 2 no port.
    """
    given = os.environ.get("NONET_METRICS_PORT", "") if port is None else str(port)
    if not (given.isdecimal() and 0 < int(given) < 65536):
        what = "NONET_METRICS_PORT" if port is None else "--port"
        print(
            f"probe: {what} is {given!r}, but must be the port of a daemon, 1 to 65535: set it, or "
            "use --port",
            file=sys.stderr,
        )
        return _USAGE
    host = _reachable(os.environ.get("NONET_METRICS_HOST", ""))
    try:
        status, body = _get(host, int(given), path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        print(f"{path}: no answer from {host} port {given}: {reason}", file=sys.stderr)
        return _FAILED
    if status == 200:
        print(f"{path}: ok")
        return _FINE
    print(f"{path}: {_reasons(body) or f'answered {status}'}", file=sys.stderr)
    return _FAILED


def _reachable(listening: str) -> str:
    """Return the address at which this machine reaches a daemon that listens on `listening`.

    >>> _reachable(""), _reachable("0.0.0.0"), _reachable("::"), _reachable("10.0.0.7")
    ('127.0.0.1', '127.0.0.1', '::1', '10.0.0.7')
    """
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listening, listening)


def _get(host: str, port: int, path: str) -> tuple[int, str]:
    """Get a path; return status and body.

    Raises:
        OSError: no answer.
        ValueError: the answer is not HTTP.
    """
    with socket.create_connection((host, port), _TIMEOUT_SECONDS) as connection:
        connection.sendall(f"GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdecimal():
        raise ValueError("the answer is not HTTP")
    return int(words[1]), body.strip()


def _reasons(body: str) -> str:
    """Return the reasons in a daemon's answer; the whole answer if it has none."""
    try:
        return "; ".join(json.loads(body)["reasons"]) or body
    except (ValueError, KeyError, TypeError):
        return body
