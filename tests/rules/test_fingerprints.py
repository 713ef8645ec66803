"""What dead letters of the same cause have in common."""

from __future__ import annotations

import pytest

from nonet.rules.fingerprints import fingerprint_of, location_of
from nonet.rules.outcomes import summarize

NONET = "/venv/lib/python3.12/site-packages/nonet/worker/attempt/execute.py:_invoke"
CAUSE = "\n\nThe above exception was the direct cause of the following exception:\n\n"


def text(*frames: str, error: str = "ValueError: no", head: str = "most recent call last") -> str:
    """A traceback with frames ``FILE:FUNCTION``, the innermost one last."""
    lines = []
    for number, frame in enumerate(frames):
        file, function = frame.rsplit(":", 1)
        lines.append(f'  File "{file}", line {number}, in {function}\n    some(code)\n')
    return f"Traceback ({head}):\n{''.join(lines)}{error}"


@pytest.mark.parametrize(
    ("traceback", "location"),
    [
        (text(NONET, "/srv/mail/tasks.py:execute"), "mail.tasks:execute"),
        (text(NONET, "/srv/mail/tasks.py:execute", "/srv/mail/bill.py:total"), "mail.bill:total"),
        # Called libraries are not the user's code.
        (
            text(
                "/app/mail.py:send", "/usr/lib/python3.12/smtplib.py:connect", "<string>:__init__"
            ),
            "mail:send",
        ),
        (
            text(NONET, "/app/jobs/a.py:execute", "/v/site-packages/httpx/_client.py:request"),
            "jobs.a:execute",
        ),
        # A task that is installed as a package is.
        (
            text(
                NONET,
                "/v/lib/python3.12/site-packages/shop/jobs/bill.py:execute",
                "/v/lib/python3.12/site-packages/shop/db/__init__.py:read",
                "/v/lib/python3.12/site-packages/sqlalchemy/engine.py:connect",
            ),
            "shop.db:read",
        ),
        (text("/usr/lib/python3/dist-packages/single.py:execute"), "single:execute"),
        # Directories of releases, users and sources are no packages.
        (text("/opt/releases/20260102/shop/bill.py:pay"), "shop.bill:pay"),
        (text("/opt/shop-1.2/bill.py:pay"), "bill:pay"),
        (text("/home/alice/src/a/b/c/d/e.py:pay"), "c.d.e:pay"),
        # The last exception counts, unless only an earlier one was in the user's code.
        (text("/srv/x/a.py:f") + CAUSE + text(NONET, "/srv/x/b.py:g"), "x.b:g"),
        (text("/srv/x/a.py:f") + CAUSE + text(NONET), "x.a:f"),
        (text(NONET), "nonet.worker.attempt.execute:_invoke"),
        # Bounded tracebacks, and texts that pretend to have frames.
        ("  …\n" + text("/srv/x/a.py:f").partition("\n")[2], "x.a:f"),
        (text("/srv/x/a.py:f", error='E: \n  File "/srv/y/z.py", line 1, in g\n'), "x.a:f"),
        ("ValueError: no", ""),
        ("", ""),
    ],
)
def test_the_location_is_the_innermost_frame_of_users_code(traceback: str, location: str) -> None:
    assert location_of(traceback) == location


def test_a_real_traceback_has_a_place() -> None:
    try:
        raise_it()
    except ZeroDivisionError as error:
        location = location_of(summarize(error).traceback)
    assert location.endswith("rules.test_fingerprints:raise_it")


def raise_it() -> None:
    raise ZeroDivisionError


def test_the_location_is_bounded() -> None:
    assert len(location_of(text(f"/srv/x/a.py:{'f' * 5000}"))) == 255


def test_class_error_and_place_make_a_fingerprint() -> None:
    letters = [
        ("a:A", "ValueError", "retries", "x:f"),
        ("a:B", "ValueError", "retries", "x:f"),
        ("a:A", "KeyError", "retries", "x:f"),
        ("a:A", "ValueError", "retries", "x:g"),
        ("a:A", "ValueError", "retries", ""),
        ("a:A", "ValueError", "crash", ""),
    ]
    assert len({fingerprint_of(*letter) for letter in letters}) == len(letters)
    assert fingerprint_of("a:A", "E", "retries", "x:f") == fingerprint_of("a:A", "E", "x", "x:f")
