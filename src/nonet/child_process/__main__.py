"""Entry point of the fork server: ``python -m nonet.child_process FD``, started by a worker."""

from __future__ import annotations

import socket
import sys

from nonet.child_process.forkserver import ForkServer

if __name__ == "__main__":
    ForkServer(socket.socket(fileno=int(sys.argv[1]))).run()
