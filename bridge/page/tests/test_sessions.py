"""Tokens, sessions, and peer tokens."""

import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bridge.cli.app import app
from bridge.config import secret_file as token_file
from bridge.config.http_address import own_address
from bridge.config.secret_file import digest_of, read_token
from bridge.config.settings import Settings, load
from bridge.errors import SettingsError
from bridge.page.sessions import (
    MAX_SESSIONS,
    MAX_WRONG_PER_ADDRESS,
    MAX_WRONG_TOTAL,
    SESSION_S,
    Authenticator,
    Caller,
    Token,
    WrongTokens,
    access_of,
    peer_key,
    read_tokens,
)

LONG = "0123456789abcdef"


class Now:
    s = 1_000_000.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def access(now: Now) -> Authenticator:
    return Authenticator(
        [Token("rita", "read", digest_of("r" * 32)), Token("otto", "operate", digest_of("o" * 32))], now
    )


def test_a_session_lasts_a_day_of_work_and_ends_at_logout(access: Authenticator, now: Now) -> None:
    otto = access.caller_by_token("o" * 32)
    assert otto is not None
    session, other = access.log_in(otto), access.log_in(otto)
    assert "o" * 32 not in session
    assert access.caller_by_session(session) == access.caller_by_session(other) == otto
    for forged in ("", "otto", session[:-1], f"{session}é"):
        assert access.caller_by_session(forged) is None
    assert access.verify_peer_token(session, "/") is None
    restarted = Authenticator([Token("otto", "operate", digest_of("o" * 32))], now)
    assert restarted.caller_by_session(session) is None
    access.log_out(session)
    assert (access.caller_by_session(session), access.caller_by_session(other)) == (None, otto)
    now.s += SESSION_S
    assert access.caller_by_session(other) is None


def test_the_number_of_sessions_is_bounded_and_the_oldest_ends(access: Authenticator, now: Now) -> None:
    otto = Caller("otto", "operate")
    sessions = [access.log_in(otto) for _ in range(MAX_SESSIONS + 1)]
    assert [access.caller_by_session(each) for each in (sessions[0], sessions[1], sessions[-1])] == [None, otto, otto]


def test_a_peer_token_is_no_help_in_guessing_a_token(now: Now) -> None:
    """The key of a peer token takes scrypt to compute: each guess needs 0.1 s and 32 MB."""
    tokens = [Token("otto", "operate", digest_of("o" * 32)), Token("rita", "read", digest_of("r" * 32))]
    key = peer_key(tokens)
    assert key == peer_key(reversed(tokens))
    assert len({key, peer_key(tokens[:1]), *(each.digest for each in tokens)}) == 4
    given = Authenticator(tokens, now, key=key).sign_peer_token(Caller("rita", "read"), "b:1", "/a?b=1")
    other = Authenticator(tokens, now, "b:1", key)
    assert other.verify_peer_token(given, "/a?b=1") == Caller("rita", "read", is_from_peer=True)
    for forged in (given.replace("rita", "otto"), given[:-1], "é", "", "rita", "rita.1.x"):
        assert other.verify_peer_token(forged, "/a?b=1") is None
    assert Authenticator(tokens[:1], now, "b:1", key).verify_peer_token(given, "/a?b=1") is None, (
        "a token that was taken away"
    )
    assert Authenticator(tokens, now, "b:1").verify_peer_token(given, "/a?b=1") is None, "another key"
    now.s += 30
    assert other.verify_peer_token(given, "/a?b=1") is None


def test_an_address_waits_for_the_next_minute_and_others_do_not(now: Now) -> None:
    now.s = 6_000
    limit = WrongTokens(now)
    for _ in range(MAX_WRONG_PER_ADDRESS):
        assert limit.wait_s("a") == 0
        limit.count("a", is_right=False)
        now.s += 1
    assert (limit.wait_s("a"), limit.wait_s("b")) == (60 - MAX_WRONG_PER_ADDRESS, 0)
    now.s = 6_059.9
    assert limit.wait_s("a") == 1
    now.s = 6_060
    assert limit.wait_s("a") == 0
    for _ in range(MAX_WRONG_PER_ADDRESS):
        limit.count("a", is_right=False)
    now.s = 100
    assert limit.wait_s("a") == 0, "a clock that was set back ends the wait as well"


def test_many_addresses_together_are_limited_and_lock_out_none_that_gave_a_right_token(now: Now) -> None:
    now.s = 6_000
    limit = WrongTokens(now)
    limit.count("operator", is_right=True)
    tried = 0
    for number in range(10_000):
        if limit.wait_s(f"10.0.0.{number}") == 0:
            limit.count(f"10.0.0.{number}", is_right=False)
            tried += 1
    assert tried == MAX_WRONG_TOTAL
    assert len(limit._wrong) <= MAX_WRONG_TOTAL + 1, "memory"
    assert limit.wait_s("operator") == 0
    for _ in range(MAX_WRONG_PER_ADDRESS):
        limit.count("operator", is_right=False)
    assert limit.wait_s("operator") == 60
    for number in range(5000):
        limit.count(f"10.1.0.{number}", is_right=True)
    assert len(limit._trusted) == 1000


def write(file: Path, text: str, mode: int = 0o600) -> Path:
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_tokens_file_has_one_token_a_line(tmp_path: Path) -> None:
    hashed = f"sha256:{digest_of('x').hex()}"
    file = write(tmp_path / "operators", f"ada:{LONG}1\n\n{LONG}2\neve:{hashed}\n")
    assert read_tokens(file, "operate") == [
        Token("ada", "operate", digest_of(f"{LONG}1")),
        Token("operators", "operate", digest_of(f"{LONG}2")),
        Token("eve", "operate", digest_of("x"), is_hashed=True),
    ]
    assert read_tokens(write(tmp_path / "bob", hashed), "read") == [
        Token("bob", "read", digest_of("x"), is_hashed=True)
    ]


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o620, 0o602, 0o666])
def test_a_file_of_secrets_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    file = write(tmp_path / "operators", f"ada:{LONG}", mode)
    for read in (read_token, lambda path: read_tokens(path, "read")):
        with pytest.raises(SettingsError, match=f"operators: mode {mode:o}, other users may .*; chmod 600") as error:
            read(file)
        assert LONG not in str(error.value)
    file.chmod(0o400)
    assert read_token(file) == LONG


def test_the_group_may_read_a_secret_that_kubernetes_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """root:fsGroup 0440, while the bridge runs as 10001."""

    def excess(mode: int, owner: int, us: int) -> int:
        monkeypatch.setattr(os, "geteuid", lambda: us)
        return token_file._excess_mode(os.stat_result((mode, 0, 0, 1, owner, 10001, 0, 0, 0, 0)))

    assert [excess(mode, 0, 10001) for mode in (0o440, 0o640, 0o444, 0o660)] == [0, 0, 0o444, 0o660]
    assert (excess(0o440, 0, 0), excess(0o440, 10001, 10001)) == (0o440, 0o440)


def test_a_token_that_is_made_is_known_by_its_line_and_the_line_is_no_token(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["token", "ada"]).stdout.splitlines()
    secret, line = (each.rpartition(": ")[2] for each in told)
    access = Authenticator(read_tokens(write(tmp_path / "operators", line), "operate"), time.time)
    assert access.caller_by_token(secret) == Caller("ada", "operate")
    for error in (line, line.partition(":")[2], line.rpartition(":")[2]):
        assert access.caller_by_token(error) is None
    assert isinstance(CliRunner().invoke(app, ["token", "a:b"]).exception, SettingsError)


def test_hashes_need_a_secret_that_all_instances_share(tmp_path: Path) -> None:
    tokens = str(write(tmp_path / "operators", f"ada:sha256:{'0' * 64}"))
    with pytest.raises(SettingsError, match="page_secret: missing, though a tokens file holds hashes"):
        access_of(settings(page_operator_tokens=tokens))
    for text, mode, told in (("s" * 15, 0o600, "shorter than 16"), ("s" * 32, 0o644, "chmod 600")):
        with pytest.raises(SettingsError, match=f"secret.*{told}"):
            access_of(settings(page_operator_tokens=tokens, page_secret=str(write(tmp_path / "secret", text, mode))))
    secret = str(write(tmp_path / "secret", "s" * 32))
    assert not access_of(settings(page_operator_tokens=tokens, page_secret=secret)).is_open
    with pytest.raises(SettingsError, match="two are named ada"):
        access_of(settings(page_operator_tokens=tokens, page_read_tokens=tokens, page_secret=secret))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        (
            "ada:short",
            "line 1: no sha256: with 64 hex.*shorter than 16 characters; make a line with `timer-bridge token",
        ),
        (f"ada:sha256:{LONG}", "line 1: no sha256: with 64 hexadecimal digits"),
        (f"a b:{LONG}", "letters, digits"),
    ],
)
def test_an_error_in_a_tokens_file_does_not_show_its_content(tmp_path: Path, text: str, told: str) -> None:
    file = write(tmp_path / "operators", text)
    with pytest.raises(SettingsError, match=told) as error:
        read_tokens(file, "operate")
    assert LONG not in str(error.value)
    assert "short:" not in str(error.value)
    with pytest.raises(SettingsError, match="No such file"):
        read_tokens(tmp_path / "nothing", "operate")


def settings(**given: str) -> Settings:
    return load({"bootstrap_servers": "127.0.0.1:1", "page": "true", "http_port": "8321", **given}, {}, None)


def test_a_page_that_others_reach_needs_tokens() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        assert settings(http_host=host).page
    for host in ("0.0.0.0", "10.1.2.3", "bridge.example"):
        with pytest.raises(SettingsError, match="--page-operator-tokens"):
            settings(http_host=host)
        assert settings(http_host=host, page_read_tokens="tokens").page
    proxy = settings(http_host="0.0.0.0", page_proxy="10.0.0.5", page_secret="s", page_proxy_operators="*@ops.example")
    assert (proxy.has_tokens, [*map(str, proxy.page_proxy)]) == (True, ["10.0.0.5/32"])
    with pytest.raises(SettingsError, match="page_proxy: give page_secret"):
        settings(http_host="0.0.0.0", page_proxy="10.0.0.5")
    with pytest.raises(SettingsError, match="page: give --http-port"):
        settings(http_port="0")
    with pytest.raises(SettingsError, match="advertised_http: write host:port"):
        settings(advertised_http="http://a")


def test_the_advertised_address() -> None:
    assert own_address(settings()) == "127.0.0.1:8321"
    assert own_address(settings(http_host="::1")) == "[::1]:8321"
    assert own_address(settings(advertised_http="a.example:80")) == "a.example:80"
    everywhere = settings(http_host="0.0.0.0", page_read_tokens="t")
    assert own_address(everywhere) == "127.0.0.1:8321", "the way to the brokers"
    assert own_address(load({"bootstrap_servers": "127.0.0.1:1"}, {}, None)) == ""
