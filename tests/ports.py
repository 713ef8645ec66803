"""Ports for servers that tests start."""

import random
import socket

HOST = "127.0.0.1"

# Linux gives the ports from 32,768 on to outgoing connections. A port from there that is free now
# may belong to a client before a server, which needs a moment to start, listens on it.
_PORTS = range(10_000, 32_000)


def free_port() -> int:
    """A port on which nobody listens."""
    return free_ports(1)


def free_ports(number: int) -> int:
    """The first of some ports in a row on which nobody listens."""
    while True:
        first = random.choice(_PORTS)  # by chance, as tests run side by side
        try:
            for port in range(first, first + number):
                socket.create_server((HOST, port)).close()
        except OSError:
            continue
        return first
