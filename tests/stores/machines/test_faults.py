"""The list of deliberate faults follows the scripts."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from servers import RedisServer
from stores.machines.faults import ALL
from stores.machines.site import Site

FOLDER = Path(str(files("nonet.stores") / "scripts"))


def test_each_marker_in_a_script_has_its_fault_and_each_fault_its_marker() -> None:
    """The comments ``-- fault: NAME`` in the scripts are the markers of the faults."""
    found = [
        name
        for path in FOLDER.rglob("*.lua")
        for name in re.findall('(?<!")-- fault: (.*)', path.read_text())
    ]
    assert set(found) == {fault.marker for fault in ALL}
    assert len({str(fault) for fault in ALL}) == len(ALL)


def test_each_fault_compiles(redis_server: RedisServer) -> None:
    """Redis compiles the scripts with all faults, and with the other one of two at a marker."""
    names = [path.stem for path in FOLDER.glob("*.lua")]
    with redis_server.client() as client:
        for faults in (ALL, ALL[::-1]):
            Site(client, faults, names)
