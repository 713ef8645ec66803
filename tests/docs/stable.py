"""``task-run`` with what differs from run to run replaced: times, random ids, hosts and processes.

The real command runs. Only the texts of cells are replaced, before a table is laid out, so that
its columns have the same widths on every machine. A script with the arguments of ``task-run``.
"""

from __future__ import annotations

import getpass
import re
import socket
from typing import Any

_HOSTS = "|".join(sorted({re.escape(socket.getfqdn()), re.escape(socket.gethostname())})[::-1])
# In this order. Each result stays as it is when it is replaced again.
_RULES = [
    (r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", r"2026-07-01\g<1>12:00:00Z"),
    (rf"\b{re.escape(getpass.getuser())}@({_HOSTS}) \d+", "ann@host-1 4711"),
    (rf"\b\d+@({_HOSTS})", "4711@host-1"),
    (rf"\b({_HOSTS})\b", "host-1"),
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
    """Run ``task-run``."""
    from nonet.cli import output

    cell, printable = output.cell, output.printable

    def stable_cell(value: Any) -> str:
        return "2.0" if isinstance(value, float) else stable(cell(value))

    output.cell = stable_cell
    output.printable = lambda text: stable(printable(text))
    from nonet.cli.run import main as run

    run()


if __name__ == "__main__":
    main()
