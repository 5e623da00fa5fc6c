"""Tokens and what is signed with them."""

from pathlib import Path

import pytest

from bridge.address import own_address
from bridge.errors import SettingsError
from bridge.page.access import SESSION_S, Access, Token, read_tokens
from bridge.page.wiring import access_of
from bridge.settings import Settings, load

LONG = "0123456789abcdef"


class Now:
    s = 1_000_000.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def access(now: Now) -> Access:
    return Access([Token("rita", "read", b"r" * 32), Token("otto", "operate", b"o" * 32)], now)


def test_a_session_lasts_a_day_of_work_and_is_nobody_elses(access: Access, now: Now) -> None:
    otto = access.by_secret("o" * 32)
    assert otto is not None
    session = access.session(otto)
    assert "o" * 32 not in session
    assert access.by_session(session) == otto
    for forged in (
        "",
        "otto",
        session[:-1],
        session.replace("otto", "rita"),
        session.replace("otto", "eve"),
        f"{session}é",
    ):
        assert access.by_session(forged) is None
    assert access.by_pass(session, "/") is None
    other = Access([Token("otto", "operate", b"x" * 32)], now)
    assert other.by_session(session) is None, "a token that was changed ends its sessions"
    assert Access([Token("otto", "operate", b"o" * 32)], now).by_session(session) == otto, "on any instance"
    now.s += SESSION_S
    assert access.by_session(session) is None


def test_a_form_is_good_for_its_session_alone(access: Access) -> None:
    rita, otto = access.by_secret("r" * 32), access.by_secret("o" * 32)
    assert rita is not None
    assert otto is not None
    key = access.form_key(otto, "s1")
    assert access.is_form_key(key, otto, "s1")
    assert not access.is_form_key(key, otto, "s2")
    assert not access.is_form_key(key, rita, "s1")
    assert not access.is_form_key("é", otto, "s1")


def test_tokens_stand_in_files_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "operators"
    file.write_text(f"ada:{LONG}1\n\n{LONG}2\n")
    assert read_tokens(file, "operate") == [
        Token("ada", "operate", f"{LONG}1".encode()),
        Token("operators", "operate", f"{LONG}2".encode()),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("ada:short", "line 1: shorter than 16 characters: make one with openssl"),
        (f"a b:{LONG}", "letters, digits"),
    ],
)
def test_a_tokens_file_that_is_not_right_is_told_without_what_is_in_it(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "operators"
    file.write_text(text)
    with pytest.raises(SettingsError, match=told) as wrong:
        read_tokens(file, "operate")
    assert LONG not in str(wrong.value)
    assert "short:" not in str(wrong.value)
    with pytest.raises(SettingsError, match="No such file"):
        read_tokens(tmp_path / "nothing", "operate")


def test_two_tokens_of_one_name_are_refused(tmp_path: Path) -> None:
    for role in ("read", "operate"):
        (tmp_path / role).write_text(f"ada:{LONG}{role}")
    given = {"page_read_tokens": str(tmp_path / "read"), "page_operator_tokens": str(tmp_path / "operate")}
    with pytest.raises(SettingsError, match="two are named ada"):
        access_of(settings(**given))


def settings(**given: str) -> Settings:
    return load({"bootstrap_servers": "127.0.0.1:1", "page": "true", "http_port": "8321", **given}, {}, None)


def test_a_page_that_others_reach_needs_tokens() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        assert settings(http_host=host).page
    for host in ("0.0.0.0", "10.1.2.3", "bridge.example"):
        with pytest.raises(SettingsError, match="--page-operator-tokens"):
            settings(http_host=host)
        assert settings(http_host=host, page_read_tokens="tokens").page
    with pytest.raises(SettingsError, match="page: give --http-port"):
        settings(http_port="0")
    with pytest.raises(SettingsError, match="advertised_http: write host:port"):
        settings(advertised_http="http://a")


def test_the_address_that_others_are_told() -> None:
    assert own_address(settings()) == "127.0.0.1:8321"
    assert own_address(settings(http_host="::1")) == "[::1]:8321"
    assert own_address(settings(advertised_http="a.example:80")) == "a.example:80"
    everywhere = settings(http_host="0.0.0.0", page_read_tokens="t")
    assert own_address(everywhere) == "127.0.0.1:8321", "the way to the brokers"
    assert own_address(load({"bootstrap_servers": "127.0.0.1:1"}, {}, None)) == ""
