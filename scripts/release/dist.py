"""Build the files to publish into dist/: ``make dist``, or
``python scripts/release/dist.py [--out DIR] [--working-tree] [REVISION]``.

The files are a sdist, the wheel built from it, nonet-VERSION.cdx.json (SBOM: all packages that are
installed with all extras) and SHA256SUMS. They contain only committed files of a revision (default
HEAD). Build tools come from uv.lock, and timestamps from the commit, so builds are reproducible.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from audit import find_uv

ROOT = Path(__file__).parents[2]


def git(*words: str, root: Path = ROOT) -> str:
    """Run git and return its output; if it fails, exit with its error in one line."""
    command = ["git", "-C", str(root), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())
        raise SystemExit(f"git {words[0]} failed: {reason or f'exit code {done.returncode}'}")
    return done.stdout.strip()


def export(revision: str, to: Path, root: Path = ROOT) -> None:
    """Extract the files of a revision."""
    archive = to.with_suffix(".tar")
    git("archive", "--format=tar", "-o", str(archive), revision, root=root)
    to.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-xf", archive, "-C", to], check=True)


def export_working_tree(to: Path, root: Path = ROOT) -> None:
    """Copy the files of the working tree, except ignored ones."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", root=root)
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():  # a deleted file is still listed
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, to / name)


def build(source: Path, out: Path, at: int) -> None:
    """Build all files to publish from a source tree.

    Args:
        out: created if missing, emptied if not.
        at: the timestamp of the artefacts, in Unix seconds.
    """
    uv = find_uv()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(at), "UV_PYTHON": sys.executable}
    environment |= index()

    def run(*words: str) -> str:
        done = subprocess.run(
            [uv, *words], cwd=source, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"uv {words[0]} failed:\n{done.stderr}")
        return done.stdout

    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    locked = ["export", "-q", "--frozen", "--no-emit-project"]
    tools = source.with_name("tools.txt")
    tools.write_text(run(*locked, "--only-group", "build"))
    run("build", "--out-dir", str(out), "--build-constraints", str(tools), "--require-hashes")
    (out / ".gitignore").unlink(missing_ok=True)
    (wheel,) = out.glob("*.whl")
    version = wheel.name.split("-")[1]
    bom = json.loads(run(*locked, "--no-dev", "--all-extras", "--format", "cyclonedx1.5"))
    name = f"nonet-{version}.cdx.json"
    (out / name).write_text(json.dumps(_reproducible(bom, at), indent=2) + "\n")
    sums = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(out.iterdir())
    ]
    (out / "SHA256SUMS").write_text("".join(sums))


def _reproducible(bom: dict[str, Any], at: int) -> dict[str, Any]:
    """Replace the random serial number and the time of the build by reproducible values."""
    bom["metadata"]["timestamp"] = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    del bom["serialNumber"]
    bom["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(bom))}"
    return bom


def index() -> dict[str, str]:
    """Return pip's package index for uv, which otherwise uses the public one."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    found = subprocess.run(command, capture_output=True, text=True)
    return {"UV_DEFAULT_INDEX": found.stdout.strip()} if found.stdout.strip() else {}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("revision", nargs="?", default="HEAD")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--working-tree", action="store_true", help="build the working tree as it is, for a trial"
    )
    options = parser.parse_args()
    at = int(git("log", "-1", "--format=%ct", options.revision))
    with tempfile.TemporaryDirectory() as home:
        source = Path(home, "nonet")
        source.mkdir()
        if options.working_tree:
            export_working_tree(source)
        else:
            export(options.revision, source)
            if options.revision == "HEAD" and git("status", "--porcelain"):
                print("warning: uncommitted changes are not included", file=sys.stderr)
        build(source, options.out.resolve(), at)
    for file in sorted(options.out.iterdir()):
        print(file)


if __name__ == "__main__":
    main()
