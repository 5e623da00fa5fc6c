"""Spans of `timer-bridge run` reach a collector by OTLP; without one, deliveries go on and a stop is quick."""

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names, read
from kafka_timer import TimerProducer
from scripts.common.processes import BridgeProcess

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STOP_S = 10


class Collector(BaseHTTPRequestHandler):
    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.mark.broker
@pytest.mark.parametrize("has_collector", [True, False])
def test_deliveries_have_spans(
    kafka: Broker, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_collector: bool
) -> None:
    names.create_target(kafka)
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        if has_collector:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        else:
            server.server_close()
        bridge = BridgeProcess(tmp_path, kafka.bootstrap_servers, [*names.arguments, "--tracing"])
        bridge.start()
        with TimerProducer({"bootstrap.servers": kafka.bootstrap_servers}, timer_topic=names.timers) as timers:
            sent = timers.schedule(names.target, b"v", delay="100ms", headers={"traceparent": PARENT})
        (delivered,) = read(kafka, names.target, 1)
        began_s = time.monotonic()
        bridge.stop()
        assert time.monotonic() - began_s < STOP_S
        if has_collector:
            server.shutdown()
    assert dict(delivered.headers())["traceparent"] == PARENT.encode()
    exported = [each for body in Collector.bodies for each in ExportTraceServiceRequest.FromString(body).resource_spans]
    Collector.bodies.clear()
    spans = [span for resource in exported for scope in resource.scope_spans for span in scope.spans]
    assert [(span.name, span.links[0].span_id.hex()) for span in spans] == [
        (f"send {names.target}", "b7ad6b7169203331")
    ] * has_collector
    for resource in exported:
        about = {each.key: each.value.string_value for each in resource.resource.attributes}
        assert about["service.name"] == "timer-bridge"
        (origin,) = (each.value.string_value for each in spans[0].attributes if each.key == "timer_bridge.origin")
        assert origin == "/".join(map(str, sent.result(0)))
