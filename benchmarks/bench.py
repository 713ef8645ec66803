"""Measure Nonet, bare redis-py and, where they are installed, other task systems.

The benchmark starts its own Redis and daemons, and removes them afterwards. Each round measures
every row once, so a machine that slows down slows all rows. docs/benchmarks.md explains the rows.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report
from measures import QUICK, TINY, Bench, Load
from place import Place
from rows import NAMES, ROWS, Row

_HERE = Path(__file__).resolve().parent
_DOCS = _HERE.parent / "docs"
_LOADS = {"full": Load(), "quick": QUICK, "tiny": TINY}
_PACKAGES = ("nonet", "redis", "hiredis", "uvloop", "msgspec", "pydantic")
_STOP_SECONDS = 30


async def measure(
    bench: Bench, chosen: Sequence[Row], rounds: int
) -> tuple[dict[str, list[float]], list[str]]:
    """Measure all rows, round by round; return the values of each figure, and the errors."""
    found: dict[str, list[float]] = {}
    wrong: list[str] = []
    for number in range(rounds):
        for row in chosen:
            if number and row.once:
                continue
            where, start = f"round {number + 1} of {rounds}, {row.name}", time.monotonic()
            try:
                values = await row.measure(bench)
            except Exception as error:  # one failing row must not end the run
                wrong.append(f"{where}: {type(error).__name__}: {error}")
                print(wrong[-1], file=sys.stderr)
                continue
            for key, value in values.items():
                found.setdefault(key, []).append(value)
            said = ", ".join(f"{key} {report.number(value)}" for key, value in values.items())
            print(f"{where}: {said} ({time.monotonic() - start:.1f} s)", file=sys.stderr)
    return found, wrong


def run_once(options: argparse.Namespace) -> dict[str, Any]:
    """Run the chosen rows once, then the peers' harness."""
    load = _LOADS[options.load]
    start = time.time()
    with Place(
        max(load.queued, load.flood, load.drain, load.cancelled, load.waiting) + 50_000
    ) as place:
        chosen = [row for row in ROWS if _is_wanted(row, options)]
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            figures, wrong = runner.run(measure(Bench(place, load), chosen, options.rounds))
        facts = machine(place)
    run = {
        "at": int(start),
        "machine": facts,
        "load": options.load,
        "rounds": options.rounds,
        "figures": figures,
        "wrong": wrong,
        "peers": _peers(options) if options.harness else None,
    }
    return {**run, "seconds": round(time.time() - start)}


def machine(place: Place) -> dict[str, str]:
    """Describe the machine without identifying its owner."""
    facts = {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "server": place.version(),
        "commit": _commit(),
    }
    for package in _PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = "not installed"
    return facts


def _commit() -> str:
    command = ["git", "-C", _HERE, "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _is_wanted(row: Row, options: argparse.Namespace) -> bool:
    if options.only:
        return row.name in options.only
    return options.load == "full" or not row.patient


def _loop_factory() -> Any:
    """Use uvloop where it is installed, as the producers of the peers do."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _peers(options: argparse.Namespace) -> Any:
    """Run the peers' harness and return its results."""
    with tempfile.TemporaryDirectory(prefix="nonet-bench-") as directory:
        out = Path(directory) / "peers.json"
        places = ["--harness", options.harness, "--venvs", options.venvs]
        more = ["--peers", options.peers, "--rounds", str(options.rounds)]
        more = more if options.load == "full" else ["--quick"]
        command = [sys.executable, _HERE / "peers" / "run.py", *places, *more, "--out", out]
        process = subprocess.Popen(command, stdout=sys.stderr, start_new_session=True)
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait(_STOP_SECONDS)
            raise
        if code:
            raise SystemExit(f"the peers' harness ended with {code}")
        return json.loads(out.read_text())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--load", choices=_LOADS, default="full", help="amount of work per value")
    parser.add_argument("--rounds", type=int, help="how many times to measure each row; 3, quick 1")
    parser.add_argument(
        "--runs", type=int, default=1, help="how many times to repeat the whole run"
    )
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=[],
        help=f"only these rows: {','.join(NAMES)}",
    )
    parser.add_argument(
        "--harness", type=Path, help="also run the peers' harness in this directory"
    )
    parser.add_argument(
        "--venvs", type=Path, help="with --harness: directory of the peers' environments"
    )
    parser.add_argument("--peers", default="all", help="with --harness: adapters, comma-separated")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, help="also write JSON to this file")
    parser.add_argument("--read", type=Path, help="measure nothing; read the JSON that --out wrote")
    parser.add_argument(
        "--write", type=Path, nargs="?", const=_DOCS, help="write the tables and the plot to docs/"
    )
    options = parser.parse_args()
    if unknown := set(options.only) - set(NAMES):
        parser.error(f"--only: no row {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if (options.harness is None) != (options.venvs is None):
        parser.error("--harness and --venvs go together")
    options.rounds = options.rounds or (3 if options.load == "full" else 1)
    return options


def main() -> int:
    options = _parse()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell makes its background processes ignore it
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    for name in [name for name in os.environ if name.startswith("NONET_")]:
        del os.environ[name]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.read:
        runs = json.loads(options.read.read_text())["runs"]
    else:
        runs = []
        for _ in range(options.runs):
            runs.append(run_once(options))
            if options.out:  # a run takes long, so keep the results so far
                options.out.write_text(json.dumps({"runs": runs}))
    if options.write:
        report.write(runs, options.write)
    print(json.dumps({"runs": runs}) if options.json else report.markdown(runs))
    return 1 if any(run["wrong"] for run in runs) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
