"""Set up the export of spans in a daemon, with the SDK of OpenTelemetry."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from opentelemetry import trace
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter


def set_up(
    exporters: Sequence[SpanExporter], service: str, about: Mapping[str, str]
) -> Callable[[], None]:
    """Make the provider of this process; return the function that shuts it down.

    Args:
        service, about: as of `nonet.telemetry.tracing.exporting_traces`.
    """
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
