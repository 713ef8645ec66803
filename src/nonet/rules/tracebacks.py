"""Write the traceback of a failure as bounded text without values, and make an exception of it."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import FrameType, FunctionType, TracebackType

from msgspec import Struct

TRACEBACK_BYTES = 4096
_MOST_FRAMES = 50  # of each exception
_MOST_LINKS = 8
_LONGEST_LINE = 400
_HEAD = "Traceback (most recent call last):\n"
_CUT = "  …\n"  # in place of outer frames
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
_PART = "The above exception is part of the following group of exceptions:"
LINKS = re.compile(rf"\n\n({_CAUSE}|{_CONTEXT}|{_PART})\n\n")
"""Splits a traceback into its exceptions, with their relation between two of them."""
_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)\n(?:    .*\n)?')
_LINK = re.compile(rf"(?:{re.escape(_HEAD)})?(?:{_CUT})?((?:{_FRAME.pattern})*)(.*)", re.DOTALL)


class _Link(Struct, frozen=True):
    """One exception of a chain.

    Attributes:
        frames: as Python prints them, the innermost one last.
        text: its class and text.
        leads_to: how it is related to the next exception.
    """

    frames: list[str]
    text: str
    leads_to: str


def traceback_text(error: BaseException, describe: Callable[[BaseException], str]) -> str:
    """Return the traceback of an exception and of its causes, in the form that Python prints.

    It contains no values of variables. At most 50 frames of an exception are shown, of at most 8
    exceptions; if the text is longer than 4 KiB, fewer of the innermost frames.

    Args:
        describe: returns class and text of an exception, short and without secrets.

    Returns:
        The text; empty if no exception of the chain has a frame.

    Example:
        >>> try:
        ...     1 / 0
        ... except ZeroDivisionError as error:
        ...     print(traceback_text(error, repr).splitlines()[-1])
        ZeroDivisionError('division by zero')
    """
    links = [_Link(_frames(item), describe(item), how) for item, how in _chain(error)]
    if not any(link.frames for link in links):
        return ""
    most = _MOST_FRAMES
    text = _joined(links, most)
    while len(text.encode()) > TRACEBACK_BYTES and most > 1:
        most = most * 2 // 3
        text = _joined(links, most)
    return text


def bounded(text: str) -> str:
    """Cut a traceback whose secrets are masked to its last 4 KiB.

    >>> len(bounded("x" * 5000))
    4094
    """
    encoded = text.encode()
    if len(encoded) <= TRACEBACK_BYTES:
        return text
    end = encoded[len(_CUT.encode()) - TRACEBACK_BYTES :].decode(errors="ignore")
    frame = end.find('\n  File "') + 1
    return _CUT + end[frame:]


def exception_of(kind: str, text: str, written: str) -> Exception:
    """Return an exception with this class name, text and traceback, for a log record.

    Logging integrations read more of an exception than its text: the attributes, the local
    variables of each frame. In the original those are raw values, secrets among them, and the
    original of an isolated task stays in its child process. So the exception is always made anew
    from the masked texts. Its frames name file, line and function, and have no variables.

    Args:
        written: what `traceback_text` returned, masked.

    Example:
        >>> exception_of("Missing", "no such file", "")
        Missing('no such file')
    """
    *earlier, last = LINKS.split(written)
    before: Exception | None = None
    relation = ""
    for link, how in zip(earlier[::2], earlier[1::2], strict=True):
        made = _made(link, before, relation)
        before, relation = made, how
    return _made(last, before, relation, kind, text)


def _made(
    link: str, before: Exception | None, relation: str, kind: str | None = None, text: str = ""
) -> Exception:
    found = _LINK.fullmatch(link)
    frames, described = (found[1], found[found.re.groups]) if found else ("", link)
    if kind is None:
        kind, _, text = described.partition(": ")
    error = _class(kind)(text)
    error.__traceback__ = _made_traceback(frames)
    if relation == _CONTEXT:
        error.__context__ = before
    else:
        error.__cause__ = before
    return error


@lru_cache(256)
def _class(name: str) -> type[Exception]:
    name = name.replace("\0", "")
    # As a built-in, it is shown without the name of a module.
    about = {"__module__": "builtins", "__qualname__": name}
    return type(name.rpartition(".")[2], (Exception,), about)


def _made_traceback(frames: str) -> TracebackType | None:
    made: TracebackType | None = None
    for file, line, function in reversed(_FRAME.findall(frames)):
        # Without a position in the code (-1), the line is the one given here.
        made = TracebackType(made, _made_frame(file, function), -1, int(line))
    return made


def _blank() -> Iterator[None]:
    yield


def _made_frame(file: str, function: str) -> FrameType:
    code = _blank.__code__.replace(co_filename=file, co_name=function, co_qualname=function)
    # Code that reads the lines around it needs the name of a module.
    module = inspect.getmodulename(file) or ""
    # A generator that has not begun: the frame of a call would lead to the frames of its callers.
    frame: FrameType = FunctionType(code, {"__name__": module})().gi_frame
    return frame


def _joined(links: list[_Link], most: int) -> str:
    return "".join(
        "".join(
            (
                _HEAD if link.frames else "",
                _CUT if len(link.frames) > most else "",
                *link.frames[-most:],
                link.text,
                f"\n\n{link.leads_to}\n\n" if link.leads_to else "",
            )
        )
        for link in links
    )


def _chain(error: BaseException) -> list[tuple[BaseException, str]]:
    """Return an exception and its causes, first cause first, each with its relation to the next."""
    found: list[tuple[BaseException, str]] = []
    ahead, seen = [(error, "")], {id(error)}
    while ahead and len(found) < _MOST_LINKS:
        item, how = ahead.pop()
        found.append((item, how))
        for before, relation in _before(item):
            if id(before) not in seen:
                seen.add(id(before))
                ahead.append((before, relation))
    return found[::-1]


def _before(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yield the exceptions that led to this one, without running code of its class."""
    get = BaseException.__getattribute__
    if (cause := get(error, "__cause__")) is not None:
        yield cause, _CAUSE
    context = get(error, "__context__")
    if cause is None and context is not None and not get(error, "__suppress_context__"):
        yield context, _CONTEXT
    if issubclass(type(error), BaseExceptionGroup):
        # A member descriptor: the group may override the attribute.
        for part in BaseExceptionGroup.__dict__["exceptions"].__get__(error):
            yield part, _PART


def _frames(error: BaseException) -> list[str]:
    own: TracebackType | None = BaseException.__getattribute__(error, "__traceback__")
    try:
        return [_shown(item) for item in traceback.extract_tb(own, limit=-_MOST_FRAMES - 1)]
    except Exception:  # loaders of modules provide the source lines
        return []


def _shown(frame: traceback.FrameSummary) -> str:
    line = frame.line or ""
    # A cut could leave a part of a secret, which would not be recognized.
    source = f"    {line}\n" if 0 < len(line) <= _LONGEST_LINE else ""
    return f'  File "{frame.filename}", line {frame.lineno or 0}, in {frame.name}\n{source}'
