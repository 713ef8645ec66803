"""Render the samples of this process for ``/metrics``, in the formats of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from nonet.telemetry.metrics import METRICS, Histogram, Metric, Samples

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_FAMILIES: dict[str, type[_Family]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Exposition:
    """The metrics of one daemon; the default registry of the process is not used.

    Args:
        read: returns all samples; called in a thread for each scrape.

    Example:
        >>> shown = Exposition(lambda: [("nonet_ready", (), 1.0)])
        >>> b"nonet_ready 1.0" in shown.render("")[0]
        True
    """

    def __init__(self, read: Callable[[], Samples]) -> None:
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._registry.register(_Nonet(read))

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return content and content type.

        Args:
            accept: the ``Accept`` header, which may ask for OpenMetrics.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Nonet(Collector):
    """Our metrics as a collector of the library."""

    def __init__(self, read: Callable[[], Samples]) -> None:
        self._read = read

    def describe(self) -> Iterator[_Family]:
        """Describe nothing: the daemon may not have started when this is registered."""
        return iter(())

    def collect(self) -> Iterator[_Family]:
        families: dict[str, _Family] = {}
        for name, labels, value in self._read():
            family = families.get(name)
            if family is None:
                family = families[name] = _family(METRICS[name])
            if isinstance(family, HistogramMetricFamily):
                assert isinstance(value, Histogram), name
                total, counts = value.sum, value.counts[:]
                ends = [*map(str, map(float, value.bounds)), "+Inf"]
                sums = map(float, accumulate(counts))
                family.add_metric(labels, list(zip(ends, sums, strict=True)), total)
            else:
                assert not isinstance(value, Histogram), name
                family.add_metric(labels, value)
        yield from families.values()


def _family(metric: Metric) -> _Family:
    name = metric.name.removesuffix("_total")  # the library appends it
    return _FAMILIES[metric.kind](name, metric.help, labels=metric.labels)
