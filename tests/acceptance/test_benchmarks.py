"""`benchmarks/`: that it measures, reports and cleans up; not how fast anything is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest
from daemons import lives
from waits import wait_until

_BENCH = Path(__file__).resolve().parents[2] / "benchmarks" / "bench.py"
_SECONDS = 120
_PAGE = "before\n<!-- measured -->\nold\n<!-- end of measured -->\nafter\n"


def bench(*options: str | Path) -> str:
    """What the benchmark prints."""
    command = [sys.executable, _BENCH, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def running() -> Iterator[subprocess.Popen[bytes]]:
    """A benchmark in the middle of a measurement."""
    bench = [sys.executable, _BENCH, "--load", "quick", "--only", "latency"]
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *bench]  # as in a shell's background
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_SECONDS)


def test_a_tiny_run_finds_a_value_for_every_figure_of_its_rows() -> None:
    """Submissions, drains and a start are measured, and no task is lost or runs twice."""
    (run,) = json.loads(bench("--load", "tiny", "--only", "submit,drain,start", "--json"))["runs"]
    assert run["wrong"] == []
    assert {"sequential", "bulk", "drain", "drain_cpu", "results", "mutex"} <= set(run["figures"])
    assert all(run["figures"][key][0] > 0 for key in ("sequential", "bulk", "drain", "mutex"))


def test_a_stopped_run_leaves_no_process(running: subprocess.Popen[bytes]) -> None:
    """Its server and its worker end with it."""
    benchmark = psutil.Process(running.pid)
    wait_until(lambda: len(benchmark.children()) >= 2, "a server and a worker run")
    started = [child.pid for child in benchmark.children()]
    running.send_signal(signal.SIGINT)
    assert running.wait(_SECONDS) == 130
    assert not any(map(lives, started))


def _sample(value: float) -> dict[str, Any]:
    return {"rate": value, "n": 500, "worker_cpu_us": 1e6 / value, "drn": {"cpu_us": 3.0}}


def test_tables_and_plot_go_between_the_markers_of_the_page(tmp_path: Path) -> None:
    """Our rows of all runs, and those of the peers with the ratio to the best of them."""
    rates = {"raw_async": 100_000, "ours": 30_000, "peer_slow": 3000, "peer_slower": 2000}
    peers = {
        "meta": {name: {"versions": {"redis": "8"}, "settings": "so"} for name in rates},
        "cells": {name: {"b_drain": [_sample(rate)]} for name, rate in rates.items()},
    }
    run = {
        "machine": {"cores": "2"},
        "load": "full",
        "rounds": 2,
        "wrong": [],
        "figures": {"raw_drain": [100, 300], "drain": [50, 75]},
        "peers": peers,
    }
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"runs": [run, run]}))
    (tmp_path / "benchmarks.md").write_text(_PAGE)
    bench("--read", results, "--write", tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert page.startswith("before\n") and page.endswith("\nafter\n") and "old" not in page
    assert "| row | median (range) |" in page
    assert "62.5 /s (50.0–75.0)" in page  # noqa: RUF001
    assert "| 0.38 × raw |" in page  # noqa: RUF001  # of 0.5 and 0.25
    assert "| drain, no results | 30,000 /s | 10.00 slow |" in page
    picture = ElementTree.parse(tmp_path / "benchmarks.svg").getroot()
    assert "10.00 × slow" in "".join(picture.itertext())  # noqa: RUF001
    assert json.loads((tmp_path / "benchmarks.json").read_text())["runs"] == [run, run]
