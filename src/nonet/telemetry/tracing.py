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
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Any

from nonet.base.errors import AdmissionRejected, BrokerFullError, ServerUnreachableError
from nonet.telemetry.masking import without_secrets
from nonet.telemetry.running_middleware import is_middleware_used, within_middleware

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger(__name__)

# Names of the messaging conventions of OpenTelemetry 1.30, and Nonet's own names.
_DESTINATION = "messaging.destination.name"
_MESSAGE_ID = "messaging.message.id"
_TASK = "nonet.task"
_PIPELINE = "nonet.pipeline"

# Longest error text in a span.
_MOST_TEXT = 4096
# Longest ``traceparent`` and ``tracestate`` in an envelope: a longer one of a vendor is left out.
_MOST_HEADER = 512
# How long the last spans may delay the end of a process, and of a child process.
FLUSH_SECONDS, CHILD_FLUSH_SECONDS = 2.0, 1.0
_GROUP = "opentelemetry_traces_exporter"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_FAILURES = ("retry", "crash", "dead", "failed", "dying")
# Errors that name only servers and ceilings; the text of any other may quote arguments.
_SAFE_ERRORS = (AdmissionRejected, BrokerFullError, ServerUnreachableError)

_found: Tracer | None = None


def _tracer() -> Tracer | None:
    """The tracer; None if this process collects no spans."""
    global _found
    if _found is None:
        # If the program has set up a provider, it has imported the package.
        api: Any = sys.modules.get("opentelemetry.trace")
        if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
            return None
        _found = api.get_tracer("nonet", version("nonet"))
    return _found


def are_spans_collected() -> bool:
    """Whether this process collects spans."""
    return _tracer() is not None


# ---- submissions ---------------------------------------------------------------------------------

_UNTRACED = nullcontext("")


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
    tracer = _tracer()
    traced = _UNTRACED if tracer is None else _sending(tracer)
    return within_middleware(traced) if is_middleware_used() else traced


@contextmanager
def _sending(tracer: Tracer) -> Iterator[str]:
    from opentelemetry.trace import SpanKind

    with tracer.start_as_current_span(
        "send",
        kind=SpanKind.PRODUCER,
        attributes=_attributes("send"),
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield current_trace()
        except BaseException as error:
            text = str(error) if isinstance(error, _SAFE_ERRORS) else ""
            _fail(span, type(error).__qualname__, text, "", ())
            raise


def describe_sent(sent: Sequence[Any]) -> None:
    """Add the attributes of the submitted tasks to the span of `sending`, as far as they agree.

    Args:
        sent: each has an ``id``, a ``name`` and a ``stream``.
    """
    from opentelemetry.trace import get_current_span

    span = get_current_span()
    tasks, streams = {item.name for item in sent}, {item.stream for item in sent}
    if len(sent) == 1:
        span.set_attribute(_MESSAGE_ID, sent[0].id)
    else:
        span.set_attribute("messaging.batch.message_count", len(sent))
    if len(tasks) == 1:
        (task,) = tasks
        span.update_name(f"send {task}")
        span.set_attribute(_TASK, task)
    if len(streams) == 1:
        span.set_attribute(_DESTINATION, *streams)


def current_trace() -> str:
    """The W3C context of the current span: ``traceparent``, perhaps ``tracestate``, or ""."""
    if _tracer() is None:
        return ""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    parent, state = carrier.get("traceparent", ""), carrier.get("tracestate", "")
    return f"{parent}\n{state}" if 0 < len(state) <= _MOST_HEADER else parent


# ---- attempts ------------------------------------------------------------------------------------


class AttemptSpan:
    """The span of an attempt or of a row, from `start_attempt` or `start_row`."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(
        self,
        outcome: str,
        error_type: str = "",
        error: str = "",
        traceback: str = "",
        secrets: Sequence[str] = (),
    ) -> None:
        """End the span.

        Args:
            outcome: outcome of the settlement or of the row, or ``lost``.
            error_type, error, traceback: the exception, if there was one; the traceback is empty if
                it must not be shown.
            secrets: texts to mask in them.
        """
        self._span.set_attribute("nonet.outcome", outcome)
        if error_type and outcome in _FAILURES:
            _fail(self._span, error_type, error, traceback, secrets)
        self._span.end()


def start_attempt(task: str, id: str, stream: str, attempt: int, trace: str) -> AttemptSpan | None:
    """Start the span of an attempt, and make it current in the asyncio task of the attempt.

    The span starts a new trace with a link to the trace of the submission. One trace for both would
    stay open for hours if the task waits or is retried.

    Args:
        trace: the trace context of the envelope.

    Returns:
        None if this process collects no spans.
    """
    tracer = _tracer()
    if tracer is None:
        return None
    from opentelemetry.trace import Link, SpanKind, get_current_span

    sent_by = get_current_span(_context_of(trace)).get_span_context()
    return _start(
        tracer,
        f"process {task}",
        kind=SpanKind.CONSUMER,
        attributes={
            **_attributes("process"),
            _TASK: task,
            _MESSAGE_ID: id,
            _DESTINATION: stream,
            "nonet.attempt": attempt,
        },
        links=[Link(sent_by)] if sent_by.is_valid else None,
    )


def start_row(pipeline: str, key: object) -> AttemptSpan | None:
    """Start the span of a row, and make it current in the asyncio task that processes the row.

    Returns:
        None if this process collects no spans.
    """
    tracer = _tracer()
    if tracer is None:
        return None
    about = {_PIPELINE: pipeline, "nonet.row": str(key)}
    return _start(tracer, f"process {pipeline}", attributes=about)


def _start(tracer: Tracer, name: str, **options: Any) -> AttemptSpan:
    """Start a span in a trace of its own, and make it current in this asyncio task."""
    from opentelemetry import context
    from opentelemetry.trace import set_span_in_context

    span = tracer.start_span(name, context=context.Context(), **options)
    context.attach(set_span_in_context(span))
    return AttemptSpan(span)


@contextmanager
def fetching(pipeline: str) -> Iterator[Callable[[int], None]]:
    """Open a span around a fetch of rows; yield a function that takes the number found."""
    tracer = _tracer()
    if tracer is None:
        yield lambda rows: None
        return
    with tracer.start_as_current_span(
        f"fetch {pipeline}",
        attributes={_PIPELINE: pipeline},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield lambda rows: span.set_attribute("nonet.rows", rows)
        except Exception as error:
            _fail(span, type(error).__qualname__, "", "", ())
            raise


def continue_trace(trace: str) -> None:
    """Make a span of another process the parent of new spans in the current asyncio task."""
    if trace and _tracer() is not None:
        from opentelemetry import context

        context.attach(_context_of(trace))


def current_ids() -> Mapping[str, str]:
    """``trace_id`` and ``span_id`` for a log line; empty without a span."""
    if _tracer() is None:
        return {}
    from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

    here = get_current_span().get_span_context()
    if not here.is_valid:
        return {}
    return {"trace_id": format_trace_id(here.trace_id), "span_id": format_span_id(here.span_id)}


def _attributes(operation: str) -> dict[str, str]:
    kinds = dict.fromkeys(("messaging.operation.type", "messaging.operation.name"), operation)
    return {"messaging.system": "nonet", **kinds}


def _context_of(trace: str) -> Context:
    """Parse a trace context from `current_trace`; any other text gives an empty context."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers = zip(("traceparent", "tracestate"), trace.split("\n"), strict=False)
    carrier = {name: value for name, value in headers if len(value) <= _MOST_HEADER}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _fail(span: Span, kind: str, text: str, traceback: str, secrets: Sequence[str]) -> None:
    from opentelemetry.trace import StatusCode

    message = without_secrets(text[:_MOST_TEXT], secrets)
    span.set_status(StatusCode.ERROR, message.partition("\n")[0] or None)
    span.set_attribute("error.type", kind)
    details = {"exception.type": kind}
    if message:
        details["exception.message"] = message
    if traceback:
        details["exception.stacktrace"] = without_secrets(traceback, secrets)
    span.add_event("exception", details)


# ---- daemons -------------------------------------------------------------------------------------


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
        shut_down = _set_up(service, about)
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


def _set_up(service: str, about: Mapping[str, str]) -> Callable[[], None]:
    """Set up a provider; return the function that shuts it down."""
    from opentelemetry import trace
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporters = [make() for make in load_exporters()]
    # The variables come last, because they take precedence.
    ours = {"service.name": service, **{f"nonet.{name}": value for name, value in about.items()}}
    resource = Resource(ours).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=Resource.create().merge(resource), shutdown_on_exit=False)
    for exporter in exporters:
        for cls in type(exporter).__mro__:
            logging.getLogger(cls.__module__).addFilter(_OnceAMinute())
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider.shutdown


class _OnceAMinute(logging.Filter):
    """Lets one record a minute pass: an exporter logs each batch that it cannot send."""

    _next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if is_due := now >= self._next:
            self._next = now + 60
        return is_due
