"""What an author adds to `logging` may raise: neither lines nor code that logs are lost."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from waits import WAIT_SECONDS

SET_UP = """
import json, logging
from nonet.telemetry.log_guard import guard_logging, log_error_samples
from nonet.telemetry.logs import set_up_logs

def broken(*args, **options):
    raise OSError("log server is down")

class Ships(logging.StreamHandler):
    emit = broken

class Refuses(logging.StreamHandler):
    handle = broken

class Formats(logging.StreamHandler):
    def emit(self, record):
        broken()

class Filters(logging.StreamHandler):
    filter = broken

root, log, other = map(logging.getLogger, ["", "nonet.test", "author"])
"""
# Each breaks logging: how, under which name its errors are counted, and whether our line survives.
# It does not where `logging` stops before it reaches our handler.
BREAKS = {
    "a handler of the root": ("root.addHandler(Ships())", "Ships", True),
    "a handler of the logger": ("log.addHandler(Formats())", "Formats", True),
    "a filter of a handler": ("root.addHandler(Filters())", "Filters", True),
    "a handler with a handle of its own": ("root.addHandler(Refuses())", "Logger", True),
    "a record factory": ("logging.setLogRecordFactory(broken)", "record factory", True),
    "a filter of the logger": ("log.addFilter(broken)", "Logger", False),
}
BREAK_ALL = f"""
set_up_logs("json", logging.INFO)
counts = {{}}
for what, (how, name, _) in {BREAKS!r}.items():
    before = dict((labels[0], count) for _, labels, count in log_error_samples())
    exec(how)
    for _ in range(3):
        log.info(what)
    counts[what] = dict((labels[0], count) for _, labels, count in log_error_samples())
    counts[what] = counts[what][name] - before.get(name, 0)
    logging.setLogRecordFactory(logging.LogRecord)
    log.handlers.clear()
    log.filters.clear()
    for added in root.handlers[1:]:
        root.removeHandler(added)
print(json.dumps(counts))
"""
INSIDE = """
guard_logging("nonet.")
root.addHandler(Ships())
root.addHandler(logging.StreamHandler())
log.error("x")
log.error("y")
try:
    other.error("z")
except OSError as error:
    print(json.dumps(str(error)))
"""


def run(script: str) -> tuple[Any, list[str]]:
    """What a script prints as JSON, and its lines on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", SET_UP + script],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr.splitlines()


def test_nothing_that_logging_calls_raises_into_a_daemon() -> None:
    """Its errors are counted, the first one is a line, and the other handlers get the record."""
    counts, lines = run(BREAK_ALL)
    events = [json.loads(line)["event"] for line in lines]
    for what, (_, name, survives) in BREAKS.items():
        assert counts[what] in (3, 4), what  # the line about it may also fail
        assert events.count(what) == (3 if survives else 0), what
        told = f"handler={name} error=OSError: log server is down"
        assert len([event for event in events if told in event]) == 1, what


def test_a_program_with_daemons_inside_sees_the_errors_of_its_own_lines() -> None:
    """Only our loggers are guarded there, and their first error is a line."""
    raised, (told, *lines) = run(INSIDE)
    assert raised == "log server is down"
    assert "handler=Ships error=OSError: log server is down" in told
    assert lines == ["x", "y"]
