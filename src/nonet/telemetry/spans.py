"""Spans of submissions, attempts and rows, made with OpenTelemetry.

`nonet.telemetry.tracing` imports this module once the process collects spans, so that the others
do without the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nonet.base.errors import AdmissionRejected, BrokerFullError, ServerUnreachableError
from nonet.telemetry.masking import without_secrets

# Names of the messaging conventions of OpenTelemetry 1.30, and Nonet's own names.
_DESTINATION = "messaging.destination.name"
_MESSAGE_ID = "messaging.message.id"
_TASK = "nonet.task"
_PIPELINE = "nonet.pipeline"

# Longest error text in a span.
_MOST_TEXT = 4096
# Longest ``traceparent`` and ``tracestate`` in an envelope: a longer one of a vendor is left out.
_MOST_HEADER = 512
_FAILURES = ("retry", "crash", "dead", "failed", "dying")
# Errors that name only servers and ceilings; the text of any other may quote arguments.
_SAFE_ERRORS = (AdmissionRejected, BrokerFullError, ServerUnreachableError)

_PROPAGATOR = TraceContextTextMapPropagator()


class SpanMaker:
    """Opens the spans of this process; `nonet.telemetry.tracing` documents the methods.

    Args:
        tracer: makes them.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def sending(self) -> Iterator[str]:
        """Open a producer span around a submission; yield its context."""
        with self._tracer.start_as_current_span(
            "send",
            kind=SpanKind.PRODUCER,
            attributes=_attributes("send"),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield self.current()
            except BaseException as error:
                text = str(error) if isinstance(error, _SAFE_ERRORS) else ""
                _fail(span, type(error).__qualname__, text, "", ())
                raise

    def describe_sent(self, sent: Sequence[Any]) -> None:
        """Add the attributes of the submitted tasks to the current span, as far as they agree."""
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

    def current(self) -> str:
        """Return the W3C context of the current span."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        parent, state = carrier.get("traceparent", ""), carrier.get("tracestate", "")
        return f"{parent}\n{state}" if 0 < len(state) <= _MOST_HEADER else parent

    def start_attempt(
        self, task: str, id: str, stream: str, attempt: int, trace: str
    ) -> AttemptSpan:
        """Start the span of an attempt, with a link to the trace of its submission."""
        sent_by = get_current_span(_context_of(trace)).get_span_context()
        return self._start(
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

    def start_row(self, pipeline: str, key: object) -> AttemptSpan:
        """Start the span of a row."""
        about = {_PIPELINE: pipeline, "nonet.row": str(key)}
        return self._start(f"process {pipeline}", attributes=about)

    def _start(self, name: str, **options: Any) -> AttemptSpan:
        """Start a span in a trace of its own, and make it current in this asyncio task."""
        span = self._tracer.start_span(name, context=context.Context(), **options)
        context.attach(set_span_in_context(span))
        return AttemptSpan(span)

    @contextmanager
    def fetching(self, pipeline: str) -> Iterator[Callable[[int], None]]:
        """Open a span around a fetch of rows; yield a function that takes the number found."""
        with self._tracer.start_as_current_span(
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

    def follow(self, trace: str) -> None:
        """Make a span of another process the parent of new spans in the current asyncio task."""
        context.attach(_context_of(trace))

    def ids(self) -> Mapping[str, str]:
        """Return the ids of the current span, for a log line."""
        here = get_current_span().get_span_context()
        if not here.is_valid:
            return {}
        return {"trace_id": format_trace_id(here.trace_id), "span_id": format_span_id(here.span_id)}


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


def _attributes(operation: str) -> dict[str, str]:
    kinds = dict.fromkeys(("messaging.operation.type", "messaging.operation.name"), operation)
    return {"messaging.system": "nonet", **kinds}


def _context_of(trace: str) -> context.Context:
    """Parse a trace context from `current_trace`; any other text gives an empty context."""
    headers = zip(("traceparent", "tracestate"), trace.split("\n"), strict=False)
    carrier = {name: value for name, value in headers if len(value) <= _MOST_HEADER}
    return _PROPAGATOR.extract(carrier, context.Context())


def _fail(span: Span, kind: str, text: str, traceback: str, secrets: Sequence[str]) -> None:
    message = without_secrets(text[:_MOST_TEXT], secrets)
    span.set_status(StatusCode.ERROR, message.partition("\n")[0] or None)
    span.set_attribute("error.type", kind)
    details = {"exception.type": kind}
    if message:
        details["exception.message"] = message
    if traceback:
        details["exception.stacktrace"] = without_secrets(traceback, secrets)
    span.add_event("exception", details)
