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
from typing import TYPE_CHECKING, Any, Protocol

from nonet.base.errors import AdmissionRejected, BrokerFullError, ServerUnreachableError
from nonet.telemetry.masking import without_secrets
from nonet.telemetry.middleware import is_middleware_used, within_middleware

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger(__name__)

# Names of the messaging conventions of OpenTelemetry 1.30, and Nonet's own names.
_SYSTEM = "messaging.system"
_OPERATION_TYPE = "messaging.operation.type"
_OPERATION_NAME = "messaging.operation.name"
_DESTINATION = "messaging.destination.name"
_MESSAGE_ID = "messaging.message.id"
_BATCH = "messaging.batch.message_count"
_ERROR_TYPE = "error.type"
_TASK = "nonet.task"
_ATTEMPT = "nonet.attempt"
_OUTCOME = "nonet.outcome"
_PIPELINE = "nonet.pipeline"
_ROW = "nonet.row"
_ROWS = "nonet.rows"

# Longest error text in a span.
_MOST_TEXT = 4096
# Longest ``traceparent`` and ``tracestate`` in an envelope, so that vendor entries do not dominate
# a message. As W3C recommends, entries above the second length are dropped first.
_MOST_HEADER, _LONG_ENTRY = 512, 128
# How long the last spans may delay the end of a process, and of a child process.
FLUSH_SECONDS, CHILD_FLUSH_SECONDS = 2.0, 1.0
_LOG_SECONDS = 60.0
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


class Sent(Protocol):
    """A submitted task."""

    @property
    def id(self) -> str:
        """Task id."""
        ...

    @property
    def name(self) -> str:
        """Full name of the class."""
        ...

    @property
    def stream(self) -> str:
        """Priority and size, ``normal:small``."""
        ...


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


def describe_sent(sent: Sequence[Sent]) -> None:
    """Add the attributes of the submitted tasks to the span of `sending`, as far as they agree."""
    from opentelemetry.trace import get_current_span

    span = get_current_span()
    tasks, streams = {item.name for item in sent}, {item.stream for item in sent}
    if len(sent) == 1:
        span.set_attribute(_MESSAGE_ID, sent[0].id)
    else:
        span.set_attribute(_BATCH, len(sent))
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
    parent, state = carrier.get("traceparent", ""), _shortened(carrier.get("tracestate", ""))
    return f"{parent}\n{state}" if state else parent


def _shortened(tracestate: str) -> str:
    """The first entries of a tracestate that fit into an envelope."""
    if len(tracestate) <= _MOST_HEADER:
        return tracestate
    entries = [entry for entry in tracestate.split(",") if len(entry) <= _LONG_ENTRY]
    while len(",".join(entries)) > _MOST_HEADER:
        entries.pop()
    return ",".join(entries)


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
        self._span.set_attribute(_OUTCOME, outcome)
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
    from opentelemetry import context
    from opentelemetry.trace import Link, SpanKind, get_current_span, set_span_in_context

    sent_by = get_current_span(_context_of(trace)).get_span_context()
    span = tracer.start_span(
        f"process {task}",
        context=context.Context(),
        kind=SpanKind.CONSUMER,
        attributes={
            **_attributes("process"),
            _TASK: task,
            _MESSAGE_ID: id,
            _DESTINATION: stream,
            _ATTEMPT: attempt,
        },
        links=[Link(sent_by)] if sent_by.is_valid else None,
    )
    context.attach(set_span_in_context(span))
    return AttemptSpan(span)


def start_row(pipeline: str, key: object) -> AttemptSpan | None:
    """Start the span of a row, and make it current in the asyncio task that processes the row.

    Returns:
        None if this process collects no spans.
    """
    tracer = _tracer()
    if tracer is None:
        return None
    from opentelemetry import context
    from opentelemetry.trace import set_span_in_context

    span = tracer.start_span(
        f"process {pipeline}",
        context=context.Context(),
        attributes={_PIPELINE: pipeline, _ROW: str(key)},
    )
    context.attach(set_span_in_context(span))
    return AttemptSpan(span)


@contextmanager
def fetching(pipeline: str) -> Iterator[Callable[[int], None]]:
    """Open a span around a fetch of rows; yield what notes how many were found."""
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
            yield lambda rows: span.set_attribute(_ROWS, rows)
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
    return {_SYSTEM: "nonet", _OPERATION_TYPE: operation, _OPERATION_NAME: operation}


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
    span.set_attribute(_ERROR_TYPE, kind)
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
    service: str,
    about: Mapping[str, str],
    *,
    flush_seconds: float = FLUSH_SECONDS,
    log_level: int = logging.WARNING,
) -> AsyncIterator[None]:
    """Export the spans of this process during the block, if the standard variables ask for it.

    If the collector does not answer, spans are lost, a log line appears each minute, and the end of
    the block takes up to `flush_seconds` longer.

    Args:
        service: default of ``service.name``.
        about: further attributes of the resource, ``nonet.…``.
        flush_seconds: how long the last spans may delay the end of the block.
        log_level: of log lines about traces that are not exported.
    """
    if not are_traces_wanted():
        yield
        return
    shut_down = None
    try:
        shut_down = _set_up(service, about, log_level)
    except ImportError as error:
        logger.log(
            log_level,
            "traces not exported, although OTEL_… variables ask for it: %s; install nonet[otel]",
            error,
        )
    except Exception as error:  # a bad variable must not keep a daemon from its work
        logger.log(log_level, "traces not exported: error=%s: %s", type(error).__name__, error)
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


def _set_up(service: str, about: Mapping[str, str], log_level: int) -> Callable[[], None]:
    """Set up a provider; return the function that shuts it down."""
    from opentelemetry import trace
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporters = [make() for make in load_exporters()]
    # The library logs each failure; `_with_summaries` logs them once a minute instead.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    # The variables come last, because they take precedence.
    ours = {"service.name": service, **{f"nonet.{name}": value for name, value in about.items()}}
    resource = Resource(ours).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=Resource.create().merge(resource), shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(_with_summaries(exporter, log_level)))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _with_summaries(exporter: SpanExporter, log_level: int) -> SpanExporter:
    """Wrap an exporter: log its failures at most once a minute, with the number of lost spans."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Exporter(SpanExporter):
        lost, logged_at = 0, -_LOG_SECONDS

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            why = "the collector refused them"
            try:
                if (result := exporter.export(spans)) is SpanExportResult.SUCCESS:
                    return result
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            self.lost += len(spans)
            if time.monotonic() - self.logged_at >= _LOG_SECONDS:
                self.logged_at = time.monotonic()
                text = "spans were not exported: number=%d error=%s"
                logger.log(log_level, text, self.lost, why)
                self.lost = 0
            return SpanExportResult.FAILURE

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return exporter.force_flush(timeout_millis)

    return Exporter()
