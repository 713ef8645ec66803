"""Run the peers' harness with Nonet in it: Nonet, its peers and a raw redis-py loop in one run.

    python benchmarks/peers/run.py --harness DIR --venvs DIR [options of the harness]

The harness is copied to a temporary directory, so the original stays unchanged. This checkout is
installed into a virtual environment ``ours`` beside the environments of the peers; it is created if
missing. Peers without an environment are left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_CHECKOUT = _HERE.parent.parent
_STOP_SECONDS = 20


def make_environment(place: Path) -> None:
    """Create the virtual environment of the adapter, with uvloop and the present checkout."""
    if not (place / "bin" / "python").exists():
        print(f"making {place}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
    pip = [place / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "uvloop", _CHECKOUT], check=True)
    # Reinstall always: the version does not change with each edit. Install a copy, so that edits do
    # not change a run.
    subprocess.run([*pip, "--no-deps", "--force-reinstall", _CHECKOUT], check=True)


def run(harness: Path, venvs: Path, options: list[str]) -> int:
    """Run the harness, and return its exit code."""
    make_environment(venvs / "ours")
    with tempfile.TemporaryDirectory(prefix="nonet-peers-") as directory:
        place = Path(directory) / "harness"
        shutil.copytree(harness, place, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(_HERE / "nonet_adapter.py", place / "adapters" / "ours.py")
        command = [venvs / "raw" / "bin" / "python", place / "bench.py", "--venvs", venvs]
        command += ["--port", str(_free_port()), *options]  # a port in the options overrides it
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
        ):  # SIGINT: a shell makes its background processes ignore it
            signal.signal(number, signal.default_int_handler)
        process = subprocess.Popen(command, env=_environment(), start_new_session=True)
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)  # the harness stops its own processes
            process.wait(_STOP_SECONDS)
            return 130


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _environment() -> dict[str, str]:
    """Return the environment without variables that change a measured process."""
    unwanted = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH"}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in unwanted and not name.startswith("NONET_")
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--harness", type=Path, required=True, help="directory of the harness")
    parser.add_argument(
        "--venvs", type=Path, required=True, help="directory with one environment per peer, and raw"
    )
    options, others = parser.parse_known_args()
    return run(options.harness.resolve(), options.venvs.resolve(), others)


if __name__ == "__main__":
    sys.exit(main())
