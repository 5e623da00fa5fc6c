"""The page of a made-up run: it finds by itself where the bridge loses, and leaves out what was not measured."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scripts.bench.report import page as bench_page
from scripts.bench.report.comparisons import comparisons
from scripts.bench.report.figures import FIGURES
from scripts.bench.report.results import read
from scripts.bench.report.tests.sample_results import made_up


def lines_under(heading: str, page: str) -> list[str]:
    return page.split(f"## {heading}\n")[1].split("\n## ")[0].strip().splitlines()


def test_a_lost_comparison_is_shown() -> None:
    lost = [c for c in comparisons(read(made_up())) if c.is_lost]
    assert [(c.what, c.mode) for c in lost] == 2 * [
        ("drain of a burst", "exactly once"),
        ("a burst, from its due time to its last", "exactly once"),
    ]
    assert {c.beside for c in lost} == {"RocketMQ, tick 1000 ms", "RocketMQ, tick 100 ms"}
    assert {(c.ours, c.theirs, round(c.ratio, 2)) for c in lost} == {(90_000, 100_000, 0.9), (81_000, 90_000, 0.9)}


def test_rates_that_one_of_them_did_not_hold_are_not_compared() -> None:
    told = made_up()
    for one in told["rounds"]:
        one["measured"]["rocketmq.1000.steady.20000.sent_per_s"] = 12_000.0
        one["measured"]["steady.40000.out_per_s"] = 30_000.0
    results = read(told)
    compared = {
        c.what for c in comparisons(results) if c.mode == "exactly once" and c.beside == "RocketMQ, tick 1000 ms"
    }
    rates = {
        what.split(" at ")[1].split("/s")[0]
        for what in compared
        if what.startswith("lateness p99 at ") and "/s" in what
    }
    assert rates == {"1,000", "10,000", "60,000"}
    assert "| exactly once | 40,000 | 40,000 | 30,000 | no |" in bench_page.page(results, [])


def test_a_missed_goal_is_shown() -> None:
    assert {figure.key for figure in FIGURES if figure.is_missed(made_up()[figure.key])} == {"drain_to_rocketmq"}


def test_lateness_is_better_where_it_is_less() -> None:
    (p99,) = [
        c
        for c in comparisons(read(made_up()))
        if c.what == "lateness p99 at the consumer" and c.mode == "exactly once" and c.beside.endswith("1000 ms")
    ]
    assert p99.ratio == pytest.approx(1050 / 12)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    results, target = folder / "results.json", folder / "benchmarks.md"
    results.write_text(json.dumps(made_up()))
    assert bench_page.main(["--results", str(results), "--page", str(target)]) == 0
    return target


def test_the_page_says_where_we_lose_and_which_goals_were_missed(written: Path) -> None:
    page = written.read_text()
    losses = lines_under("Where we lose", page)
    assert "| drain of a burst, exactly once | RocketMQ, tick 1000 ms | 90,000 msg/s | 100,000 msg/s | 0.90 |" in losses
    assert any(line.startswith("| drain_to_rocketmq |") for line in losses)
    assert "| `drain_per_s` | 90,000 | msg/s |  |" in page
    assert "Abacus, 2 cores" in page
    assert "not quiet" not in page


def test_each_picture_of_the_page_is_there_and_small(written: Path) -> None:
    for name in ("lateness", "cpu", "drain", "instances"):
        picture = written.with_suffix("") / f"{name}.svg"
        assert f"(benchmarks/{name}.svg)" in written.read_text()
        assert ET.fromstring(picture.read_text()).tag.endswith("svg")
        assert picture.stat().st_size < 60_000


def test_the_same_results_give_the_same_bytes(written: Path, tmp_path: Path) -> None:
    bench_page.write(read(made_up()), tmp_path / "benchmarks.md")
    assert [*tmp_path.rglob("*.svg")]
    for again in tmp_path.rglob("*.*"):
        assert again.read_bytes() == (written.parent / again.relative_to(tmp_path)).read_bytes()


def test_a_part_without_measurement_is_left_out_with_its_reason() -> None:
    page = bench_page.page(read(made_up(without="rocketmq.")), [])
    assert "| `rocketmq_drain_per_s` | it was left out |" in lines_under("Not measured", page)
    assert "| RocketMQ, tick" not in page


def test_the_method_tells_where_servers_wrote() -> None:
    told = made_up()
    assert "write to the disk" in bench_page.page(read(told), [])
    told["settings"]["memory"] = "/memory"
    assert "write to memory" in bench_page.page(read(told), [])


def test_a_busy_machine_is_shown() -> None:
    told = made_up()
    told["machine"]["others_share"] = 0.8
    assert "not quiet: others used up to 80%" in bench_page.page(read(told), [])


def test_without_results_the_error_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_page.main(["--results", str(tmp_path / "none.json")]) == 2
    assert "run `make bench` first" in capsys.readouterr().err
