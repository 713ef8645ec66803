"""Traces: which spans there are, how they belong together, and that no collector holds up work."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import records
from acceptance.site import Site, failure, run, stop, working
from acceptance.traced_tasks import Fails, Inside, Starts, Step
from opentelemetry import context, trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
)
from pydantic import SecretStr
from waits import WAIT_SECONDS, until

from nonet import InvalidArgumentsError
from nonet.base.errors import ServerUnreachableError
from nonet.base.messages.message import decode_envelope
from nonet.telemetry import tracing
from nonet.telemetry.spans import SpanMaker

TASKS = "acceptance.traced_tasks"
Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    """What an application sets up, for this test alone."""
    made = TracerProvider()
    monkeypatch.setattr(tracing, "_found", SpanMaker(made.get_tracer("nonet")))
    return made


@pytest.fixture
def spans(provider: TracerProvider) -> Spans:
    """The spans that have ended, in the order in which they began."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return lambda: sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


async def test_an_attempt_is_linked_to_its_submission(site: Site, spans: Spans) -> None:
    """Producer and consumer are spans by the conventions, in traces of their own."""
    async with working(site.app()) as app:
        handle = await app.submit(Step(7))
        await handle.result(timeout=WAIT_SECONDS)
        await until(lambda: len(spans()) == 2, "both have ended")
    sent, processed = spans()
    assert (sent.name, sent.kind) == ("send traced_tasks:Step", SpanKind.PRODUCER)
    assert (processed.name, processed.kind) == ("process traced_tasks:Step", SpanKind.CONSUMER)
    common = {
        "messaging.system": "nonet",
        "messaging.destination.name": "normal:small",
        "messaging.message.id": str(handle),
        "nonet.task": "traced_tasks:Step",
    }
    operation = "messaging.operation.type", "messaging.operation.name"
    assert sent.attributes == {**common, **dict.fromkeys(operation, "send")}
    assert processed.attributes == {
        **common,
        **dict.fromkeys(operation, "process"),
        "nonet.attempt": 1,
        "nonet.outcome": "done",
    }
    assert processed.parent is None
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    assert processed.context.trace_id != sent.context.trace_id


async def test_what_a_task_submits_belongs_to_its_attempt(site: Site, spans: Spans) -> None:
    """The producer span of a child is a child of the attempt; a later one is linked to it."""
    async with working(site.app()) as app:
        await run(app, Starts())
        await until(lambda: len(spans()) == 5, "all have ended")
    found = spans()
    (parent,) = (span for span in found if span.name == "process traced_tasks:Starts")
    (sent,) = (span for span in found if span.name == "send traced_tasks:Step")
    assert sent.parent is not None
    assert sent.parent.span_id == parent.context.span_id
    steps = [span for span in found if span.name == "process traced_tasks:Step"]
    assert {link.context.span_id for span in steps for link in span.links} == {
        sent.context.span_id,
        parent.context.span_id,
    }


async def test_failures_show_their_error_and_no_secret(site: Site, spans: Spans) -> None:
    """A retry and a dead task are errors, with type and masked text; arguments are nowhere."""
    async with working(site.app()) as app:
        handle = await app.submit(Fails(SecretStr("hunter-2"), 9))
        await failure(app, handle)
        await until(lambda: len(spans()) == 3, "both attempts have ended")
    _, first, second = spans()
    for span, outcome in ((first, "retry"), (second, "dead")):
        assert span.attributes is not None
        assert span.attributes["nonet.outcome"] == outcome
        assert span.attributes["error.type"] == "ValueError"
        assert (span.status.status_code, span.status.description) == (
            StatusCode.ERROR,
            "*** is wrong",
        )
        (event,) = span.events
        assert event.attributes is not None
        assert event.attributes["exception.type"] == "ValueError"
        assert event.attributes["exception.message"] == "*** is wrong\nand more"
        assert "hunter" not in span.to_json()
    assert first.links[0].context == second.links[0].context


@pytest.mark.parametrize("entries", [1, 9])
def test_a_long_tracestate_is_left_out(provider: TracerProvider, entries: int) -> None:
    """Messages stay small, and the link is kept."""
    here = TraceState([(f"vendor{number}", "v" * 200) for number in range(entries)])
    above = SpanContext(0x1234, 0x56, True, TraceFlags(TraceFlags.SAMPLED), here)
    token = context.attach(trace.set_span_in_context(NonRecordingSpan(above)))
    try:
        parent, _, state = tracing.current_trace().partition("\n")
    finally:
        context.detach(token)
    assert parent.split("-")[1] == f"{0x1234:032x}"
    assert state == (here.to_header() if entries == 1 else "")


async def test_a_batch_is_one_span(site: Site, spans: Spans) -> None:
    """Tasks that are submitted together share a producer; what was refused is an error.

    Its span has no text of an error that quotes arguments, and an absent server no password.
    """
    async with site.app() as app:
        handles = await app.submit_many([Step(1), Step(2)])
        with pytest.raises(InvalidArgumentsError, match="hunter-2"):
            await app.submit(Step(1), labels={"size": "hunter-2"})
        await app.cancel(handles)
    with pytest.raises(ServerUnreachableError), tracing.sending():
        raise ServerUnreachableError("redis://:s3cret@db:6379 does not answer")
    sent, refused, absent = spans()
    assert sent.attributes is not None and refused.attributes is not None
    assert sent.attributes["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in sent.attributes
    assert refused.attributes["error.type"] == "InvalidArgumentsError"
    assert refused.status.status_code is StatusCode.ERROR
    assert "hunter" not in refused.to_json()
    assert absent.status.description == "redis://:***@db:6379 does not answer"


async def test_without_a_provider_nothing_is_traced_and_nothing_travels(site: Site) -> None:
    """That OpenTelemetry can be imported does not make spans, and an envelope carries none."""
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    assert not tracing.are_spans_collected()
    assert tracing.current_trace() == ""
    async with site.app() as app:
        handle = await app.submit(Step(1))
        data = await records.hget(app.broker.client, site.key(f"t:{handle}"), "envelope")
        assert decode_envelope(data).trace == ""
        await handle.cancel()


class Collector:
    """Takes spans over OTLP/HTTP, as a collector would.

    Attributes:
        url: for ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        services: whose spans it was given.
    """

    def __init__(self) -> None:
        self._spans: list[SentSpan] = []
        self.services: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(ExportTraceServiceRequest.FromString(data))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Keep the spans of a request."""
        for item in request.resource_spans:
            resource = {pair.key: pair.value.string_value for pair in item.resource.attributes}
            self.services.add(resource["service.name"])
            self._spans += [span for scope in item.scope_spans for span in scope.spans]

    def span(self, name: str) -> SentSpan | None:
        """The span of this name, if it was given one."""
        return next((span for span in self._spans if span.name == name), None)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve while the block runs."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


async def test_a_worker_exports_as_the_standard_variables_say(site: Site) -> None:
    """Spans of a worker and of a child process reach a collector, and belong together."""
    collector = Collector()
    with collector.serving():
        worker = site.worker(
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_BSP_SCHEDULE_DELAY="100",
            NONET_LOG_FORMAT="json",
        )
        async with site.app() as app:
            handle = await app.submit(Inside())
            await handle.result(timeout=WAIT_SECONDS)
        await site.all_ended()
        attempt = await until(lambda: collector.span("process traced_tasks:Inside"), "it is there")
        inside = await until(lambda: collector.span("inside"), "the author's is there")
        sent = await until(lambda: collector.span("send traced_tasks:Step"), "it is there")
        assert stop(worker) == [0]
        step = collector.span("process traced_tasks:Step")
    assert step is not None, "what was left is exported at the end"
    assert inside.parent_span_id == attempt.span_id
    assert sent.parent_span_id == inside.span_id
    assert [link.span_id for link in step.links] == [sent.span_id]
    assert collector.services == {"nonet-worker"}
    lines = map(json.loads, worker.log.splitlines())
    (said,) = (line for line in lines if line["event"] == "in a span")
    assert (said["trace_id"], said["span_id"]) == (attempt.trace_id.hex(), inside.span_id.hex())


async def test_a_scheduler_exports_what_it_fires(site: Site) -> None:
    """The occurrence of a periodic entry is a submission like others."""
    collector = Collector()
    with collector.serving():
        scheduler = site.scheduler(
            OTEL_TRACES_EXPORTER="otlp",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_BSP_SCHEDULE_DELAY="100",
            OTEL_SERVICE_NAME="clockwork",
        )
        fired = await until(lambda: collector.span("send traced_tasks:Ticks"), "it is there")
        assert stop(scheduler) == [0]
    site.redis.flushall()  # of what was fired and has no worker
    assert fired.kind == SentSpan.SPAN_KIND_PRODUCER
    assert collector.services == {"clockwork"}


async def test_a_silent_collector_holds_up_no_worker(site: Site) -> None:
    """A worker whose collector takes connections and never answers drains as others do."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        worker = site.worker(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}",
            OTEL_EXPORTER_OTLP_TIMEOUT="600",
            OTEL_BSP_SCHEDULE_DELAY="50",
        )
        async with site.app() as app:
            for number in range(3):
                await run(app, Step(number))
        assert stop(worker) == [0]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "pigeon"}, "'pigeon' is not installed; install nonet[otel]"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, "Failed to export spans"),
    ],
)
async def test_an_exporter_that_fails_says_so_once(
    site: Site, variables: dict[str, str], said: str
) -> None:
    """One line says why there are no traces, and the worker works."""
    worker = site.worker(
        **variables, OTEL_EXPORTER_OTLP_TIMEOUT="0.1", OTEL_BSP_SCHEDULE_DELAY="50"
    )
    async with site.app() as app:
        for number in range(3):
            await run(app, Step(number))
        await until(lambda: said in worker.log, "it is said")
        await run(app, Step(4))
    assert stop(worker) == [0]
    assert worker.log.count(said) == 1
