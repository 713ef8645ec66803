"""Release the committed state of this checkout: ``make release VERSION=1.2.3``. Pushes nothing.

The release stops if the working tree is not clean, the version is not newer, the changelog has no
news, a dependency has a known vulnerability, or the vulnerability database does not answer. Then it
sets version and date, and builds dist/ from that commit. The commit and the tag reach this checkout
only after every step has succeeded.
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
    """Return why this release cannot be made, or an empty string."""
    if not wanted:
        return "no version given: run make release VERSION=1.2.3"
    try:
        version = Version(wanted)
    except InvalidVersion:
        return f"{wanted!r} is not a version: write one like 1.2.3 or 1.2.3rc1"
    if (
        wanted != str(version)
        or version.is_devrelease
        or version.local
        or len(version.release) != 3
    ):
        return f"{wanted!r} is not a release version: write one like 1.2.3 or 1.2.3rc1"
    if dist.git("status", "--porcelain", root=root):
        return "the working tree is not clean: commit the changes, or release from a fresh clone"
    if not dist.git("branch", "--show-current", root=root):
        return "no branch is checked out for the release commit: check one out"
    known = set(versions.versions(root).values())
    if len(known) != 1:
        return f"files disagree on the version: {versions.versions(root)}"
    (now,) = known
    if version <= Version(now):
        return f"{wanted} is not newer than the present version, {now}"
    if dist.git("tag", "--list", f"v{wanted}", root=root):
        return f"the tag v{wanted} already exists"
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if told := changelog.problems(text):
        return "CHANGELOG.md: " + "; ".join(told)
    if not changelog.has_news(text):
        return "CHANGELOG.md has no entries under Unreleased"
    if audit.audit(root):
        return "the audit of the dependencies failed"
    return ""


def release(root: Path, version: str, out: Path) -> None:
    """Commit, build and tag, in a separate work tree so that a failure leaves nothing behind."""
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
    """Tag the commit and move the branch to it, or do neither."""
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
    parser.add_argument(
        "--root", type=Path, default=dist.ROOT, help="the checkout to release; default: this one"
    )
    options = parser.parse_args()
    root, version, out = options.root.resolve(), options.version, options.root.resolve() / "dist"
    if why := refusal(root, version):
        sys.exit(f"no release: {why}")
    release(root, version, out)
    branch = dist.git("branch", "--show-current", root=root)
    print(f"Nonet {version} is committed, tagged v{version}, and built in {out}. Next steps:")
    print(f"  git push origin {branch} v{version}")
    print("  publish the wheel and the sdist of dist/, together with the SBOM and SHA256SUMS")
    print("  python scripts/release/version.py NEXT.dev0, then commit the change")


if __name__ == "__main__":
    main()
