"""Compare Nonet with other task systems: ``make compare``.

Prints the measured rows of docs/benchmarks.md. Each system runs in its own virtual environment
(`.venv-compare/`, made by uv) against its own Redis without persistence, and executes the same
tasks: see `compared/with_NAME.py`. Every round runs all systems in turn, so a machine that slows
down slows all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from place import Daemon, Place

ROOT = Path(__file__).resolve().parents[1]
_PROGRAMS = Path(__file__).resolve().parent / "compared"
_ENVIRONMENTS = ROOT / ".venv-compare"
_DRAINED, _LATE, _LATE_RATE, _KILLED = 10_000, 100, 20.0, 100
_PATIENCE_SECONDS = 120.0
_LINE = struct.Struct(
    "<iiq"
)  # as in compared/common.py, which only the measured programs can import


@dataclass(frozen=True)
class System:
    """One task system.

    Attributes:
        title: its column.
        packages: what is installed; the first is the one whose version is shown.
    """

    title: str
    packages: tuple[str, ...]


COMMON = ("uvloop==0.23.0", "hiredis==3.5.0")
SYSTEMS = {
    "nonet": System("Nonet", (str(ROOT), *COMMON)),
    "docket": System("docket", ("pydocket==0.27.0", *COMMON)),
    "streaq": System("streaQ", ("streaq==7.2.0", *COMMON)),
    "taskiq": System("taskiq", ("taskiq==0.13.0", "taskiq-redis==1.2.4", *COMMON)),
    "saq": System("SAQ", ("saq[redis]==0.26.4", "typing_extensions", *COMMON)),
    "arq": System("arq", ("arq==0.28.0", *COMMON)),
    "celery": System("Celery", ("celery[redis]==5.7.0", "gevent==26.9.0", "hiredis==3.5.0")),
    "dramatiq": System("dramatiq", ("dramatiq[redis]==2.2.1", "hiredis==3.5.0")),
    "huey": System("huey", ("huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0")),
}

SUBMIT = "submit one by one, tasks/s"
DRAIN = "one worker drains a queue, tasks/s"
LATENCY = "from submit to start, median ms"
KILLED = f"{_KILLED} tasks running, `kill -9`: ended after 2 min"

# The rows that `--write` replaces, by page.
PAGES = {
    "docs/benchmarks.md": (SUBMIT, DRAIN, LATENCY, KILLED),
    "README.md": (DRAIN, LATENCY, KILLED),
}


@dataclass
class Found:
    """What was measured of one system: values by row, in order of the rounds."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, row: str, value: float) -> None:
        """Append one value."""
        self.values.setdefault(row, []).append(value)


def main() -> None:
    """Measure what the options select."""
    options = _options()
    if options.only and options.write:
        sys.exit("--write needs all systems: leave --only out")
    names = options.only.split(",") if options.only else list(SYSTEMS)
    if unknown := set(names) - set(SYSTEMS):
        sys.exit(f"unknown system: {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    for name in names:
        install(name, SYSTEMS[name])
    found = {name: Found() for name in names}
    complete = asyncio.run(_measure(found, options.rounds))
    lines = _lines(found)
    print(_about(names))
    print("\n".join(lines))
    if options.write and complete:
        for page, rows in PAGES.items():
            shown = [line for line in lines if line.split("|")[1].strip() in rows]
            path = ROOT / page
            path.write_text(with_rows(path.read_text(), shown, options.rounds))
    sys.exit(0 if complete else 1)


def with_rows(page: str, lines: list[str], rounds: int) -> str:
    """The page with its measured rows replaced, and the date and number of rounds above them.

    Raises:
        ValueError: the page lacks one of the rows, or the sentence that dates them.
    """
    for line in lines:
        label = line.split("|")[1]
        page, changed = re.subn(
            rf"^\|{re.escape(label)}\|.*$", lambda _, line=line: line, page, flags=re.M
        )
        if not changed:
            raise ValueError(f"the page has no row {label.strip()!r}")
    dated = f"measured on {datetime.date.today()}, {os.cpu_count()} cores, rounds: {rounds}"
    page, changed = re.subn(r"measured on \S+, \d+ cores, rounds: \d+", dated, page)
    if not changed:
        raise ValueError("the page does not say 'measured on DATE, N cores, rounds: N'")
    return page


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how many times to measure each row")
    parser.add_argument("--only", default="", help=f"only these systems: {','.join(SYSTEMS)}")
    parser.add_argument("--write", action="store_true", help="write the rows to the pages")
    return parser.parse_args()


def install(name: str, system: System) -> None:
    """Create or update the environment of a system."""
    place = _ENVIRONMENTS / name
    uv = [sys.executable, "-m", "uv"]
    if find_spec("uv") is None:
        sys.exit("uv is missing: run `make compare`, which installs it")
    if not (place / "bin" / "python").exists():
        subprocess.run([*uv, "venv", "--quiet", str(place)], check=True)
    packages = ["--reinstall-package", "nonet", *system.packages]
    python = str(place / "bin" / "python")
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, *packages], check=True)


async def _measure(found: dict[str, Found], rounds: int) -> bool:
    """Measure all systems into `found`; return whether every measurement succeeded."""
    done = []
    for number in range(rounds):
        for name, kept in found.items():
            print(f"round {number + 1}: {SYSTEMS[name].title}", file=sys.stderr)
            done += [await _try(_drain(name, kept)), await _try(_latency(name, kept))]
    # Run these systems concurrently: they mostly wait.
    print("kill -9 of a worker", file=sys.stderr)
    done += await asyncio.gather(*(_try(_kill(name, kept)) for name, kept in found.items()))
    return all(done)


async def _try(measurement: Coroutine[Any, Any, None]) -> bool:
    """Run one measurement. If it fails, name the system and leave its cell empty."""
    try:
        await measurement
    except RuntimeError as error:
        print(f"failed, so nothing is written: {error}", file=sys.stderr)
        return False
    return True


async def _drain(name: str, kept: Found) -> None:
    with Site(name) as site:
        submitted = await site.submit("nothing", _DRAINED)
        kept.add(SUBMIT, _DRAINED / submitted["seconds"])
        with site.worker():
            began = await site.until(0, _DRAINED)
        kept.add(DRAIN, (_DRAINED - 1) / (max(began) - min(began)) * 1e9)


async def _latency(name: str, kept: Found) -> None:
    with Site(name) as site, site.worker():
        await site.submit("nothing", 1)  # a worker that has run a task is ready
        await site.until(0, 1)
        site.forget()
        submitted = await site.submit("nothing", _LATE, rate=_LATE_RATE)
        began = dict(zip(*await site.numbered(0, _LATE), strict=True))
        waits = [began[number] - sent for number, sent in enumerate(submitted["sent"])]
        kept.add(LATENCY, statistics.median(waits) / 1e6)


async def _kill(name: str, kept: Found) -> None:
    """Kill a worker whose tasks have all started, start another, and count the tasks that end."""
    with Site(name) as site:
        await site.submit("pause", _KILLED)
        with site.worker() as worker:
            await site.until(0, _KILLED)
            worker.kill()
        with site.worker(), suppress(RuntimeError):
            await site.until(1, _KILLED)
        kept.add(KILLED, len(site.seen(1)))


class _Worker(Daemon):
    """A worker and every process that it has started."""

    def kill(self) -> None:
        """Kill all processes at once, as the loss of a machine would."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Kill the processes that remain."""
        if self._process.poll() is None:
            self.kill()


class Site:
    """A Redis, a journal, and the programs of one system."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._home = tempfile.TemporaryDirectory(prefix="nonet-compare-")
        self._place = Place(1)
        self._journal = Path(self._home.name) / "journal"
        self._logs: list[Path] = []

    def __enter__(self) -> Site:
        self._place.__enter__()
        if self._name.startswith("nonet"):
            self._place.fresh()
        self.forget()
        return self

    def __exit__(self, *_: object) -> None:
        self._place.__exit__()
        self._home.cleanup()

    def forget(self) -> None:
        """Empty the journal."""
        self._journal.write_bytes(b"")

    async def submit(self, kind: str, count: int, rate: float = 0) -> dict[str, Any]:
        """Let a program submit `count` tasks one by one; return its output."""
        program = await asyncio.create_subprocess_exec(
            *self._command("submit", kind, str(count), str(rate)),
            env=self._environment(),
            cwd=_PROGRAMS,
            stdout=subprocess.PIPE,
        )
        said, _ = await program.communicate()
        if program.returncode:
            raise RuntimeError(f"{self._name} could not submit: exit code {program.returncode}")
        said_json: dict[str, Any] = json.loads(said)
        return said_json

    @contextmanager
    def worker(self) -> Iterator[_Worker]:
        """Run a worker while the block runs, then kill it."""
        log = Path(self._home.name) / f"worker-{len(self._logs)}.log"
        self._logs.append(log)
        worker = _Worker(self._command("worker"), self._environment(), log, cwd=_PROGRAMS)
        try:
            yield worker
        finally:
            worker.stop()

    def seen(self, event: int) -> dict[int, int]:
        """Return, by task number, when each task first began (0) or ended (1), in nanoseconds."""
        first: dict[int, int] = {}
        for number, what, when in _LINE.iter_unpack(self._journal.read_bytes()):
            if what == event:
                first.setdefault(number, when)
        return first

    async def numbered(self, event: int, count: int) -> tuple[list[int], list[int]]:
        """Wait for this many tasks; return their numbers and times."""
        await self.until(event, count)
        seen = self.seen(event)
        return list(seen), list(seen.values())

    async def until(self, event: int, count: int) -> list[int]:
        """Wait for this many tasks; return their times.

        Raises:
            RuntimeError: they did not arrive within two minutes.
        """
        try:
            await self._place.until(lambda: self._has(event, count), _PATIENCE_SECONDS)
        except RuntimeError:
            logs = [log.read_text()[-2000:] for log in self._logs]
            done = f"{self._name}: {len(self.seen(event))} of {count}"
            raise RuntimeError("\n".join([done, *logs])) from None
        return list(self.seen(event).values())

    def _has(self, event: int, count: int) -> bool:
        return self._journal.stat().st_size >= count * _LINE.size and len(self.seen(event)) >= count

    def _command(self, *arguments: str) -> list[str]:
        python = _ENVIRONMENTS / self._name / "bin" / "python"
        return [str(python), f"with_{self._name}.py", *arguments]

    def _environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if "PYTHON" not in name},
            "COMPARE_REDIS": self._place.url,
            "COMPARE_JOURNAL": str(self._journal),
            "NONET_REDIS_URL": self._place.url,
            "NONET_STATE_DIR": self._home.name,
            "NONET_RESULT_TTL": "0",
            "PYTHONPATH": str(_PROGRAMS),
        }


def _about(names: list[str]) -> str:
    versions = ", ".join(SYSTEMS[name].packages[0] for name in names if name != "nonet")
    return f"Python {platform.python_version()}, {os.cpu_count()} cores; {versions}"


def _lines(found: dict[str, Found]) -> list[str]:
    lines = []
    for row in (SUBMIT, DRAIN, LATENCY, KILLED):
        digits = 1 if row == LATENCY else 0
        cells = [_cell(kept.values.get(row, []), digits) for kept in found.values()]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return lines


def _cell(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):,.{digits}f}" if values else "failed"


if __name__ == "__main__":
    main()
