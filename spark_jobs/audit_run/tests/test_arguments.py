"""Wrong arguments are told before Spark starts, with the argument's name."""

import csv
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kafka_timer.levels import DEFAULT_MS
from schemas.audit_state import SPANS
from spark_jobs.audit import main
from spark_jobs.audit_run import waivers
from spark_jobs.audit_run.arguments import AuditArguments, iso, parse
from spark_jobs.audit_run.audit_folder import Kind, open_folder
from spark_jobs.audit_run.read_plan import allowed_topics
from spark_jobs.backfill.arguments import BackfillArguments
from spark_jobs.backfill.arguments import parse as parse_backfill
from spark_jobs.errors import UsageError
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.files import make_folder, make_local_folder
from spark_jobs.platform.tables import write_rows


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"offsets": {0: (1, 2)}, "to_ms": 5}, "--offsets"),
        ({"settle_ms": -1}, "--settle-ms"),
        ({"from_ms": 5, "to_ms": 5}, "--from"),
        ({"as_of_ms": 2**60}, "--as-of"),
        ({"stream": True, "daily": True, "as_of_ms": 5}, "--daily, --as-of"),
        ({"stream": True, "offsets": {0: (1, 2)}}, "--offsets"),
        ({"available_now": True}, "--available-now .* --stream"),
        ({"stream": True, "every_s": 0}, "--every-s"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=named):
        AuditArguments(**{"access": KafkaAccess("localhost:9092"), "out": tmp_path, **wrong})


@pytest.mark.spark
@pytest.mark.parametrize("make", [make_folder, make_local_folder])
def test_a_folder_that_cannot_be_made_is_named(
    make: Callable[[Path], None], tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=f"--out {out} cannot be made"):
            make(out)


def test_exit_code_2_for_wrong_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path)]) == 2
    assert "--bootstrap-servers" in capsys.readouterr().err


def test_exit_code_1_without_a_broker(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_jobs.kafka.admin.TIMEOUT_S", 0.5)
    assert main(["--bootstrap-servers", "127.0.0.1:1", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "waiting for broker at 127.0.0.1:1" in told
    assert "no broker answers at 127.0.0.1:1" in told
    assert "--bootstrap-servers" in told


CONFIG = """
bootstrap_servers = "localhost:9092"
levels = "1s 1m"
journal_topic = "journal"

[topics."timer.payments"]
[topics."timer.orders"]
journal_topic = "orders.decisions"
"""


IN_ENVIRONMENT = "TIMER_BRIDGE_TIMER_TOPIC"


@pytest.mark.parametrize(
    ("given", "environment", "journal"),
    [
        ([], {}, "journal"),
        (["--timer-topic", "timer.elsewhere"], {}, "journal"),
        (["--timer-topic", "timer.payments"], {}, "timer.payments.journal"),
        (["--timer-topic", "timer.orders"], {}, "orders.decisions"),
        (["--timer-topic", "timer.orders", "--journal-topic", "mine"], {}, "mine"),
        ([], {IN_ENVIRONMENT: "timer.orders"}, "orders.decisions"),
        (["--timer-topic", "timer.payments"], {IN_ENVIRONMENT: "timer.orders"}, "timer.payments.journal"),
        ([], {IN_ENVIRONMENT: "timer.elsewhere"}, "journal"),
    ],
)
def test_a_backfill_reads_the_journal_of_its_own_timer_topic(
    given: list[str], environment: dict[str, str], journal: str, tmp_path: Path
) -> None:
    (tmp_path / "bridge.toml").write_text(CONFIG)
    (tmp_path / "requests").mkdir()
    asked = ["--config", str(tmp_path / "bridge.toml"), "--audit", str(tmp_path), *given]
    assert parse_backfill(asked, environment).journal_topic == journal


@pytest.mark.parametrize(
    ("given", "environment", "topics"),
    [
        ([], {}, ["timer.requests", "timer.payments", "timer.orders"]),
        ([], {IN_ENVIRONMENT: "timer.mine"}, ["timer.mine", "timer.payments", "timer.orders"]),
        ([], {IN_ENVIRONMENT: "timer.orders"}, ["timer.orders", "timer.payments"]),
        (["--timer-topic", "timer.orders", "--timer-topic", "timer.else"], {}, ["timer.orders", "timer.else"]),
    ],
)
def test_each_of_several_timer_topics_has_a_folder_and_a_file_of_metrics(
    given: list[str], environment: dict[str, str], topics: list[str], tmp_path: Path
) -> None:
    """A single one has those that are given."""
    (tmp_path / "bridge.toml").write_text(CONFIG)
    asked = ["--config", str(tmp_path / "bridge.toml"), "--out", "audits", "--metrics-file", "/metrics/audit.prom"]
    found = [(each.timer_topic, str(each.out), str(each.metrics_file)) for each in parse([*asked, *given], environment)]
    assert found == [(topic, f"audits/{topic}", f"/metrics/audit-{topic}.prom") for topic in topics]
    (one,) = parse([*asked, "--timer-topic", "timer.orders"], {})
    assert (one.timer_topic, str(one.out), str(one.metrics_file)) == ("timer.orders", "audits", "/metrics/audit.prom")


@pytest.mark.parametrize("flags", [["--offsets", "0:1-2"], ["--archive", "old"]])
def test_what_only_one_timer_topic_can_have_is_refused_for_several(flags: list[str]) -> None:
    topics = ["--timer-topic", "timer.orders", "--timer-topic", "timer.payments"]
    with pytest.raises(UsageError, match=f"{flags[0]}.* takes one timer topic, .* give --timer-topic"):
        parse(["--bootstrap-servers", "b:1", "--out", "audits", *topics, *flags], {})


SETTINGS = """
bootstrap_servers = "localhost:9092"
levels = "1s 1m"
max_delay = "2d"
profiles = ["native", "etf1"]
[topics."timer.a"]
max_delay = "1h"
profiles = ["kaspr", "native"]
[topics."timer.b"]
"""


def test_settings_are_those_of_the_timer_topic_unless_a_flag_says_others(tmp_path: Path) -> None:
    (tmp_path / "bridge.toml").write_text(SETTINGS)
    out = ["--out", str(tmp_path / "audit")]
    config, day_ms = ["--config", str(tmp_path / "bridge.toml"), *out], 86_400_000

    def found(*flags: str, **environment: str) -> tuple[object, ...]:
        told, *_ = parse(flags, {f"TIMER_BRIDGE_{name}": value for name, value in environment.items()})
        return told.levels_ms, told.max_delay_ms, told.profiles

    assert found("--bootstrap-servers", "b:1", *out) == (DEFAULT_MS, 366 * day_ms, ("native", "rocketmq"))
    for topic in (), ("--timer-topic", "timer.b"), ("--timer-topic", "timer.elsewhere"):
        assert found(*config, *topic) == ((1_000, 60_000), 2 * day_ms, ("native", "etf1"))
    assert found(*config, "--timer-topic", "timer.a") == ((1_000, 60_000), 3_600_000, ("kaspr", "native"))
    environment = {"LEVELS": "3s", "MAX_DELAY": "3d", "PROFILES": "native, karafka"}
    assert found(*config, **environment) == ((3_000,), 3 * day_ms, ("native", "karafka"))
    flags = ("--levels", "2s", "--max-delay", "90m", "--profiles", "native")
    assert found(*config, *flags, **environment) == ((2_000,), 5_400_000, ("native",))


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--max-delay", "soon", "'soon' is no duration"),
        ("--max-delay", "5", "'5' is no duration: write a number with its unit"),
        ("--profiles", "native,rabbit", "'rabbit' is not a profile: give some of native, rocketmq"),
        ("--allow-targets", "x,a b", "'a b': give names of topics"),
        ("--offsets", "0:5-5", "'0:5-5': give partition:first-end"),
        ("--delivery", "exactly-once", "removed; take it out"),
        ("--table", "audits.requests", "'audits.requests': give catalog.database.table"),
        ("--from", "noon", "'noon' is no instant"),
        ("--lateness-topic", "x", "removed; read the table `minutes` in --out"),
        *(("--from", text, "") for text in ("", "yesterday", "2023-11-14T22:13:20", "-5", "2023-11-14")),
    ],
)
def test_a_value_that_is_refused_is_named_with_what_to_do(flag: str, value: str, told: str) -> None:
    with pytest.raises(UsageError, match=f"{flag}: {told}"):
        parse(["--bootstrap-servers", "b:1", "--out", "audit", f"{flag}={value}"], {})


def test_a_removed_setting_is_refused_in_config_and_environment_too(tmp_path: Path) -> None:
    (tmp_path / "bridge.toml").write_text('bootstrap_servers = "localhost:9092"\ndelivery = "at-least-once"')
    given: dict[str, dict[str, str]] = {"--config": {}, "--bootstrap-servers": {"TIMER_BRIDGE_DELIVERY": "x"}}
    for flag, environment in given.items():
        with pytest.raises(UsageError, match="--delivery: removed; take it out"):
            parse([flag, str(tmp_path / "bridge.toml"), "--out", "audit"], environment)


TOPICS = {"orders.eu", "orders.secret", "bills", "timer.requests", "timer.open", "_schemas", "__consumer_offsets"}
PATTERNS = """
bootstrap_servers = "localhost:9092"
allow_targets = ["orders.*", "timer.open"]
deny_targets = ["*.secret"]
[topics."timer.bills"]
allow = ["b*"]
[topics."timer.all"]
"""


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], {"orders.eu", "timer.open"}),
        (["--timer-topic", "timer.bills"], {"bills"}),
        (["--timer-topic", "timer.all"], set()),
        (["--allow-targets", "?*", "--deny-targets", "b*"], {"orders.eu", "orders.secret"}),
        (["--allow-targets", "*"], set()),
    ],
)
def test_topics_that_the_bridge_allows_are_read_too(given: list[str], found: set[str], tmp_path: Path) -> None:
    """The table of a timer topic inherits no patterns. All are allowed by default: then only named ones are read."""
    (tmp_path / "bridge.toml").write_text(PATTERNS)
    told, *_ = parse(["--config", str(tmp_path / "bridge.toml"), "--out", str(tmp_path / "audit"), *given], {})
    assert allowed_topics(TOPICS, told.allow_targets, told.deny_targets) == found


def test_times_for_people() -> None:
    assert iso(1_700_000_000_123) == "2023-11-14 22:13:20.123 UTC"
    assert iso(-1) == "1969-12-31 23:59:59.999 UTC"
    assert iso(2**63 - 1) == "9223372036854775807 ms"


DAILY, STREAM = ({"audit.json": f'{{"version": 5, "kind": "{kind}"}}'} for kind in ("daily", "stream"))
OLDER = ({"audit.json": '{"version": 2, "kind": "daily"}'}, {"spans/day=1970-01-01/a": ""}, {"checkpoint/a": ""})


@pytest.mark.spark
@pytest.mark.parametrize(
    ("held", "kinds", "told"),
    [
        (DAILY, ({}, {"stream": True}), "holds a daily audit: continue it with --daily"),
        (STREAM, ({}, {"daily": True}), "holds a streaming audit: continue it with --stream"),
        *((older, ({}, {"daily": True}, {"stream": True}), "of an older version, which this") for older in OLDER),
        (STREAM, ({"stream": True},), None),
    ],
)
def test_a_folder_of_one_kind_of_audit_is_not_taken_by_another(
    held: dict[str, str], kinds: Sequence[dict[str, Any]], told: str | None, tmp_path: Path, spark: SparkSession
) -> None:
    for name, text in held.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for kind in kinds:
        with nullcontext() if told is None else pytest.raises(UsageError, match=told):
            AuditArguments(access=KafkaAccess("localhost:9092"), out=tmp_path, **kind).demand_fitting_folder()


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["daily", "stream"])
def test_a_folder_of_one_timer_topic_is_not_taken_for_another(kind: Kind, tmp_path: Path, spark: SparkSession) -> None:
    """Its requests would count as deliveries; a backfill would find nothing missing."""
    open_folder(tmp_path, kind)
    span = {"topic": "timer.bills", "partition": 0, "first": 0, "end": 0, "from_log_start": True, "since_ms": 0}
    write_rows(tmp_path, SPANS, "day=2026-01-01" + ("/batch=000000001" if kind == "stream" else ""), [span])
    access = KafkaAccess("localhost:9092")
    audit = AuditArguments(access=access, out=tmp_path, daily=kind == "daily", stream=kind == "stream")
    backfill = BackfillArguments(access=access, audit=tmp_path, out=tmp_path)
    for demand in (audit.demand_fitting_folder, backfill.demand_fitting_folders):
        with pytest.raises(UsageError, match=r"holds no audit of timer\.requests: give --timer-topic"):
            demand()
    replace(audit, timer_topic="timer.bills").demand_fitting_folder()
    replace(backfill, timer_topic="timer.bills").demand_fitting_folders()


WAIVERS = """origin,reason,until
timer.requests/0/7,"lost, INC-77",2026-06-01
timer.requests/0/8,known,2026-06-01T12:00:00Z
"""


@pytest.mark.spark
def test_a_waiver_holds_until_its_end(tmp_path: Path, spark: SparkSession) -> None:
    """A date means its end."""
    file, noon_ms = tmp_path / "waivers.csv", 1_780_315_200_000
    file.write_text(WAIVERS)
    pq.write_table(pa.Table.from_pylist(list(csv.DictReader(WAIVERS.splitlines()))), tmp_path / "waivers.parquet")
    for path in (file, tmp_path / "waivers.parquet"):
        found = [
            None if rows is None else {row.origin.rpartition("/")[2] for row in rows.collect()}
            for rows in (waivers.waived(path, noon_ms + after) for after in (-1, 0, 43_200_000))
        ]
        assert found == [{"7", "8"}, {"7"}, None]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("t/0/7,,2026-06-01", "row 1 lacks a value"),
        ("t/0/7,known,soon", "until 'soon' is not a time"),
        ("t/0/7,known,2026-06-01T12:00:00", "has no time zone"),
    ],
)
def test_a_wrong_waiver_is_named_before_spark_starts(row: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "waivers.csv").write_text(f"origin,reason,until\n{row}\n")
    with pytest.raises(UsageError, match=f"--waivers .*{named}"):
        AuditArguments(access=KafkaAccess("localhost:9092"), out=tmp_path / "out", waivers=tmp_path / "waivers.csv")
