"""`timer-bridge pending --select ...` against two bridges on a Kafka in memory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bridge.cli.app import app
from bridge.errors import BridgeError, SettingsError
from bridge.page.api import actions
from bridge.page.api.timer_requests import RequestSender
from bridge.tests.simulation.http_fakes import OPERATOR, READER, Place

pytestmark = pytest.mark.thorough


@pytest.fixture
def place() -> Iterator[Place]:
    with Place([OPERATOR, READER]) as made:
        for number in range(20):
            made.producer.schedule("orders", "v", key=f"k{number % 2}", delay="2h", id=f"id-{number}")
        made.run(300)
        yield made


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("otto:" + "o" * 32 + "\n")
    file.chmod(0o600)
    return file


def pending(place: Place, *arguments: str, token: Path | None = None, number: int = 0) -> Result:
    given = [] if token is None else ["--token-file", str(token)]
    where = ["--url", place.pages[number].url, *given] if "--http-port" not in arguments else given
    return CliRunner().invoke(app, ["pending", *where, *arguments])


def count(place: Place) -> int:
    return int(place.pages[0].holding("o" * 32).get("/api/v1/overview")[1]["pending"])


def test_a_selection_is_only_counted_unless_it_is_to_be_applied(place: Place, token: Path) -> None:
    found = pending(place, "--select", "topic=orders", "--select", "key=k1", token=token)
    assert (found.exit_code, found.stdout.splitlines()[0]) == (0, "10 timers match")
    assert "id-1" in found.stdout
    dry = pending(place, "--select", "key=k1", "--cancel", token=token, number=1)
    assert "nothing was sent: give --apply to cancel them" in dry.stdout
    assert count(place) == 20
    done = pending(place, "--select", "key=k1", "--cancel", "--apply", token=token, number=1)
    assert (done.exit_code, done.stdout) == (0, "cancel: 10 requests sent; 10 cancelled\n")
    assert count(place) == 10


def test_a_selection_is_moved_and_released(place: Place, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.producer.schedule("orders", "without an id", key="k1", delay="2h").result(0)
    place.run(300)
    moved = pending(place, "--select", "key=k1", "--move-by", "-1h", "--apply", token=token)
    assert moved.stdout == "move: 11 requests sent; 11 moved\n"
    place.run(3_700_000)
    assert count(place) == 10
    released = pending(place, "--select", "topic=orders", "--release", "--apply", token=token)
    assert released.stdout == "release: 10 requests sent; 10 moved\n"
    place.run(300)
    assert count(place) == 0
    monkeypatch.setattr(actions, "MAX_PER_SELECTION", 0)
    place.producer.schedule("orders", "v", delay="2h", id="one more")
    place.run(300)
    refused = pending(place, "--select", "topic=orders", "--move-by", "1h", "--apply", token=token)
    assert "1 match, 0 go at a time: narrow the selector" in str(refused.exception)


def test_a_selection_is_paused_and_resumed(place: Place, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part by part, as a paused timer still matches, at its own due time."""
    monkeypatch.setattr(actions, "MAX_PER_SELECTION", 8)
    for _ in range(2):
        paused = pending(place, "--select", "topic=orders", "--pause", "--apply", token=token)
        told = [f"pause: {sent} requests sent; {sent} paused" for sent in (8, 8, 4)]
        assert (paused.exit_code, paused.stdout.splitlines()) == (0, told)
        place.run(300)
    assert "next due: none" in pending(place).stdout
    told = json.loads(pending(place, "--json").stdout)
    assert told["topics"]["orders"]["paused"] == told["pending"] > 0
    place.run(3 * 3_600_000)
    assert count(place) == 20
    resumed = pending(place, "--select", "key=k1", "--resume", "--apply", token=token)
    assert [line.split()[-1] for line in resumed.stdout.splitlines()] == ["resumed", "resumed"]
    place.run(300)
    assert count(place) == 10


def test_parts_are_acted_on_one_by_one_and_timers_that_arrive_after_the_count_are_left_alone(
    place: Place, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MAX_PER_SELECTION", 8)
    sending = RequestSender.send

    def send(requests: RequestSender, *given: Any, **more: Any) -> Any:
        if count(place) == 20:  # new timers before and after all parts
            for number, delay in enumerate(("1h", "3h")):
                place.producer.schedule("orders", "v", delay=delay, id=f"late-{number}").result(0)
            place.run(300)
        return sending(requests, *given, **more)

    monkeypatch.setattr(RequestSender, "send", send)
    done = pending(place, "--select", "topic=orders", "--cancel", "--apply", token=token)
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["8", "8", "4"]
    assert "more match that were not counted" in str(done.exception)
    left = place.pages[0].holding("o" * 32).get("/api/v1/timers")[1]["timers"]
    assert [timer["id"] for timer in left] == ["late-0", "late-1"]


CHOSEN = ["--select", "key=k1", "--cancel", "--apply"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--select", "value=x"], "write one of topic=..., key=..."),
        (["--select", "topic=a", "--select", "topic=b"], "topic is given twice"),
        (["--select", "due-to=soon"], "due_to: 'soon' is no instant"),
        (["--cancel"], "--cancel, --move-by, --release, --pause, --resume and --apply act on what --select names"),
        (["--select", "topic=a", "--cancel", "--release"], "give one of them"),
        (["--topic", "orders", *CHOSEN], "--topic: leave it out if --select is given: write --select topic=..."),
        (["--id", "id-1", *CHOSEN], "if --select is given: `timer-bridge cancel`, `move`, `release`, `pause`"),
        (["--data-dir", ".", *CHOSEN], "--data-dir: leave it out if --select is given: only running bridges"),
    ],
)
def test_an_invalid_selection_is_refused_with_the_remedy(
    place: Place, token: Path, arguments: list[str], told: str
) -> None:
    found = pending(place, *arguments, token=token)
    assert isinstance(found.exception, SettingsError), found.output
    assert told in str(found.exception)
    assert count(place) == 20


def test_a_missing_or_read_only_token_is_reported(place: Place, tmp_path: Path, token: Path) -> None:
    found = pending(place, "--select", "topic=orders")
    assert "--token-file" in str(found.exception)
    reader = tmp_path / "reader"
    reader.write_text("r" * 32)
    reader.chmod(0o600)
    found = pending(place, "--select", "topic=orders", "--cancel", "--apply", token=reader)
    assert isinstance(found.exception, BridgeError)
    assert "rita may only read" in str(found.exception)
    place.addresses["two"] = "127.0.0.1:1"
    found = pending(place, "--select", "topic=orders", "--cancel", "--apply", token=token)
    assert "partitions have not answered" in str(found.exception)
    assert count(place) < 20, "of the first instance alone"
    found = pending(place, "--select", "topic=orders", "--http-port", "1")
    assert "is a bridge running there, with --page?" in str(found.exception)
