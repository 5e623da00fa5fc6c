"""What an audit tells Prometheus: in a file that is whole, or pushed; and that it never costs the verdict."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from schemas.tables import AuditClass
from spark_jobs.audit_run.arguments import AuditArguments, parse
from spark_jobs.report.metrics import METRICS, AuditMetrics
from spark_jobs.report.summary import AuditVerdict, LatenessSummary

AS_OF_MS = 1_700_000_000_000


def arguments(out: Path, *more: str) -> AuditArguments:
    (found,) = parse(["--bootstrap-servers", "b:1", "--out", str(out), *more], {})
    return found


def verdict(out: Path, **counts: int) -> AuditVerdict:
    every = {name.value: counts.get(name.column, 0) for name in AuditClass}
    lateness, total = LatenessSummary(0, 0, 0, 0), sum(every.values())
    gone = ("orders/0: 3 records are gone",)
    return AuditVerdict(out, AS_OF_MS, every, lateness, (), 0, total, (), gone, open_timers=counts.get("pending", 0))


def samples(text: str) -> dict[str, float]:
    """Return the values by name without prefix, and for a class, its name."""
    told = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels["timer_topic"] for sample in told} == {"timer.requests"}
    return {sample.labels.get("class", sample.name.removeprefix("timer_audit_")): sample.value for sample in told}


def test_an_audit_writes_its_metrics_over_those_of_the_last_one(tmp_path: Path) -> None:
    file = tmp_path / "timer-audit.prom"
    for missing in (7, 2):
        found = verdict(tmp_path, missing=missing, delivered=5, pending=3)
        AuditMetrics(arguments(tmp_path, "--metrics-file", str(file))).audited(found, 1)
    told = samples(file.read_text())
    assert told.keys() >= METRICS.keys() - {"faults"}
    assert told.items() >= {"missing": 2, "early": 0, "requests": 10, "open_timers": 3, "gaps": 1}.items()
    assert told["as_of_timestamp_seconds"] == AS_OF_MS / 1000
    assert "delivered" not in told, "no fault"
    assert [path.name for path in tmp_path.iterdir()] == [file.name], "no draft is left"


def test_a_stream_adds_up_what_its_batches_have_told(tmp_path: Path) -> None:
    file = tmp_path / "timer-audit.prom"
    metrics = AuditMetrics(arguments(tmp_path, "--metrics-file", str(file), "--stream", "--skew-ms", "500"))
    nothing: dict[str, Any] = {name.column: 0 for name in AuditClass} | {"rows": 4, "open": 9, "gaps": []}
    metrics.batch(nothing | {"early": 1, "as_of_ms": AS_OF_MS, "written_ms": AS_OF_MS + 900, "gaps": ["a hole"]})
    metrics.batch(nothing | {"early": 2, "open": 8, "as_of_ms": AS_OF_MS, "written_ms": AS_OF_MS + 2_500})
    told = samples(file.read_text())
    wanted = {"early": 3, "requests": 8, "open_timers": 8, "gaps": 1, "duration_seconds": 2}
    assert told.items() >= wanted.items()


def test_metrics_are_pushed_to_a_group_of_the_timer_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[tuple[Any, ...]] = []
    monkeypatch.setattr("spark_jobs.report.metrics.push_to_gateway", lambda *given: pushed.append(given))
    AuditMetrics(arguments(tmp_path, "--pushgateway", "push:9091")).audited(verdict(tmp_path, early=1), 2.5)
    ((gateway, job, registry, group),) = pushed
    assert (gateway, job, group) == ("push:9091", "timer-audit", {"timer_topic": "timer.requests"})
    assert samples(generate_latest(registry).decode()).items() >= {"early": 1, "duration_seconds": 2.5}.items()


def test_what_cannot_be_written_is_told_and_stops_no_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = tmp_path / "none" / "timer-audit.prom"
    flags = ["--metrics-file", str(nowhere), "--pushgateway", "127.0.0.1:1"]
    AuditMetrics(arguments(tmp_path, *flags)).audited(verdict(tmp_path), 1)
    file, push = capsys.readouterr().err.splitlines()
    assert f"--metrics-file {nowhere}: metrics could not be written" in file
    assert "--pushgateway 127.0.0.1:1: metrics could not be written" in push
