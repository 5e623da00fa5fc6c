"""Tests of the page about the engines."""

import json
from pathlib import Path

import pytest

from scripts.bench.report import engines
from scripts.bench.report.tests.sample_results import made_up


def test_the_page_has_each_figure_of_both_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, pending = tmp_path / "results.json", tmp_path / "pending.json"
    results.write_text(json.dumps(made_up((1.0,))))
    figures = dict.fromkeys(engines.STORE_ROWS, 12.0) | {"timers": 1000.0}
    pending.write_text(json.dumps({"wheel": figures, "rocksdb": figures | {"ready_after_kill_s": 77.0}}))
    monkeypatch.setattr(engines, "RESULTS", results)
    monkeypatch.setattr(engines, "PENDING", pending)
    assert engines.main([str(tmp_path / "engines.md")]) == 0
    page = (tmp_path / "engines.md").read_text()
    assert "| start after kill -9, s | 12 | 77 |" in page
    assert "| drain of a burst, messages/s | 100,000 | 90,000 |" in page
    assert (tmp_path / "engines" / "store.svg").read_text().count("</svg>") == 1


def test_without_measurements_the_page_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.json"
    results.write_text(json.dumps(made_up((1.0,))))
    monkeypatch.setattr(engines, "RESULTS", results)
    monkeypatch.setattr(engines, "PENDING", tmp_path / "none.json")
    target = tmp_path / "engines.md"
    target.write_text("as it was")
    assert engines.main([str(target)]) == 0
    assert target.read_text() == "as it was"
