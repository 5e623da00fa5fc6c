"""The page of an invented run: it shows where the bridge loses, and leaves out missing measurements."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scripts.bench.report import last_release
from scripts.bench.report import page as bench_page
from scripts.bench.report.comparisons import comparisons
from scripts.bench.report.figures import FIGURES, Figure, MedianValue
from scripts.bench.report.last_release import LastRelease
from scripts.bench.report.results import read
from scripts.bench.report.tests.sample_results import made_up

pytestmark = pytest.mark.thorough

NONE = LastRelease("none", {})


def figure_of(key: str) -> Figure:
    return next(figure for figure in FIGURES if figure.key == key)


def lines_under(heading: str, page: str) -> list[str]:
    return page.split(f"## {heading}\n")[1].split("\n## ")[0].strip().splitlines()


def test_a_lost_comparison_is_shown() -> None:
    lost = {(c.what, mode): round(ratio, 2) for c in comparisons(read(made_up())) for mode, ratio in c.losses()}
    assert lost == {
        ("drain of a burst, G1", "exactly once"): 0.82,
        ("a burst, from its due time to its last, G1", "exactly once"): 0.82,
    }


def test_rates_that_a_side_did_not_hold_are_not_compared() -> None:
    told = made_up()
    for one in told["rounds"]:
        one["measured"]["rocketmq.steady.20000.sent_per_s"] = 12_000.0
        one["measured"]["steady.1000.out_per_s"] = 300.0
    results = read(told)
    p99 = {c.what: c.values for c in comparisons(results) if c.what.startswith("lateness p99 at ")}
    assert p99["lateness p99 at 10,000/s"]["exactly once"] == 15
    assert p99["lateness p99 at 10,000/s"]["RocketMQ"] == 130
    assert "lateness p99 at 20,000/s" not in p99
    assert p99["lateness p99 at 1,000/s"]["exactly once"] is None
    assert "| exactly once | 1,000 | 1,000 | 300 | no |" in bench_page.page(results, [], NONE)


def test_the_peers_most_is_compared_only_if_it_was_reached() -> None:
    told = made_up()
    most = "in and out at once, ZGC"
    (line,) = [c for c in comparisons(read(told)) if c.what == most]
    assert line.values["RocketMQ"] is None
    for one in told["rounds"]:
        one["measured"]["rocketmq.steady.20000.out_per_s"] = 12_000.0
    (line,) = [c for c in comparisons(read(told)) if c.what == most]
    assert line.values["RocketMQ"] == 12_000


def test_a_missed_goal_is_shown() -> None:
    results = read(made_up())
    missed = {figure.key for figure in FIGURES if (v := results.figures.get(figure.key)) and figure.is_missed(v)}
    assert missed == {"drain_to_rocketmq", "pending_rss_mb"}


def test_a_fault_is_a_missed_goal_even_in_one_try() -> None:
    told = made_up()
    told["counted"]["the bridge"]["lost"] = 1.0
    assert "| lost | 1 |  | 0 |" in lines_under("Where we lose", bench_page.page(read(told), [], NONE))


def test_a_ratio_is_worse_if_it_changed_by_more_than_the_spread() -> None:
    results = read(made_up())  # drain_to_copy 1.5 in each try, cost_of_pending 1.0
    last = LastRelease(
        "6.0.0", {"drain_to_copy": MedianValue(1.7, 1.6, 1.75), "drain_per_s": MedianValue(2e5, 2e5, 2e5)}
    )
    assert last.columns(figure_of("drain_to_copy"), results.figures["drain_to_copy"]) == ("1.70", "-12% worse")
    assert last.columns(figure_of("drain_per_s"), results.figures["drain_per_s"]) == ("200,000", "-40%")
    assert last.columns(figure_of("intake_to_copy"), results.figures["intake_to_copy"]) == ("", "")
    page = bench_page.page(results, [], last)
    assert "| `drain_to_copy` | 1.50 | 1.70 | -12% worse |" in lines_under("Where we lose", page)
    wide = LastRelease("6.0.0", {"drain_to_copy": MedianValue(1.7, 1.4, 1.75)})
    assert not wide.is_worse(figure_of("drain_to_copy"), results.figures["drain_to_copy"])
    less = LastRelease("6.0.0", {"pending_rss_mb": MedianValue(200, 200, 200)})
    assert less.is_worse(figure_of("pending_rss_mb"), results.figures["pending_rss_mb"])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    results, target = folder / "results.json", folder / "benchmarks.md"
    results.write_text(json.dumps(made_up()))
    costs = folder / "costs.json"
    assert bench_page.main(["--results", str(results), "--page", str(target), "--costs", str(costs)]) == 0
    return target


def test_the_page_says_where_we_lose_and_which_goals_were_missed(written: Path) -> None:
    page = written.read_text()
    losses = lines_under("Where we lose", page)
    assert "| drain of a burst, G1, exactly once | 90,000 msg/s | 110,000 msg/s | 0.82 |" in losses
    assert any(line.startswith("| `drain_to_rocketmq` |") for line in losses)
    assert any(
        line.startswith("| `drain_per_s` | 120,000 (108,000–132,000) | msg/s, ZGC |  |") for line in page.splitlines()
    )
    assert "Abacus, 2 cores" in page
    assert "not quiet" not in page


def test_each_picture_of_the_page_is_there_and_small(written: Path) -> None:
    for name in ("lateness", "cpu", "drain"):
        picture = written.with_suffix("") / f"{name}.svg"
        assert f"(benchmarks/{name}.svg)" in written.read_text()
        assert ET.fromstring(picture.read_text()).tag.endswith("svg")
        assert picture.stat().st_size < 60_000


def test_the_same_results_give_the_same_bytes(written: Path, tmp_path: Path) -> None:
    bench_page.write(read(made_up()), tmp_path / "benchmarks.md", NONE)
    assert [*tmp_path.rglob("*.svg")]
    for again in tmp_path.rglob("*.*"):
        assert again.read_bytes() == (written.parent / again.relative_to(tmp_path)).read_bytes()


def test_a_part_without_measurement_is_left_out_with_its_reason() -> None:
    page = bench_page.page(read(made_up(without="rocketmq.")), [], NONE)
    assert "| `rocketmq_drain_per_s` | it was left out |" in lines_under("Not measured", page)
    assert "| RocketMQ |" not in page.split("## Beside others")[0]


def test_the_method_tells_where_servers_wrote() -> None:
    told = made_up()
    assert "write to the disk" in bench_page.page(read(told), [], NONE)
    told["settings"]["memory"] = True
    assert "write to memory" in bench_page.page(read(told), [], NONE)


def test_a_busy_machine_is_shown() -> None:
    told = made_up()
    told["machine"]["others_share"] = 0.8
    assert "not quiet: others used up to 80%" in bench_page.page(read(told), [], NONE)


def test_without_results_the_error_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_page.main(["--results", str(tmp_path / "none.json")]) == 2
    assert "run `make bench` first" in capsys.readouterr().err


def test_a_release_keeps_its_figures_and_the_next_page_shows_them(tmp_path: Path) -> None:
    results, target = tmp_path / "results.json", tmp_path / "benchmarks.md"
    arguments = ["--results", str(results), "--page", str(target), "--costs", str(tmp_path / "costs.json")]
    results.write_text(json.dumps(made_up()))
    assert bench_page.main([*arguments, "--release"]) == 0
    assert bench_page.main(arguments) == 0
    assert "| figure | median | unit | goal | 7.0.0 | change |" in target.read_text()
    assert "| 1.50 |  | >= 1.3 reached | 1.50 | +0% |" in target.read_text()


def test_a_quick_run_writes_no_page_and_keeps_figures_of_its_own(tmp_path: Path) -> None:
    results, target = tmp_path / "results.json", tmp_path / "benchmarks.md"
    arguments = ["--results", str(results), "--page", str(target)]
    told = made_up()
    told["settings"]["quick"] = True
    results.write_text(json.dumps(told))
    assert bench_page.main(arguments) == 2
    assert bench_page.main([*arguments, "--release"]) == 0
    assert not target.exists()
    kept = tmp_path / "benchmarks" / "last-release.json"
    assert last_release.read("quick", kept).release == "7.0.0"
    assert not last_release.read("whole", kept).figures
