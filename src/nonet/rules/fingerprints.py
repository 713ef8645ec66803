"""Find dead letters of the same cause: the location of their error in the user's code. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from nonet.rules.tracebacks import LINKS

_DIGITS = 16
_LONGEST_PLACE = 255
_MOST_PARTS = 3
_FRAME = re.compile(r'  File "(.*)", line \d+, in (.*)\n(?:    .*\n|  \[Previous line .*\n)*')
_FRAMES = re.compile(rf"(?:Traceback .*\n)?(?:  …\n)?((?:{_FRAME.pattern})+)")
_FRAMEWORK = re.compile(r"(?:^|/)(?:site-packages|dist-packages|src)/nonet/(?!cli/demo/|contrib/)")
_STANDARD = re.compile(r"<|.*/lib(?:64)?/python3[^/]*/(?!site-packages/|dist-packages/)")
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(([^/]+?)(?:\.py$|/).*|.+)$")
# Directories that hold a program without being a package of it.
_ROOTS = frozenset({"app", "code", "current", "home", "lib", "opt", "releases", "src", "srv"})


class _Frame(NamedTuple):
    file: str
    function: str

    @property
    def package(self) -> str:
        """The installed package of the file; empty: the file is in no ``site-packages``."""
        found = _INSTALLED.match(self.file)
        return (found[2] or found[1]) if found else ""

    @property
    def is_ours(self) -> bool:
        """Whether it belongs to Nonet or to Python."""
        return bool(_FRAMEWORK.search(self.file) or _STANDARD.match(self.file))

    def __str__(self) -> str:
        return f"{_module(self.file)}:{self.function}"[:_LONGEST_PLACE]


def location_of(traceback: str) -> str:
    """Return where in the user's code an error was raised, as ``module:function``.

    That is the innermost frame of the last exception outside of Nonet, Python and installed
    packages other than the task's own. Without such a frame, earlier exceptions of the chain count,
    and then the innermost frame of all. The line number is left out, because deployments move
    lines.

    Args:
        traceback: in the form that Python prints.

    Returns:
        The location; empty if the text has no frame.

    Example:
        >>> location_of('''Traceback (most recent call last):
        ...   File "/srv/mail/tasks.py", line 31, in execute
        ...   File "/usr/lib/python3.12/smtplib.py", line 255, in __init__
        ... TimeoutError: timed out''')
        'mail.tasks:execute'
    """
    links = [_frames(link) for link in LINKS.split(traceback)[::2]][::-1]
    for frames in links:
        users = _of_user(frames)
        if users:
            return str(users[-1])
    return next((str(frames[-1]) for frames in links if frames), "")


def fingerprint_of(task_class: str, error_type: str, reason: str, location: str) -> str:
    """Return the same 16 hexadecimal digits for all dead letters with the same cause.

    The text of the error does not count, because it often names an id or a number.

    Args:
        task_class: full name of the class.
        error_type: class name of the exception.
        reason: why the task died; counts only without a location.
        location: what `location_of` returned.

    Example:
        >>> fingerprint_of("mail:Send", "TimeoutError", "retries", "mail.tasks:execute")
        '9e7ff739af7d1835'
    """
    parts = (task_class, error_type, location or f"reason {reason}")
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:_DIGITS]


def _frames(link: str) -> list[_Frame]:
    """Return the frames at the start of a link; an error text may contain lines like frames."""
    found = _FRAMES.match(link if link.endswith("\n") else f"{link}\n")
    return [_Frame(*frame) for frame in _FRAME.findall(found[1])] if found else []


def _of_user(frames: list[_Frame]) -> list[_Frame]:
    others = [frame for frame in frames if not frame.is_ours]
    # The outermost one is the task, which may be installed like any library.
    return [frame for frame in others if frame.package in ("", others[0].package)]


def _module(file: str) -> str:
    """Return the name of a module, as far as its path tells it."""
    installed = _INSTALLED.match(file)
    path = (installed[1] if installed else file).removesuffix(".py").removesuffix("/__init__")
    *parents, name = [part for part in path.split("/") if part] or [""]
    if installed:
        return ".".join([*parents, name])
    found = [name]
    for part in reversed(parents):
        # A directory with a digit is more often a release than a package.
        if not re.fullmatch(r"[^\W\d]+", part) or part in _ROOTS or len(found) == _MOST_PARTS:
            break
        found.insert(0, part)
    return ".".join(found)
