"""Make a release of what is committed here: ``make release VERSION=1.2.3``. It pushes nothing.

It refuses a tree that is not clean, a version that is not newer, a changelog without news, and
dependencies with a known vulnerability, or of which nobody could be asked. Then it sets version and
date, builds dist/ from that commit, and only if all of this worked the commit and the tag are here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from packaging.version import InvalidVersion, Version

import audit
import changelog
import dist
import version as versions


def refusal(root: Path, wanted: str) -> str:
    """Why this release cannot be made, or empty."""
    if not wanted:
        return "VERSION=1.2.3 is missing, the version that it is to have"
    try:
        version = Version(wanted)
    except InvalidVersion:
        return f"{wanted!r} is no version, as in 1.2.3 or 1.2.3rc1"
    if (
        wanted != str(version)
        or version.is_devrelease
        or version.local
        or len(version.release) != 3
    ):
        return f"{wanted!r} is no version of a release, as in 1.2.3 or 1.2.3rc1"
    if dist.git("status", "--porcelain", root=root):
        return "the working tree is not clean: commit, or release from a fresh clone"
    if not dist.git("branch", "--show-current", root=root):
        return "no branch is checked out, which could get the commit of the release"
    known = set(versions.versions(root).values())
    if len(known) != 1:
        return f"the version is not the same everywhere: {versions.versions(root)}"
    (now,) = known
    if version <= Version(now):
        return f"{wanted} is not newer than {now}, which is the version here"
    if dist.git("tag", "--list", f"v{wanted}", root=root):
        return f"there is a tag v{wanted}"
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if told := changelog.problems(text):
        return "CHANGELOG.md: " + "; ".join(told)
    if not changelog.has_news(text):
        return "CHANGELOG.md says nothing under Unreleased"
    if audit.audit(root):
        return "the audit of the dependencies did not pass"
    return ""


def release(root: Path, version: str, out: Path) -> None:
    """Commit, build and tag; in a work tree of its own, so that a failure leaves nothing behind."""
    with tempfile.TemporaryDirectory() as home:
        work, source = Path(home, "work"), Path(home, "nonet")
        dist.git("worktree", "add", "-q", "--detach", str(work), "HEAD", root=root)
        try:
            versions.set_version(work, version)
            log = work / "CHANGELOG.md"
            today = datetime.now(UTC).date()
            text = changelog.release(log.read_text(encoding="utf-8"), version, today)
            log.write_text(text, encoding="utf-8")
            names = [*versions.PLACES, "CHANGELOG.md"]
            dist.git("commit", "-q", "-m", f"Release {version}", "--", *names, root=work)
            source.mkdir()
            dist.export("HEAD", source, root=work)
            dist.build(source, out, int(dist.git("log", "-1", "--format=%ct", root=work)))
            commit = dist.git("rev-parse", "HEAD", root=work)
        finally:
            dist.git("worktree", "remove", "--force", str(work), root=root)
    point_at(root, version, commit)


def point_at(root: Path, version: str, commit: str) -> None:
    """Tag the commit, and move the branch to it; or neither."""
    tag = f"v{version}"
    dist.git("tag", "-a", tag, "-m", f"Nonet {version}", commit, root=root)
    try:
        dist.git("merge", "-q", "--ff-only", commit, root=root)
    except BaseException:
        dist.git("tag", "-d", tag, root=root)
        raise


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version")
    parser.add_argument("--root", type=Path, default=dist.ROOT, help="the checkout; this one")
    options = parser.parse_args()
    root, version, out = options.root.resolve(), options.version, options.root.resolve() / "dist"
    if why := refusal(root, version):
        sys.exit(f"no release: {why}")
    release(root, version, out)
    branch = dist.git("branch", "--show-current", root=root)
    print(
        f"Nonet {version} is committed, tagged v{version}, and built in {out}. Nothing was pushed:"
    )
    print(f"  git push origin {branch} v{version}")
    print("  publish the wheel and the sdist of dist/, and keep the SBOM and SHA256SUMS with them")
    print("  python scripts/release/version.py NEXT.dev0, and commit that")


if __name__ == "__main__":
    main()
