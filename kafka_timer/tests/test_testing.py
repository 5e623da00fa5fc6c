"""Containers for tests of users, without a Docker engine. With one: integration_tests/product/test_testcontainers.py"""

from pathlib import Path

import pytest

from kafka_timer import BridgeError
from kafka_timer.testing import ApacheKafkaContainer, TimerBridgeContainer


def test_without_a_docker_engine_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    for make in (ApacheKafkaContainer, lambda: TimerBridgeContainer("kafka:9092")):
        with pytest.raises(BridgeError, match=r"^no Docker engine answers: .*; start one, or set DOCKER_HOST$"):
            make()
