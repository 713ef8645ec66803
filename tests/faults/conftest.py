"""Fixtures of the fault tests, and the table of verdicts at the end of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from acceptance.site import no_variables
from faults.proxy import Proxy
from faults.rig import ANNOUNCING, Rig
from faults.verdicts import HEADINGS, Verdict, table
from servers import RedisServer

_verdicts: list[tuple[str, Verdict]] = []
MakeRig = Callable[..., Rig]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    failed = {report.nodeid for report in terminalreporter.stats.get("failed", [])}
    if _verdicts:
        terminalreporter.section("faults")
        rows = [verdict.row(failed=node in failed) for node, verdict in _verdicts]
        terminalreporter.write_line(table([HEADINGS, *rows]))


@pytest.fixture(autouse=True, scope="session")
def _own_environment() -> Iterator[None]:
    with no_variables():
        yield


@pytest.fixture
def make_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeRig]:
    """Builds a rig: ``make_rig("--maxmemory", "50mb", proxied=True)``, or on `other` servers."""
    name = request.node.name.removeprefix("test_").replace("_", " ")
    scenario = (
        re.sub(r"\[(.*)\]", r" (\1)", name).replace("(full)", "").replace("full-", "").strip()
    )
    with ExitStack() as stack:

        def make(
            *options: str, proxied: bool = False, other: Any = None, **environment: str
        ) -> Rig:
            server = stack.enter_context(
                other or RedisServer(*ANNOUNCING, *options, environment=environment)
            )
            proxy = stack.enter_context(Proxy(server.port)) if proxied else None
            alone = request.node.get_closest_marker("soak") is not None
            rig = Rig(scenario, tmp_path, server, proxy, alone=alone)
            stack.callback(rig.close)
            stack.callback(lambda: _verdicts.append((request.node.nodeid, rig.report())))
            return rig

        yield make


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()


@pytest.fixture
def proxied(make_rig: MakeRig) -> Rig:
    """A rig whose daemons and clients reach Redis through a proxy."""
    return make_rig(proxied=True)
