"""Spans of deliveries, in a simulated world with the SDK's exporter in memory."""

from dataclasses import replace
from functools import partial

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bridge.loop.tests.test_histories import SMALL, WINDOW_MS, World
from bridge.observe.tracing import make_spans
from bridge.testing.timer_world import TIMERS

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
SENT = (f"00-{TRACE:032x}-{SPAN:016x}-01".encode(), b"vendor=1", b"user=7")


def traced_world() -> tuple[World, InMemorySpanExporter]:
    world, exporter = World(replace(SMALL, receipts="all")), InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    world.bridge.metrics.spans = partial(make_spans, provider.get_tracer("test"))
    return world, exporter


def test_a_delivery_links_to_the_span_of_its_sender_and_keeps_its_headers() -> None:
    world, exporter = traced_world()
    headers = list(zip(("traceparent", "tracestate", "baggage"), SENT, strict=True))
    sent = world.send(delay_ms=3 * WINDOW_MS, extra=headers)
    world.bridge.run(2 * WINDOW_MS)
    assert exporter.get_finished_spans() == ()
    world.kafka.timeline.advance(2 * WINDOW_MS)  # while nothing runs
    world.bridge.run(100)
    (span,) = exporter.get_finished_spans()
    (delivered,) = world.kafka.read("orders")
    told = {name: (value or b"").decode() for name, value in delivered.headers}
    assert delivered.headers[:3] == headers
    assert (span.name, span.kind.name, span.parent) == ("send orders", "PRODUCER", None)
    (link,) = span.links
    assert (link.context.trace_id, link.context.span_id) == (TRACE, SPAN)
    assert link.context.trace_state.get("vendor") == "1"
    late_ms = int(told["timer-released-ms"]) - int(told["timer-deliver-ms"])
    assert late_ms >= WINDOW_MS
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "timer_bridge.origin": f"{TIMERS}/0/{sent.offset}",
        "timer_bridge.lateness_ms": late_ms,
        "timer_bridge.rolls": int(told["timer-rolls"]),
    }
    assert int(told["timer-rolls"]) > 0
    assert span.start_time == int(told["timer-released-ms"]) * 1_000_000
    assert (span.end_time or 0) >= span.start_time


def test_only_sampled_requests_that_are_delivered_have_spans() -> None:
    world, exporter = traced_world()
    parent = SENT[0]
    for traceparent in (None, b"", b"\xff", b"00-0-0-01", parent[:-1] + b"0", b"9" * 100_000):
        world.send(delay_ms=0, extra=[("traceparent", traceparent)])
    world.send(delay_ms=0)
    world.send("gone", delay_ms=500, id_="a", extra=[("traceparent", parent)])
    world.kafka.produce(TIMERS, b"late", headers=[("traceparent", parent), ("timer-topic", b"orders")])
    world.cancel("a")
    world.bridge.run(1000)
    assert len(world.delivered()) == 7
    assert exporter.get_finished_spans() == ()
