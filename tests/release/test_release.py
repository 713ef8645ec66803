"""A release is committed, tagged and built; or it is refused, and then nothing has changed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from release.conftest import git, script

NEXT = "9.0.0"


class Service(BaseHTTPRequestHandler):
    """Answers as the OSV database does: what is known of each package that is asked for."""

    known: ClassVar[dict[str, list[str]]] = {}

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        names = [query["package"]["name"] for query in asked]
        found = [{"vulns": [{"id": id} for id in self.known.get(name, [])]} for name in names]
        self._answer({"results": found})

    def do_GET(self) -> None:
        self._answer({"id": self.path.rpartition("/")[2], "modified": "2026-01-01T00:00:00Z"})

    def _answer(self, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    """The URL of a database on loopback that knows of nothing; the real one is not reachable."""
    Service.known = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_release_is_committed_tagged_and_built(checkout: Path, service: str) -> None:
    """With its version in each place, and its section in the changelog; nothing is left over."""
    done = script("", NEXT, "--root", str(checkout), AUDIT_URL=service)
    assert done.returncode == 0, done.stderr
    assert git(checkout, "log", "-1", "--format=%s") == f"Release {NEXT}"
    assert git(checkout, "rev-parse", f"v{NEXT}^{{commit}}") == git(checkout, "rev-parse", "HEAD")
    assert git(checkout, "status", "--porcelain") == ""
    told = script("version.py", "--root", str(checkout)).stdout.split()
    assert set(told[::2]) == {NEXT}
    log = (checkout / "CHANGELOG.md").read_text()
    assert f"## [Unreleased]\n\n## [{NEXT}] - " in log
    assert script("changelog.py", str(checkout / "CHANGELOG.md")).returncode == 0
    assert {file.name for file in (checkout / "dist").iterdir()} == {
        *(f"nonet-{NEXT}-py3-none-any.whl", f"nonet-{NEXT}.tar.gz"),
        *(f"nonet-{NEXT}.cdx.json", "SHA256SUMS"),
    }
    assert f"git push origin main v{NEXT}" in done.stdout
    assert git(checkout, "worktree", "list").count("\n") == 0


def change_a_file(checkout: Path) -> None:
    (checkout / "README.md").write_text("other")


def tag_it(checkout: Path) -> None:
    git(checkout, "tag", f"v{NEXT}")


def publish_all_news(checkout: Path) -> None:
    log = checkout / "CHANGELOG.md"
    news = log.read_text()
    log.write_text(news.replace("## [Unreleased]", "## [Unreleased]\n\n## [0.0.1] - 2026-01-01"))
    git(checkout, "commit", "-q", "-a", "-m", "No news")


def spoil_the_changelog(checkout: Path) -> None:
    log = checkout / "CHANGELOG.md"
    log.write_text(log.read_text().replace("### Added", "### News"))
    git(checkout, "commit", "-q", "-a", "-m", "News")


def change_one_version(checkout: Path) -> None:
    chart = checkout / "charts" / "nonet" / "Chart.yaml"
    chart.write_text(chart.read_text().replace('appVersion: "', 'appVersion: "8'))
    git(checkout, "commit", "-q", "-a", "-m", "Another version")


def find_a_vulnerability(_: Path) -> None:
    Service.known = {"redis": ["PYSEC-2026-1"]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (change_a_file, "not clean"),
        (tag_it, f"the tag v{NEXT} already exists"),
        (publish_all_news, "has no entries under Unreleased"),
        (spoil_the_changelog, "not one of"),
        (change_one_version, "files disagree on the version"),
        (find_a_vulnerability, "the audit of the dependencies failed"),
    ],
)
def test_an_unfit_release_is_refused(
    checkout: Path, service: str, change: Callable[[Path], None], why: str
) -> None:
    """And nothing is committed, tagged or built."""
    change(checkout)
    refuses(checkout, service, NEXT, why)


def refuses(checkout: Path, service: str, version: str, why: str) -> None:
    """Check that a release is refused for this reason, and has changed nothing."""
    before = git(checkout, "rev-parse", "HEAD"), git(checkout, "tag")
    done = script("", version, "--root", str(checkout), AUDIT_URL=service)
    assert (done.returncode, why in done.stderr) == (1, True), done.stderr
    assert (git(checkout, "rev-parse", "HEAD"), git(checkout, "tag")) == before
    assert not (checkout / "dist").exists()


def test_a_wrong_version_is_refused(checkout: Path, service: str) -> None:
    """And nothing is committed, tagged or built."""
    for version, why in {
        "": "no version given",
        "0.0.1": "not newer",
        "9.0": "is not a release version",
        "9.0.0.dev1": "is not a release version",
        "soon": "is not a version",
    }.items():
        refuses(checkout, service, version, why)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"commit.gpgSign": "true", "gpg.program": "false"}, "git commit failed: "),
        ({"tag.gpgSign": "true", "gpg.program": "false"}, "git tag failed: "),
        ({"merge.verifySignatures": "true"}, "git merge failed: "),
    ],
)
def test_a_refusal_of_git_leaves_branch_and_tags_unchanged(
    checkout: Path, service: str, settings: dict[str, str], why: str
) -> None:
    """And one line has git's reason."""
    for name, value in settings.items():
        git(checkout, "config", name, value)
    before = git(checkout, "rev-parse", "main", "HEAD"), git(checkout, "tag")
    done = script("", NEXT, "--root", str(checkout), AUDIT_URL=service)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith(why) and len(done.stderr) > len(why) + 20
    assert (git(checkout, "rev-parse", "main", "HEAD"), git(checkout, "tag")) == before
    assert git(checkout, "worktree", "list").count("\n") == 0


def test_a_build_of_an_unknown_revision_shows_the_error_of_git() -> None:
    """In one line."""
    done = script("dist.py", "no-such-revision")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("git log failed: fatal: ")
    assert "no-such-revision" in done.stderr


def test_the_checks_pass_after_a_build(checkout: Path) -> None:
    """The directory dist/ does not change what `import dist` is for ruff."""
    (checkout / "dist").mkdir()
    ruff = str(Path(sys.executable).with_name("ruff"))
    command = [ruff, "check", "--no-cache", "scripts"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_an_audit_without_its_database_fails_with_a_reason() -> None:
    """In one sentence, and with an exit code of its own: nothing is known then."""
    done = script("audit.py", AUDIT_URL="http://127.0.0.1:9", UV_HTTP_RETRIES="0")
    assert done.returncode == 2
    assert "did not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_audit_names_what_it_found(service: str) -> None:
    """The package and the vulnerability."""
    assert script("audit.py", AUDIT_URL=service).returncode == 0
    find_a_vulnerability(Path())
    done = script("audit.py", AUDIT_URL=service)
    assert done.returncode == 1
    assert "redis" in done.stdout and "PYSEC-2026-1" in done.stdout
