"""Ports for servers that tests start."""

import atexit
import itertools
import socket
from functools import cache

HOST = "127.0.0.1"

# Linux gives the ports from 32,768 on to outgoing connections. A port from there that is free now
# may belong to a client before a server, which needs a moment to start, listens on it. Browsers
# refuse to connect to 10,080.
_FIRST, _LAST = 10_100, 32_000
# Each process that runs tests has ports of its own, and gives each out once a round: nobody takes
# one between the moment when it is found free and the moment when a server listens on it, or while
# a test keeps its server down.
_PARTS = 64
_EACH = (_LAST - _FIRST) // _PARTS
_places = itertools.count()


@cache
def _part() -> tuple[int, socket.socket]:
    """The number of our part, and the socket that holds it for as long as this process lives."""
    for number in range(_PARTS):
        ours = socket.socket(socket.AF_UNIX)
        try:
            ours.bind(f"\0nonet-test-ports-{number}")
        except OSError:
            ours.close()
        else:
            atexit.register(ours.close)
            return number, ours
    raise RuntimeError(f"{_PARTS} processes run tests of Nonet on this machine: end some")


def free_port() -> int:
    """A port on which nobody listens."""
    return free_ports(1)


def free_ports(number: int) -> int:
    """The first of some ports in a row on which nobody listens."""
    while True:
        places = [next(_places) % _EACH for _ in range(number)]
        first = _FIRST + _part()[0] * _EACH + places[0]
        if places[-1] < places[0]:
            continue  # they are not in a row: a round ends between them
        try:
            for port in range(first, first + number):
                socket.create_server((HOST, port)).close()
        except OSError:
            continue
        return first
