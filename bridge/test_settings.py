"""Settings: where they come from, and what is told about a wrong one."""

from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.settings import Settings, load

SERVERS = {"bootstrap_servers": "127.0.0.1:1"}


def settings(tmp_path: Path, *, flag: str | None = None, env: str | None = None, toml: str = "") -> Settings:
    file = tmp_path / "bridge.toml"
    file.write_text(toml)
    environment = {} if env is None else {"TIMER_BRIDGE_PROFILES": env}
    return load({**SERVERS, "profiles": flag}, environment, file)


def test_native_and_rocketmq_are_on(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert found.profiles == ("native", "rocketmq")
    assert found.turn_options(1000).rules.profiles == ("native", "rocketmq")


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
