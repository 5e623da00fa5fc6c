"""Settings: their sources, and the errors about wrong ones."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from bridge.config.settings import DAY_MS, Settings, load, usable_cores
from bridge.config.topic_requirements import TopicState
from bridge.errors import SettingsError
from bridge.partition.options import Policy, TurnOptions, instant_text, parse_instant_ms
from schemas.kafka_settings import from_environment
from scripts.release import reference_docs

SERVERS = {"bootstrap_servers": "127.0.0.1:1"}


PAYMENTS = """
timer_topic = "timers"
allow_targets = ["orders.*", "bills"]
[topics."timer.payments"]
allow = ["payments.*"]
deny = ["*.secret"]
profiles = ["native"]
max_requests_per_s = 100
max_pending = 10
max_pending_bytes = 10000
max_request_bytes = 500
max_delay = "2d"
[topics."timer.other"]
journal_topic = "kept.elsewhere"
"""
FOUND = {"timers": TopicState(4, 1000), "timer.payments": TopicState(3, 2000), "timer.other": TopicState(1, 3000)}


def from_file(tmp_path: Path, toml: str, environment: Mapping[str, str] | None = None, **flags: str) -> Settings:
    file = tmp_path / "bridge.toml"
    file.write_text(toml)
    return load({**SERVERS, **flags}, environment or {}, file)


@pytest.mark.parametrize("page", ["docs/settings.md", "docs/metrics.md"])
def test_docs_are_up_to_date(page: str) -> None:
    assert (reference_docs.ROOT / page).read_text() == reference_docs.page(page), "run `make docs`"


def test_a_flag_overrides_the_environment_and_that_the_file(tmp_path: Path) -> None:
    toml = 'profiles = ["native", "etf1"]\ndeny_targets = ["x"]'
    environment = {"TIMER_BRIDGE_PROFILES": "kaspr, native", "TIMER_BRIDGE_DENY_TARGETS": ""}
    assert from_file(tmp_path, "").profiles == ("native", "rocketmq")
    assert from_file(tmp_path, toml).profiles == ("native", "etf1")
    found = from_file(tmp_path, toml, environment)
    assert (found.profiles, found.deny_targets) == (("kaspr", "native"), ())
    found = from_file(tmp_path, toml, environment, profiles="native", max_pending="8")
    assert (found.profiles, found.max_pending) == (("native",), 8)


def test_each_timer_topic_has_its_own_options(tmp_path: Path) -> None:
    options = from_file(tmp_path, PAYMENTS).turn_options(FOUND)
    payments, other = options.of("timer.payments"), options.of("timer.other")
    assert options.of("timers") is options
    assert options == TurnOptions(
        rules=options.rules,
        policy=Policy(("orders.*", "bills"), ()),
        partitions=4,
        max_message_bytes=1000,
        topics={"timer.payments": payments, "timer.other": other},
    )
    assert payments == TurnOptions(
        rules=options.rules.model_copy(update={"profiles": ("native",), "max_delay_ms": 2 * DAY_MS}),
        policy=Policy(("payments.*",), ("*.secret",)),
        journal_topic="timer.payments.journal",
        partitions=3,
        max_message_bytes=2000,
        max_requests_per_s=100,
        max_pending=3,
        max_pending_bytes=3333,
        max_request_bytes=500,
    )
    assert other == TurnOptions(
        rules=options.rules, journal_topic="kept.elsewhere", partitions=1, max_message_bytes=3000
    )
    assert (options.rules.profiles, options.rules.max_delay_ms) == (("native", "rocketmq"), 366 * DAY_MS)
    shared = ("journal", "rejected", "receipts", "resent", "redriven", "backfilled", "imported", "control")
    own = {"timers", "timer.payments", "timer.payments.journal", "timer.other", "kept.elsewhere"}
    assert options.rules.own_topics == own | {f"timer.{name}" for name in shared}


def test_each_timer_topic_has_its_engine_and_rocksdb_alone_any_roll_window(tmp_path: Path) -> None:
    config = tmp_path / "bridge.toml"
    config.write_text('engine = "rocksdb"\nroll_window = "400d"\n[topics.a]\n')
    assert load(SERVERS, {}, config).timer_topics()["a"].engine == "rocksdb"
    config.write_text('[topics.a]\nengine = "rocksdb"\n[topics.b]\n')
    found = {name: topic.engine for name, topic in load(SERVERS, {}, config).timer_topics().items()}
    assert found == {"timer.requests": "wheel", "a": "rocksdb", "b": "wheel"}


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ("[topics.timer.payments]\nallow = []", 'stands in quotes: [topics."timer.payments"]'),
        ('[topics."t.x"]\nalow = ["a"]', "topics.\"t.x\" has no key 'alow': did you mean 'allow'?"),
        ('[topics."t.x"]\nmax_pending = 0', 'topics."t.x".max_pending = 0: Input should be greater than or equal to 1'),
        ('[topics."t.x"]\nprofiles = ["etf2"]', "topics.\"t.x\".profiles: 'etf2' is none: write a list of native"),
        ('[topics."t.x"]\nallow = []', 'topics."t.x".allow is empty, so nothing could be sent'),
        ('[topics."t.x"]\nallow = ["a"]\ndeny = ["*"]', "'a' is denied as a whole by '*' of topics.\"t.x\".deny"),
        ('[topics."t.x"]\nallow = ["t.x.journal"]', "'t.x.journal' is internal or the bridge's own, never a target"),
        ('[topics."timer.requests"]\nmax_pending = 5', "is timer_topic: write its keys as the settings allow_targets"),
        ('[topics."timer.rejected"]', 'topics."timer.rejected" and rejected_topic are both timer.rejected: give each'),
        ('[topics.a]\njournal_topic = "b"\n[topics.b]', 'topics."b" and topics."a".journal_topic are both b'),
        ('[topics."__x"]', "topics.\"__x\" is '__x', which is not a legal topic name: write at most 249"),
        ("topics = 3", 'topics: write a table [topics."NAME"]'),
        ('allow_targets = ["a b"]', "allow_targets: 'a b' matches no topic"),
        ('deny_targets = ["*"]', "allow_targets: '*' is denied as a whole by '*' of deny_targets"),
        ('timer_topic = "timer.rejected"', "rejected_topic and timer_topic are both timer.rejected"),
        ("[targets.orders]", 'targets."orders".max_per_s is missing: give it'),
        ("[targets.orders]\nmax_per_s = 1\nfresh = '1m'", 'targets."orders".fresh: removed; take it out: the timers'),
        ('[targets."a b"]\nmax_per_s = 1', 'targets."a b" fits no topic'),
        ('roll_window = "25d"', "roll_window: at most 24d"),
        ("roll_window = 2", "roll_window = 2: '2' is no duration: write a number with its unit, such as \"500ms\""),
        ("max_delay = '2000000d'", "max_delay"),
        ('roll_window = "400d"\nengine = "rocksdb"\n[topics.a]\nengine = "wheel"', "at most 24d with the engine wheel"),
        ('schema_registry = "registry:8081"', "schema_registry: write http://host:port or https://host"),
        ('schema_registry = "http://me:secret@registry"', "schema_registry: write http://host:port or https://host"),
        ('schema_registry = "http://registry:8081"', "schema_registry: only the page uses it"),
        ('audit_tables = "/audits"', "audit_tables: only the page uses it"),
        ('schema_registry_auth = "auth"', "schema_registry_auth: give schema_registry, whose password it is"),
        ('engine = "rocks"', "engine = 'rocks': Input should be 'wheel' or 'rocksdb'"),
        ("slots = 1000", "slots: removed; take it out: the wheel's size follows from roll_window"),
        ('adopt_progress = "yesterday"', "adopt_progress: give earliest, latest or epoch milliseconds"),
        ('adopt_progress = "1795990000"', "adopt_progress: give earliest, latest or epoch milliseconds"),
        ('profiles = ["rocketmq"]', "profiles: native has to be among them"),
        ('profiles = ["native", "etf1", "etf1"]', "profiles: duplicate profile in native, etf1, etf1"),
        ('peer_networks = "10.1.0.1/16"', "peer_networks"),
        ('workers = "many"', "workers = 'many'"),
        ('workers = 2\n[kafka]\n"group.instance.id" = "x"', "leave kafka.group.instance.id out"),
        ('standby = true\n[kafka]\n"group.instance.id" = "x"', "standby: a static member"),
        ('[topics."timer.b"]\npassed_headers = ["tenant"]', "has no effect"),
        ('[topics."timer.b"]\npassed_headers = ["timer-id"]', "has no effect"),
        ("min_free_bytes = '1GX'", '"500MB" or "1GiB"'),
        ('[topics."timer.b"]\nmax_pending_bytes = 0', 'topics."timer.b".max_pending_bytes = 0: '),
        ('profils = ["native"]', "there is no setting 'profils': did you mean 'profiles'?"),
    ],
)
def test_a_wrong_setting_is_named_with_the_remedy(tmp_path: Path, toml: str, told: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        from_file(tmp_path, toml)
    assert told in str(wrong.value)


def test_an_instant_is_shown_as_text_that_can_be_given() -> None:
    shown = instant_text(1_798_135_200_250)
    assert (shown, parse_instant_ms(shown)) == ("2026-12-24T18:00:00.250Z", 1_798_135_200_250)
    assert instant_text(2**62) == f"{2**62} ms"


@pytest.mark.parametrize("quota", ["max_pending", "max_pending_bytes"])
def test_a_quota_below_the_number_of_partitions_is_refused(tmp_path: Path, quota: str) -> None:
    few = from_file(tmp_path, f'[topics."t.x"]\n{quota} = 3')
    with pytest.raises(SettingsError, match=rf"{quota} = 3: t\.x has 4 partitions.*give 4 or more"):
        few.turn_options({"timer.requests": TopicState(1, 1000), "t.x": TopicState(4, 1000)})


@pytest.mark.parametrize("service", ["TIMER_BRIDGE", "TIMER_BRIDGE_HTTP", "TIMER_BRIDGE_KAFKA"])
def test_variables_of_a_kubernetes_service_are_no_settings(service: str) -> None:
    host, url = "10.0.0.1", "tcp://10.0.0.1:8321"
    of_port = {"": url, "_PROTO": "tcp", "_PORT": "8321", "_ADDR": host}
    ends = {"SERVICE_HOST": host, "SERVICE_PORT": "8321", "SERVICE_PORT_HTTP": "8321", "PORT": url}
    ends |= {f"PORT_8321_TCP{end}": value for end, value in of_port.items()}
    given = {f"{service}_{end}": value for end, value in ends.items()}
    found = load(SERVERS, given | {"TIMER_BRIDGE_KAFKA_CLIENT_ID": "x"}, None)
    assert (found.http_port, found.kafka) == (0, {"client.id": "x"})


def test_a_setting_that_looks_like_a_service_variable_counts() -> None:
    assert load(SERVERS, {"TIMER_BRIDGE_HTTP_PORT": "8321"}, None).http_port == 8321
    with pytest.raises(SettingsError, match="http_port"):
        load(SERVERS, {"TIMER_BRIDGE_HTTP_PORT": "http://10.0.0.1:8321"}, None)
    with pytest.raises(SettingsError, match="there is no setting 'port'"):
        load(SERVERS, {"TIMER_BRIDGE_PORT": "8321"}, None)
    with pytest.raises(SettingsError, match="delivery: removed; take it out: delivery is exactly once, and readers"):
        load(SERVERS, {"TIMER_BRIDGE_DELIVERY": "at-least-once"}, None)
    with pytest.raises(SettingsError, match=r"linger_ms: removed; set linger\.ms under kafka instead"):
        load({**SERVERS, "linger_ms": "5"}, {}, None)
    for name in Settings.model_fields:
        assert from_environment({f"TIMER_BRIDGE_{name.upper()}": "x"}), name


def test_rates_are_divided_among_partitions_and_workers() -> None:
    targets = {"orders.*": {"max_per_s": 100}, "bills": {"max_per_s": 0.5}}
    given = {"workers": "3", "max_requests_per_s": "100", "max_pending": "100", "targets": targets}
    given |= {"min_free_bytes": "2GB", "max_request_bytes": "1MiB"}
    options = load({**SERVERS, **given}, {}, None).turn_options({"timer.requests": TopicState(4, 1000)})
    assert (options.max_requests_per_s, options.max_pending) == (34, 25)
    assert options.targets == {"orders.*": 25, "bills": 0.125}
    assert (options.min_free_bytes, options.max_request_bytes) == (2 * 10**9, 1 << 20)
    assert load({**SERVERS, "workers": "auto"}, {}, None).workers == usable_cores()


def test_passed_headers_are_names_that_would_be_refused() -> None:
    found = load({**SERVERS, "passed_headers": "timer-tenant,Timer-X"}, {}, None)
    assert found.rules()["timer.requests"].passed_on == frozenset({"timer-tenant", "Timer-X"})
    assert load(SERVERS, {}, None).rules()["timer.requests"].passed_on == frozenset()
