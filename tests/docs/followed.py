"""`followed`: does what a page says from top to bottom, as a reader would, in a `Terminal`.

What a page shows is meant by the language of its fenced blocks:

- a block whose first line is ``# name`` is a file, which is written where it stands on the page;
- ``sh`` is typed, in the folder and the shell of the blocks before it;
- ``text`` directly behind an ``sh`` block is what it prints. Ids, times, durations and process ids
  are examples, any others fit; so does any text for ``…``, and any lines for a line that is ``…``.

A command that fails is a mistake of the page, unless its output is shown and has a line that
begins with ``error`` or ``FAILED``. So is a warning of pytest that a setting is
deprecated or missing.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from docs.pages import Block, Page, write_file
from ports import free_port
from preloaded import put_shims

_TYPED_SECONDS = 240.0  # an installation, on a machine with many tests at a time
_END_SECONDS = 30.0
_POLL_SECONDS = 0.05

# Longer and more special ones first: the first that fits at a place counts.
_VARYING = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"), r"[0-9a-f-]{36}"),
    (re.compile(r"\b[a-km-np-z2-9]{20}\b"), r"[a-km-np-z2-9]{20}"),
    (re.compile(r"\b[0-9a-f]{12,40}\b"), r"[0-9a-f]{12,40}"),
    (
        re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:\d\d)?"),
        r"\d{4}-\d\d-\d\d[T ][\d:.,Z+-]+",
    ),
    (re.compile(r"\bterm \d+"), r"term \d+"),
    (re.compile(r"\b\d+@[\w.-]*\w"), r"\d+@[\w.-]+"),
    (re.compile(r"\bpid \d+"), r"pid \d+"),
    (re.compile(r"\b\d+(?:\.\d+)? [KMG]iB\b"), r"\d+(?:\.\d+)? [KMG]iB"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|s)\b"), r"\d+(?:\.\d+)? ?(?:ms|s)"),
)


def line_pattern(shown: str) -> re.Pattern[str]:
    """How a line of output looks for which a page shows `shown`."""
    parts = []
    place = 0
    words = shown.strip()
    while place < len(words):
        if words[place] == "…":
            parts.append(".*")
            place += 1
        elif blank := re.compile(r"\s+").match(words, place):
            parts.append(r"\s+")
            place = blank.end()
        else:
            for kind, pattern in _VARYING:
                if found := kind.match(words, place):
                    parts.append(pattern)
                    place = found.end()
                    break
            else:
                parts.append(re.escape(words[place]))
                place += 1
    return re.compile("".join(parts))


def fits(shown: str, output: str) -> bool:
    """Whether a program printed what a page shows; see the module for what may differ."""
    wanted = [line for line in shown.splitlines() if line.strip()]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # Which first parts of `wanted` fit the lines so far: the usual walk over a pattern with stars.
    reached = {0}
    for line in [*lines, None]:
        for at in sorted(reached):
            while at < len(wanted) and wanted[at].strip() == "…":
                at += 1
                reached.add(at)
        if line is None:
            break
        reached = {
            at if wanted[at].strip() == "…" else at + 1
            for at in reached
            if at < len(wanted)
            and (wanted[at].strip() == "…" or line_pattern(wanted[at]).fullmatch(line))
        }
    return len(wanted) in reached


@dataclass(frozen=True)
class Typed:
    """What became of one ``sh`` block."""

    output: str
    failed: list[str]


class Terminal:
    """One shell of somebody who has just got an account: no virtual environment, no settings.

    Its HOME and its first working directory are new, and gone when it is closed, as are all
    processes that were started in it.

    Args:
        environment: added to that of the shell.
        installed: this environment of Python is active, with Nonet in it. Nonet's console scripts,
            and programs that `python` runs, are forked from a process that is `preloaded`.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, installed: bool = False
    ) -> None:
        # Short: a socket below it may have a path of 107 bytes at most.
        self.home = Path(tempfile.mkdtemp(prefix="nonet-page-"))
        self.folder = self.home / "work"
        self.folder.mkdir()
        (self.home / "tmp").mkdir()
        (self.home / "bin").mkdir()
        python = getattr(sys, "_base_executable", sys.executable)
        (self.home / "bin" / "python3").symlink_to(Path(python).resolve())
        self._count = 0
        added = {**(environment or {}), **(self._installed() if installed else {})}
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env={**self._clean_environment(), **added},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._shell.stdin and self._shell.stdout
        # First, so that it starts nothing more: a script may still be running.
        self._shell.kill()
        self._shell.wait()
        for pid in self._processes():
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        self._shell.stdin.close()
        self._shell.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _clean_environment(self) -> dict[str, str]:
        """The least that a shell has, and how this machine reaches a package index."""
        kept = re.compile(r"PIP_|SSL_|\w*_CA_BUNDLE$|(?i:https?|no|all)_proxy$|LANG$|LC_")
        return {
            **{name: value for name, value in os.environ.items() if kept.match(name)},
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "USER": "somebody",
            "LOGNAME": "somebody",
            "PATH": f"{self.home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            # `task-run dev` takes the first that is free: another test may find the same one.
            "NONET_WEB_PORT": str(free_port()),
        }

    def _installed(self) -> dict[str, str]:
        shims = self.home / "shims"
        shims.mkdir()
        places = [str(shims), str(Path(sys.executable).parent), os.environ["PATH"]]
        return {
            "PATH": os.pathsep.join(places),
            "PYTHONUNBUFFERED": "1",  # lines come in their order, as at a terminal
            **put_shims(shims),
        }

    def type(self, text: str, *, seconds: float = _TYPED_SECONDS) -> Typed:
        """Run lines of shell, and wait for their end."""
        assert self._shell.stdin and self._shell.stdout
        self._count += 1
        script = self.home / f".typed-{self._count}"
        failures = self.home / f".failed-{self._count}"
        script.write_text(text)
        end = f"-- end of {self._count} --"
        self._shell.stdin.write(
            f"trap 'echo \"$BASH_COMMAND\" >>{failures}' ERR\n"
            f". {script} </dev/null\ntrap - ERR\necho '{end}'\n".encode()
        )
        self._shell.stdin.flush()
        said = b""
        deadline = time.monotonic() + seconds
        while end.encode() not in said:
            rest = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._shell.stdout], [], [], rest)
            if not ready or not rest:
                seen = said.decode(errors="replace")
                raise AssertionError(f"after {seconds:g} s it has not ended:\n{text}\n{seen}")
            more = os.read(self._shell.stdout.fileno(), 65536)
            assert more, f"the shell has ended:\n{text}\n{said.decode()}"
            said += more
        output = said.decode(errors="replace").partition(end)[0]
        # What the shell itself says of its background jobs; where it says it depends on the moment.
        output = re.sub(
            rf"^({re.escape(str(script))}|bash): line \d+: +\d+ .*\n", "", output, flags=re.M
        )
        failed = failures.read_text().splitlines() if failures.exists() else []
        return Typed(output, failed)

    def _processes(self) -> Iterator[int]:
        """Whatever runs on behalf of this shell, its own process excluded."""
        marks = (f"HOME={self.home}\0".encode(), f"{self.home}/".encode())
        for place in Path("/proc").iterdir():
            if not place.name.isdigit() or int(place.name) in (self._shell.pid, os.getpid()):
                continue
            try:
                words = (place / "environ").read_bytes(), (place / "cmdline").read_bytes()
                folder = f"{(place / 'cwd').readlink()}/"
            except OSError:  # it has just ended, or is somebody else's
                continue
            # A fork shows the variables and the command of the process that forked it.
            is_below = folder.startswith(f"{self.home}/")
            if is_below or any(mark in word for mark, word in zip(marks, words, strict=True)):
                yield int(place.name)

    def left(self) -> list[str]:
        """Commands of the processes that stay behind; those that are about to end have a while."""
        deadline = time.monotonic() + _END_SECONDS
        while (found := list(self._processes())) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        commands = []
        for pid in found:
            try:
                commands.append(
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                )
            except OSError:
                continue
        return commands


@contextmanager
def followed(
    page: Page,
    *,
    instead: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    installed: bool = False,
) -> Iterator[Terminal]:
    """Do all that a page says; fails where the page is wrong. Gives the terminal in which it was.

    Args:
        page: what to do.
        instead: what to put in the place of which text, where the page asks its reader to.
        environment: beside that of the terminal.
        installed: whether Nonet is installed there, as its reader is told to do first.
    """
    with Terminal(environment, installed=installed) as terminal, _with_logs(terminal.folder):
        for block, shown in _steps(page):
            text = block.text
            for old, new in (instead or {}).items():
                text = text.replace(old, new)
            if block.file:
                write_file(replace(block, text=text), terminal.folder)
                continue
            typed = terminal.type(text)
            if not (shown and re.search(r"^(error|FAILED)", shown, re.MULTILINE)):
                assert not typed.failed, f"{block}: failed: {typed.failed}\n{typed.output}"
            assert "PytestDeprecationWarning" not in typed.output, f"{block}: {typed.output}"
            if shown is not None and not fits(shown, typed.output):
                raise AssertionError(
                    f"{block}: the page shows\n{shown}\nand this is printed\n{typed.output}"
                )
        yield terminal


@contextmanager
def _with_logs(folder: Path) -> Iterator[None]:
    """Adds to a failure what the daemons said."""
    try:
        yield
    except AssertionError as error:
        for log in sorted(folder.glob("*.log")):
            error.add_note(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}")
        raise


def _steps(page: Page) -> Iterator[tuple[Block, str | None]]:
    """Files and what is typed, with the output that is shown."""
    for block, after in zip(page.blocks, [*page.blocks[1:], None], strict=True):
        if block.file:
            yield block, None
        elif block.language == "sh":
            shown = after and after.follows and after.language == "text" and not after.file
            yield block, after.text if after and shown else None
