"""Entry point of the fork server, ``python -m nonet.worker.child_process FD``, started by a worker.

Without an argument: of a child that a fork server has started.
"""

from __future__ import annotations

import socket
import sys

from nonet.worker.child_process.child import run_started
from nonet.worker.child_process.forkserver import ForkServer

if __name__ == "__main__":
    if sys.argv[1:]:
        ForkServer(socket.socket(fileno=int(sys.argv[1]))).run()
    else:
        run_started()
