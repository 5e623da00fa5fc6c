"""Settings: where they come from, and what is told about a wrong one."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from bridge.config.settings import DAY_MS, Settings, load
from bridge.config.topic_requirements import TopicState
from bridge.errors import SettingsError
from bridge.intake.target_policy import Policy
from bridge.release.target_rate_limits import TargetLimit
from schemas.kafka_settings import from_environment

SERVERS = {"bootstrap_servers": "127.0.0.1:1"}


def settings(tmp_path: Path, *, flag: str | None = None, env: str | None = None, toml: str = "") -> Settings:
    file = tmp_path / "bridge.toml"
    file.write_text(toml)
    environment = {} if env is None else {"TIMER_BRIDGE_PROFILES": env}
    return load({**SERVERS, "profiles": flag}, environment, file)


def test_native_and_rocketmq_are_on(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert found.profiles == ("native", "rocketmq")
    assert found.turn_options({"timer.requests": TopicState(4, 1000)}).rules.profiles == ("native", "rocketmq")


def test_profiles_are_a_list_in_the_file_and_parted_by_commas_elsewhere(tmp_path: Path) -> None:
    toml = 'profiles = ["native", "etf1"]'
    assert settings(tmp_path, toml=toml).profiles == ("native", "etf1")
    assert settings(tmp_path, toml=toml, env="kaspr, native").profiles == ("kaspr", "native")
    assert settings(tmp_path, toml=toml, env="kaspr,native", flag="native").profiles == ("native",)


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("native,etf2", "'etf2' is none: write a list of native, rocketmq, etf1, kaspr, karafka, timebridge"),
        ("rocketmq", "native has to be among them"),
        ("", "'' is none"),
        ("native,etf1,etf1", "one stands twice"),
    ],
)
def test_a_wrong_profile_is_named_with_the_remedy(tmp_path: Path, flag: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        settings(tmp_path, flag=flag)


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


def test_each_timer_topic_has_its_own_settings_and_the_main_one_those_outside_of_a_table(tmp_path: Path) -> None:
    options = from_file(tmp_path, PAYMENTS).turn_options(FOUND)
    payments, other = options.of("timer.payments"), options.of("timer.other")
    assert options.of("timers") is options
    assert [each.policy for each in (options, payments, other)] == [
        Policy(("orders.*", "bills"), ()),
        Policy(("payments.*",), ("*.secret",)),
        Policy(("*",), ()),
    ]
    assert [each.journal_topic for each in (options, payments, other)] == [
        "timer.journal",
        "timer.payments.journal",
        "kept.elsewhere",
    ]
    assert [each.rules.profiles for each in (payments, other)] == [("native",), ("native", "rocketmq")]
    assert [(each.max_requests_per_s, each.max_pending) for each in (options, payments)] == [(None, None), (100, 3)]
    sizes = [(each.max_pending_bytes, each.max_request_bytes) for each in (options, payments)]
    assert sizes == [(None, None), (3333, 500)]
    assert [each.rules.max_delay_ms for each in (payments, other)] == [2 * DAY_MS, 366 * DAY_MS]
    assert [each.max_message_bytes for each in (options, payments, other)] == [1000, 2000, 3000]


def test_the_own_topics_of_all_are_targets_of_none(tmp_path: Path) -> None:
    options = from_file(tmp_path, PAYMENTS).turn_options(FOUND)
    own = {
        "timers",
        "timer.journal",
        "timer.rejected",
        "timer.receipts",
        "timer.redriven",
        "timer.backfilled",
        "timer.imported",
        "timer.control",
    }
    own |= {"timer.payments", "timer.payments.journal", "timer.other", "kept.elsewhere"}
    assert all(options.of(name).rules.own_topics == own for name in FOUND)


def test_each_partition_has_its_part_of_a_targets_rate(tmp_path: Path) -> None:
    toml = '[targets."orders.*"]\nmax_per_s = 100\nfresh_share = 0.5\nfresh = "1m"\n[targets.bills]\nmax_per_s = 0.5'
    options = from_file(tmp_path, toml).turn_options({"timer.requests": TopicState(4, 1000)})
    assert options.targets == {"orders.*": TargetLimit(25, 0.5, 60_000), "bills": TargetLimit(0.125)}


def test_the_main_topics_targets_come_from_anywhere(tmp_path: Path) -> None:
    environment = {"TIMER_BRIDGE_ALLOW_TARGETS": "orders.*, bills", "TIMER_BRIDGE_DENY_TARGETS": ""}
    found = from_file(tmp_path, 'deny_targets = ["x"]', environment, allow_targets="bills", max_pending="8")
    assert (found.allow_targets, found.deny_targets, found.max_pending) == (("bills",), (), 8)


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ("[topics.timer.payments]\nallow = []", 'stands in quotes: [topics."timer.payments"]'),
        ('[topics."t.x"]\nalow = ["a"]', "topics.\"t.x\" has no key 'alow': did you mean 'allow'?"),
        ('[topics."t.x"]\nmax_pending = 0', 'topics."t.x".max_pending = 0: Input should be greater than or equal to 1'),
        ('[topics."t.x"]\nprofiles = ["etf2"]', "topics.\"t.x\".profiles: 'etf2' is none: write a list of native"),
        ('[topics."t.x"]\nprofiles = []', 'topics."t.x".profiles: native has to be among them'),
        ('[topics."t.x"]\nallow = []', 'topics."t.x".allow is empty, so nothing could be sent'),
        ('[topics."t.x"]\nallow = ["a"]\ndeny = ["*"]', "'a' is denied as a whole by '*' of topics.\"t.x\".deny"),
        ('[topics."t.x"]\nallow = ["t.x.journal"]', "'t.x.journal' is internal or the bridge's own, never a target"),
        ('[topics."timer.requests"]\nmax_pending = 5', "is timer_topic: write its keys as the settings allow_targets"),
        ('[topics."timer.rejected"]', 'topics."timer.rejected" and rejected_topic are both timer.rejected: give each'),
        ('[topics."t.x"]\njournal_topic = "timer.journal"', "journal_topic and journal_topic are both timer.journal"),
        ('[topics.a]\njournal_topic = "b"\n[topics.b]', 'topics."b" and topics."a".journal_topic are both b'),
        ('[topics."__x"]', "topics.\"__x\" is '__x', which Kafka takes for no topic of ours: write at most 249"),
        ("topics = 3", 'topics: write a table [topics."NAME"]'),
        ('allow_targets = ["a b"]', "allow_targets: 'a b' matches no topic"),
        ('deny_targets = ["*"]', "allow_targets: '*' is denied as a whole by '*' of deny_targets"),
        ('timer_topic = "timer.rejected"', "rejected_topic and timer_topic are both timer.rejected"),
        ("max_requests_per_s = 0", "max_requests_per_s = 0"),
        ("targets = 3", 'targets: write a table [targets."PATTERN"] for each limit'),
        ("[targets.orders]", 'targets."orders".max_per_s is missing: give it'),
        ("[targets.orders]\nmax_per_s = 0", 'targets."orders".max_per_s = 0: Input should be greater than 0'),
        ("[targets.orders]\nmax_per_s = 1\nfresh = 'soon'", "targets.\"orders\".fresh = 'soon': 'soon' is no duration"),
        ("[targets.orders.eu]\nmax_per_s = 1", 'stands in quotes: [targets."orders.eu"]'),
        ('[targets."a b"]\nmax_per_s = 1', 'targets."a b" fits no topic'),
        ('roll_window = "25d"', "roll_window: at most 24d"),
        ("slots = 1000", "slots: a lap of the wheel"),
        ('adopt_progress = "yesterday"', "adopt_progress: give earliest, latest or an epoch ms"),
        ('profils = ["native"]', "there is no setting 'profils': did you mean 'profiles'?"),
        ("zzz = 1", "there is no setting 'zzz'"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_the_remedy(tmp_path: Path, toml: str, told: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        from_file(tmp_path, toml)
    assert told in str(wrong.value)


@pytest.mark.parametrize("quota", ["max_pending", "max_pending_bytes"])
def test_a_quota_that_leaves_a_partition_nothing_is_told_when_partitions_are_known(tmp_path: Path, quota: str) -> None:
    few = from_file(tmp_path, f'[topics."t.x"]\n{quota} = 3')
    with pytest.raises(SettingsError, match=rf"{quota} = 3: t\.x has 4 partitions.*give 4 or more"):
        few.turn_options({"timer.requests": TopicState(1, 1000), "t.x": TopicState(4, 1000)})


def links(service: str, port: int, name: str) -> dict[str, str]:
    """What Kubernetes tells of a Service to all pods beside it."""
    it = service.upper().replace("-", "_")
    url = f"tcp://10.0.0.1:{port}"
    return {
        f"{it}_SERVICE_HOST": "10.0.0.1",
        f"{it}_SERVICE_PORT": str(port),
        f"{it}_SERVICE_PORT_{name.upper()}": str(port),
        f"{it}_PORT": url,
        f"{it}_PORT_{port}_TCP": url,
        f"{it}_PORT_{port}_TCP_PROTO": "tcp",
        f"{it}_PORT_{port}_TCP_PORT": str(port),
        f"{it}_PORT_{port}_TCP_ADDR": "10.0.0.1",
    }


@pytest.mark.parametrize("service", ["timer-bridge", "timer-bridge-http", "timer-bridge-kafka"])
def test_what_kubernetes_tells_of_a_service_of_that_name_is_no_setting(service: str) -> None:
    found = load(SERVERS, links(service, 8321, "http"), None)
    assert (found.http_port, found.kafka) == (0, {})
    found = load(SERVERS, links(service, 8321, "http") | {"TIMER_BRIDGE_KAFKA_CLIENT_ID": "x"}, None)
    assert found.kafka == {"client.id": "x"}


def test_a_setting_that_looks_like_a_services_counts() -> None:
    assert load(SERVERS, {"TIMER_BRIDGE_HTTP_PORT": "8321"}, None).http_port == 8321
    with pytest.raises(SettingsError, match="http_port"):
        load(SERVERS, {"TIMER_BRIDGE_HTTP_PORT": "http://10.0.0.1:8321"}, None)
    with pytest.raises(SettingsError, match="there is no setting 'port'"):
        load(SERVERS, {"TIMER_BRIDGE_PORT": "8321"}, None)
    for name in Settings.model_fields:
        assert from_environment({f"TIMER_BRIDGE_{name.upper()}": "x"}), name
