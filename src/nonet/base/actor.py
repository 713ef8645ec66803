"""Who does something: `who` names the user and process for the event stream and the audit."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

_actor: ContextVar[str] = ContextVar("actor", default="")


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Let `who` return `name` in this block: what a daemon does on behalf of a user."""
    token = _actor.set(name)
    try:
        yield
    finally:
        _actor.reset(token)


def who() -> str:
    """The actor for the event stream: ``user@host pid``, or the name given to `acting_as`."""
    if name := _actor.get():
        return name
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user id has no name
        user = str(os.getuid())
    return f"{user}@{_host()} {os.getpid()}"


def process_name(pid: int | None = None) -> str:
    """``pid@host``, the name of a process of this machine for people; by default of this one."""
    return f"{pid or os.getpid()}@{_host()}"


@cache
def _host() -> str:
    name = socket.getfqdn()  # may ask DNS
    # /etc/hosts may list the name of the machine as another name of localhost.
    return (
        socket.gethostname() if name.partition(".")[0] in ("localhost", "ip6-localhost") else name
    )
