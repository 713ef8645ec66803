"""Traces: a span for each submission, attempt, row and fetch, if this process collects spans.

An application sets up OpenTelemetry with its own SDK; a daemon does it if the standard variables
are set (`exporting_traces`). Otherwise OpenTelemetry is not imported. Spans contain names, ids and
outcomes, but no arguments.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Any

from nonet.telemetry.running_middleware import is_middleware_used, within_middleware

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from nonet.telemetry.spans import AttemptSpan, SpanMaker

logger = logging.getLogger(__name__)

# How long the last spans may delay the end of a process, and of a child process.
FLUSH_SECONDS, CHILD_FLUSH_SECONDS = 2.0, 1.0
_GROUP = "opentelemetry_traces_exporter"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_UNTRACED = nullcontext("")

_found: SpanMaker | None = None


def _spans() -> SpanMaker | None:
    """What makes spans; None if this process collects none."""
    global _found
    if _found is None:
        # If the program has set up a provider, it has imported the package.
        api: Any = sys.modules.get("opentelemetry.trace")
        if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
            return None
        from nonet.telemetry.spans import SpanMaker  # OpenTelemetry is optional

        _found = SpanMaker(api.get_tracer("nonet", version("nonet")))
    return _found


def are_spans_collected() -> bool:
    """Whether this process collects spans."""
    return _spans() is not None


def sending() -> AbstractContextManager[str]:
    """Open a producer span and middleware around a submission.

    Yields the trace context for its envelopes, or "".

    Example:
        with sending() as trace:
            made = [envelopes.prepare(task, trace=trace) for task in tasks]
            if trace:
                describe_sent(made)
            await broker.submit(made)
    """
    spans = _spans()
    traced = _UNTRACED if spans is None else spans.sending()
    return within_middleware(traced) if is_middleware_used() else traced


def describe_sent(sent: Sequence[Any]) -> None:
    """Add the attributes of the submitted tasks to the span of `sending`, as far as they agree.

    Args:
        sent: each has an ``id``, a ``name`` and a ``stream``.
    """
    if (spans := _spans()) is not None:
        spans.describe_sent(sent)


def current_trace() -> str:
    """The W3C context of the current span: ``traceparent``, perhaps ``tracestate``, or ""."""
    spans = _spans()
    return "" if spans is None else spans.current()


def start_attempt(task: str, id: str, stream: str, attempt: int, trace: str) -> AttemptSpan | None:
    """Start the span of an attempt, and make it current in the asyncio task of the attempt.

    The span starts a new trace with a link to the trace of the submission. One trace for both would
    stay open for hours if the task waits or is retried.

    Args:
        trace: the trace context of the envelope.

    Returns:
        None if this process collects no spans.
    """
    spans = _spans()
    return None if spans is None else spans.start_attempt(task, id, stream, attempt, trace)


def start_row(pipeline: str, key: object) -> AttemptSpan | None:
    """Start the span of a row, and make it current in the asyncio task that processes the row.

    Returns:
        None if this process collects no spans.
    """
    spans = _spans()
    return None if spans is None else spans.start_row(pipeline, key)


def fetching(pipeline: str) -> AbstractContextManager[Callable[[int], None]]:
    """Open a span around a fetch of rows; yield a function that takes the number found."""
    spans = _spans()
    return nullcontext(lambda rows: None) if spans is None else spans.fetching(pipeline)


def continue_trace(trace: str) -> None:
    """Make a span of another process the parent of new spans in the current asyncio task."""
    if trace and (spans := _spans()) is not None:
        spans.follow(trace)


def current_ids() -> Mapping[str, str]:
    """``trace_id`` and ``span_id`` for a log line; empty without a span."""
    spans = _spans()
    return {} if spans is None else spans.ids()


def are_traces_wanted() -> bool:
    """Whether the standard variables ask for an exporter."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if named := os.environ.get("OTEL_TRACES_EXPORTER", "").strip():
        return named != "none"
    return any(os.environ.get(name) for name in _ENDPOINTS)


@asynccontextmanager
async def exporting_traces(
    service: str, about: Mapping[str, str], *, flush_seconds: float = FLUSH_SECONDS
) -> AsyncIterator[None]:
    """Export the spans of this process during the block, if the standard variables ask for it.

    If the collector does not answer, spans are lost, the log says so, and the end of the block
    takes up to `flush_seconds` longer.

    Args:
        service: default of ``service.name``.
        about: further attributes of the resource, ``nonet.…``.
        flush_seconds: how long the last spans may delay the end of the block.
    """
    if not are_traces_wanted():
        yield
        return
    shut_down = None
    try:
        from nonet.telemetry import trace_provider  # only for an exporter

        exporters = [make() for make in load_exporters()]
        shut_down = trace_provider.set_up(exporters, service, about)
    except ImportError as error:
        logger.warning(
            "traces not exported, although OTEL_… variables ask for it: %s; install nonet[otel]",
            error,
        )
    except Exception as error:  # a bad variable must not keep a daemon from its work
        logger.warning("traces not exported: error=%s: %s", type(error).__name__, error)
    try:
        yield
    finally:
        if shut_down is not None:
            # A running export cannot be interrupted: a daemon thread does not delay the exit.
            ending = threading.Thread(target=shut_down, name="last spans", daemon=True)
            ending.start()
            ending.join(flush_seconds)


def load_exporters() -> list[Callable[[], SpanExporter]]:
    """Load the exporters that the variables name.

    Raises:
        ImportError: one is not installed.
    """
    names = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    return [_load(name.strip()) for name in names.split(",")]


def _load(name: str) -> Callable[[], SpanExporter]:
    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", ""
        )
        name = "otlp_proto_grpc" if protocol.strip() == "grpc" else "otlp_proto_http"
    for found in entry_points(group=_GROUP, name=name):
        make: Callable[[], SpanExporter] = found.load()
        return make
    raise ImportError(f"exporter {name!r} is not installed")
