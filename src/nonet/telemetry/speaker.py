"""The namespace for which a context logs, in a process that serves several."""

from __future__ import annotations

from contextvars import Context, ContextVar

_namespace: ContextVar[str] = ContextVar("nonet_speaker", default="")


def speak_for(namespace: str) -> None:
    """Let the log lines of the current context name `namespace`: that of a daemon beside others."""
    _namespace.set(namespace)


def speaks_for() -> str:
    """The namespace of `speak_for`; empty: the process serves only one, or this is not a daemon."""
    return _namespace.get()


def new_context() -> Context:
    """Return a context that logs for the same namespace, and has no other variable of this one.

    Each attempt gets one, so that none sees the context variables of another.
    """
    context = Context()
    context.run(speak_for, speaks_for())
    return context
