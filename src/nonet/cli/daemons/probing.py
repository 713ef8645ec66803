"""`probe`: what ``task-run probe`` does, with nothing but sockets, so that it starts fast."""

from __future__ import annotations

import json
import os
import socket
import sys

# Longer than a daemon takes to answer unless it is stuck; less than what containers give a probe.
_TIMEOUT_SECONDS = 4.0
_FINE, _FAILED, _USAGE = 0, 1, 2


def probe(path: str, port: int | None = None) -> int:
    """Ask the daemon that runs here, say what it answers; the exit code.

    Args:
        path: ``livez`` or ``readyz``.
        port: None: that of ``NONET_METRICS_PORT``.

    Returns:
        0 it says yes, 1 it says no or nothing, 2 there is no port to ask.
    """
    told = os.environ.get("NONET_METRICS_PORT", "") if port is None else str(port)
    if not (told.isdecimal() and 0 < int(told) < 65536):
        what = "NONET_METRICS_PORT" if port is None else "--port"
        print(
            f"probe: {what} is {told!r}, and must be the port of a daemon, from 1 to 65535; set "
            "it, or name one with --port",
            file=sys.stderr,
        )
        return _USAGE
    host = _reachable(os.environ.get("NONET_METRICS_HOST", ""))
    try:
        status, body = _get(host, int(told), path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        print(f"{path}: nobody answers on {host} port {told}: {reason}", file=sys.stderr)
        return _FAILED
    if status == 200:
        print(f"{path}: ok")
        return _FINE
    print(f"{path}: {_reasons(body) or f'answered {status}'}", file=sys.stderr)
    return _FAILED


def _reachable(listening: str) -> str:
    """An address on which a daemon that listens there can be asked from the same machine.

    >>> _reachable(""), _reachable("0.0.0.0"), _reachable("::"), _reachable("10.0.0.7")
    ('127.0.0.1', '127.0.0.1', '::1', '10.0.0.7')
    """
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listening, listening)


def _get(host: str, port: int, path: str) -> tuple[int, str]:
    """Status and body of an answer.

    Raises:
        OSError: there is none.
        ValueError: it is not HTTP.
    """
    with socket.create_connection((host, port), _TIMEOUT_SECONDS) as connection:
        connection.sendall(f"GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdecimal():
        raise ValueError("what answers does not speak HTTP")
    return int(words[1]), body.strip()


def _reasons(body: str) -> str:
    """What a daemon says against itself; else all that it says."""
    try:
        return "; ".join(json.loads(body)["reasons"]) or body
    except (ValueError, KeyError, TypeError):
        return body
