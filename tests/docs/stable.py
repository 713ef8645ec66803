"""Run ``task-run`` commands, and replace what differs from run to run: times, ids, hosts.

The real commands run. The texts of cells are replaced before a table is laid out, so that its
columns have the same widths on every machine. A script: it reads a JSON list of commands, forks for
each, and prints a JSON list of what they print.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import nonet

_HOSTS = "|".join(sorted({re.escape(socket.getfqdn()), re.escape(socket.gethostname())})[::-1])
_PACKAGE = re.escape(str(Path(nonet.__file__).parent))
# In this order. Each result stays as it is when it is replaced again.
_RULES = [
    (r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", r"2026-07-01\g<1>12:00:00Z"),
    (rf"\b{re.escape(getpass.getuser())}@({_HOSTS}) \d+", "ann@host-1 4711"),
    (rf"\b\d+@({_HOSTS})", "4711@host-1"),
    (rf"\b({_HOSTS})\b", "host-1"),
    # Frames of Nonet itself are left out: a change of its source must not change the page. Lines
    # are replaced one by one first, and the frame as a whole when all are printed.
    (rf'"{_PACKAGE}/[^"\n]*", line \d+', r'"/nonet.py", line 7'),
    (r'(?m)^ +File "/nonet\.py", .*\n(?: {4}.*\n)*', ""),
    (r'"/[^"\n]*/(\w+/\w+\.py)", line \d+', r'"/app/\1", line 7'),
    (r"\bterm \d+", "term 1767225600000000"),
    (r"\b(small|medium|large)-[0-9a-f]{12}\b", r"\1-15fa4bfb283c"),
    (r"\b[a-km-np-z2-9]{20}\b", "k3fmx8t2nq7wadh5vz9c"),
    (r"\b\d+(\.\d+)? (KiB|MiB|GiB)", "64 MiB"),
    (r"\b(consumers|idle workers|stream entries) \d+", r"\1 2"),
    (r"\b\d+ ms\b", "1 ms"),
    (r"\b(\d+ h )?(\d+ min )?\d+(\.\d+)? s\b|\b(\d+ h )?\d+ min\b", "2 s"),
    (r"\b0\.\d+\.\d+(\.dev\d+)?\b", "1.0.0"),
]


def stable(text: str) -> str:
    """Return a text without what differs from run to run."""
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    return text


def main() -> None:
    """Run the commands of stdin."""
    from nonet.cli import output, run

    cell, printable = output.cell, output.printable

    def stable_cell(value: Any) -> str:
        return "2.0" if isinstance(value, float) else stable(cell(value))

    output.cell = stable_cell
    output.printable = lambda text: stable(printable(text))
    printed = []
    for words in json.load(sys.stdin):
        with TemporaryFile() as file:
            if (child := os.fork()) == 0:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                sys.argv = words
                run.main()
                sys.exit()
            os.waitpid(child, 0)
            file.seek(0)
            printed.append(stable(file.read().decode()))
    print(json.dumps(printed))


if __name__ == "__main__":
    main()
