"""Spans of deliveries by OpenTelemetry, with the extra `tracing`.

    trace of the sender     send timer.requests  <---link---  trace of the bridge     send orders
                            (traceparent)                     lateness and rolls      released to committed

A delivery has a span if its request has a sampled `traceparent`. Its headers are unchanged, so a consumer continues the
sender's trace. Names follow the semantic conventions for messaging. The SDK reads the endpoint from OTEL_* variables
(opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, Tracer, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from bridge.partition.draft import Delivery, FrozenDraft
from kafka_timer.headers import ORIGIN

_CONTEXT = ("traceparent", "tracestate")
_NS_PER_MS = 1_000_000
_context_of = TraceContextTextMapPropagator().extract


def make_spans(tracer: Tracer, frozen: FrozenDraft, now_ms: int) -> None:
    """Make the spans of a committed transaction."""
    for body, record in zip(frozen.draft.bodies, frozen.records, strict=False):  # copies and receipts follow
        if body.plain or not isinstance(record, Delivery) or (sent := _sent_in(record)) is None:
            continue
        span = tracer.start_span(
            f"send {record.topic}",
            kind=SpanKind.PRODUCER,
            links=[sent],
            start_time=frozen.at_ms * _NS_PER_MS,
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": record.topic,
                "timer_bridge.origin": (dict(record.headers)[ORIGIN] or b"").decode(),
                "timer_bridge.lateness_ms": max(frozen.at_ms - body.due_ms, 0),
                "timer_bridge.rolls": body.rolls,
            },
        )
        span.end(now_ms * _NS_PER_MS)


def _sent_in(record: Delivery) -> Link | None:
    """Return a link to the span in which the request was sent, None without one or if it is not sampled."""
    headers = {name: value.decode("ascii", "replace") for name, value in record.headers if name in _CONTEXT and value}
    if "traceparent" not in headers:
        return None
    sent = get_current_span(_context_of(headers)).get_span_context()
    return Link(sent) if sent.is_valid and sent.trace_flags.sampled else None


@contextmanager
def exported_spans() -> Iterator[Callable[[FrozenDraft, int], None]]:
    """Export spans by OTLP over HTTP from a thread of the SDK. If the collector is too slow or away, spans are lost."""
    resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "timer-bridge")})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield partial(make_spans, provider.get_tracer("timer-bridge", version("kafka-timer-bridge")))
    finally:
        provider.shutdown()
