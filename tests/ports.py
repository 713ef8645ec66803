"""Ports for servers that tests start."""

import itertools
import os
import random
import socket

HOST = "127.0.0.1"

# Linux gives the ports from 32,768 on to outgoing connections. A port from there that is free now
# may belong to a client before a server, which needs a moment to start, listens on it. Browsers
# refuse to connect to 10,080.
_FIRST, _LAST = 10_100, 32_000
# Each process of a run has ports of its own, and gives each out once a round: none is taken
# between the moment when it is found free and the moment when a server listens on it.
_WORKERS = 32
_EACH = (_LAST - _FIRST) // _WORKERS
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _WORKERS
# Another run on the same machine begins at another of them.
_places = itertools.count(random.randrange(_EACH))


def free_port() -> int:
    """A port on which nobody listens."""
    return free_ports(1)


def free_ports(number: int) -> int:
    """The first of some ports in a row on which nobody listens."""
    while True:
        places = [next(_places) % _EACH for _ in range(number)]
        first = _FIRST + _worker * _EACH + places[0]
        if places[-1] < places[0]:
            continue  # they are not in a row: a round ends between them
        try:
            for port in range(first, first + number):
                socket.create_server((HOST, port)).close()
        except OSError:
            continue
        return first
