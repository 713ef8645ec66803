"""Traces: a span of each submission and of each attempt, where somebody collects them.

An application decides that with an OpenTelemetry SDK of its own, a daemon by the standard variables
(`exporting_traces`). Elsewhere nothing of OpenTelemetry is imported here, and a task costs a look.
In spans are names, ids and outcomes, never arguments.
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

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger(__name__)

# The messaging conventions of OpenTelemetry, as they were in version 1.30; and names of our own.
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

# Of the error of an attempt that is put into its span.
_MOST_TEXT = 4096
# Of each of the two headers in an envelope, and which entries of a longer tracestate are dropped
# first, as W3C has it: what vendors add to a trace must not outweigh a message.
_MOST_HEADER, _LONG_ENTRY = 512, 128
# How long the last spans may hold up the end of a process, and of a child process.
FLUSH_SECONDS, CHILD_FLUSH_SECONDS = 2.0, 1.0
_TELL_SECONDS = 60.0
_GROUP = "opentelemetry_traces_exporter"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_FAILURES = ("retry", "crash", "dead")
# Refusals whose text is of servers and ceilings; that of any other may quote arguments.
_TOLD = (AdmissionRejected, BrokerFullError, ServerUnreachableError)

_found: Tracer | None = None


def _tracer() -> Tracer | None:
    """What makes spans; None: nobody in this process collects them."""
    global _found
    if _found is None:
        # Whoever has set up a provider has imported it.
        api: Any = sys.modules.get("opentelemetry.trace")
        if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
            return None
        _found = api.get_tracer("nonet", version("nonet"))
    return _found


def are_spans_collected() -> bool:
    """Whether anybody in this process collects spans."""
    return _tracer() is not None


# ---- submissions ---------------------------------------------------------------------------------

_UNTRACED = nullcontext("")


class Sent(Protocol):
    """A task that is submitted."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def name(self) -> str:
        """Its class, in full."""
        ...

    @property
    def stream(self) -> str:
        """Priority and size, ``normal:small``."""
        ...


def sending() -> AbstractContextManager[str]:
    """A producer span around a submission; gives what its envelopes carry, empty if nothing.

    Example:
        with sending() as trace:
            made = [envelopes.prepare(task, trace=trace) for task in tasks]
            if trace:
                describe_sent(made)
            await broker.submit(made)
    """
    tracer = _tracer()
    return _UNTRACED if tracer is None else _sending(tracer)


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
            text = str(error) if isinstance(error, _TOLD) else ""
            _fail(span, type(error).__qualname__, text, "", ())
            raise


def describe_sent(sent: Sequence[Sent]) -> None:
    """Say in the span of `sending` what is submitted: the one task, or what many have in common."""
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
    """The W3C context of the current span, ``traceparent`` and maybe ``tracestate``, else empty."""
    if _tracer() is None:
        return ""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    parent, state = carrier.get("traceparent", ""), _shortened(carrier.get("tracestate", ""))
    return f"{parent}\n{state}" if state else parent


def _shortened(tracestate: str) -> str:
    """Its first entries, whole ones, as far as a message has room for them."""
    if len(tracestate) <= _MOST_HEADER:
        return tracestate
    entries = [entry for entry in tracestate.split(",") if len(entry) <= _LONG_ENTRY]
    while len(",".join(entries)) > _MOST_HEADER:
        entries.pop()
    return ",".join(entries)


# ---- attempts ------------------------------------------------------------------------------------


class AttemptSpan:
    """The consumer span of an attempt, from `start_attempt`."""

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
        """End it.

        Args:
            outcome: of the settlement, or ``lost``.
            error_type, error, traceback: of what it raised, as far as it may be shown.
            secrets: what is masked in them.
        """
        self._span.set_attribute(_OUTCOME, outcome)
        if error_type and outcome in _FAILURES:
            _fail(self._span, error_type, error, traceback, secrets)
        self._span.end()


def start_attempt(task: str, id: str, stream: str, attempt: int, trace: str) -> AttemptSpan | None:
    """Begin the span of an attempt, current in the asyncio task that is the attempt's own.

    A trace of its own, with a link to that of the submission: hours may lie between them, and a
    retry is another attempt at the same one.

    Args:
        trace: what the envelope carries.

    Returns:
        None where nobody collects spans.
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


def continue_trace(trace: str) -> None:
    """What the current asyncio task does belongs to a span of another process."""
    if trace and _tracer() is not None:
        from opentelemetry import context

        context.attach(_context_of(trace))


def current_ids() -> Mapping[str, str]:
    """``trace_id`` and ``span_id`` for a log line, or nothing."""
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
    """The context that `current_trace` gave; an empty one of anything else."""
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
    """Export the spans of this process while the block runs, if the standard variables ask for it.

    A collector that does not answer costs spans, a log line a minute and `flush_seconds`.

    Args:
        service: the ``service.name``, if the variables give none.
        about: more attributes of the resource, ``nonet.…``.
        flush_seconds: how long the last spans may hold up the end of the block.
        log_level: of what is said about traces that are not exported.
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
            "no traces are exported, although the environment asks for it (OTEL_…): %s; install "
            "nonet[otel]",
            error,
        )
    except Exception as error:  # a variable does not fit: that keeps no daemon from its work
        logger.log(log_level, "no traces are exported: %s: %s", type(error).__name__, error)
    try:
        yield
    finally:
        if shut_down is not None:
            # An export under way cannot be interrupted: a thread that does not hold the exit.
            ending = threading.Thread(target=shut_down, name="last spans", daemon=True)
            ending.start()
            ending.join(flush_seconds)


def load_exporters() -> list[Callable[[], SpanExporter]]:
    """What makes the exporters that the variables name.

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
    """Set up a provider; what ends it."""
    from opentelemetry import trace
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporters = [make() for make in load_exporters()]
    # It fails in its own words, and often: `_Exporter` says so in ours.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    # What the variables say comes last, and wins.
    ours = {"service.name": service, **{f"nonet.{name}": value for name, value in about.items()}}
    resource = Resource(ours).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=Resource.create().merge(resource), shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(_patient(exporter, log_level)))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _patient(exporter: SpanExporter, log_level: int) -> SpanExporter:
    """An exporter that says at most once a minute that it fails, and how many spans were lost."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Exporter(SpanExporter):
        lost, told_at = 0, -_TELL_SECONDS

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            why = "the collector did not take them"
            try:
                if (result := exporter.export(spans)) is SpanExportResult.SUCCESS:
                    return result
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            self.lost += len(spans)
            if time.monotonic() - self.told_at >= _TELL_SECONDS:
                self.told_at = time.monotonic()
                text = "traces: %d spans were not exported: %s"
                logger.log(log_level, text, self.lost, why)
                self.lost = 0
            return SpanExportResult.FAILURE

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return exporter.force_flush(timeout_millis)

    return Exporter()
