"""`timer-bridge pending` on the directory of a stopped bridge. bridge/page/tests/test_server.py asks running ones."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import Result

from bridge.cli.api_client import ApiClient
from bridge.cli.tests.test_store_commands import disk_in, never_checkpointed
from bridge.cli.tests.test_store_commands import run as command
from bridge.errors import BridgeError, SettingsError, exit_code_of
from bridge.partition.copies import id_hash
from bridge.tests.simulation.http_fakes import answering, http
from schemas.journal import CopyInFlight
from timer.disk import ReadOnlyDisk
from timer.format.body import Body
from timer.stopped_store import StoppedStore
from timer.tests.history import START_MS, History, full_history

HOUR_MS = 3_600_000
FLIGHTS = (
    CopyInFlight(7, 2, START_MS - 60_000, "orders", id_hash(b"flies"), ""),
    CopyInFlight(9, 1, START_MS + 10 * HOUR_MS, "bills", "", ""),
    CopyInFlight(11, 1, START_MS - 90_000, "ended", id_hash(b"ended"), ""),
)


def run(*arguments: object, **environment: str | None) -> Result:
    return command("pending", *arguments, **{"TIMER_BRIDGE_HTTP_PORT": None, **environment})


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Three partitions: timers in all states, copies in flight, and empty."""
    for partition in (0, 1, 2):
        with disk_in(tmp_path, partition) as disk:
            history = full_history(disk) if partition == 0 else History(disk)
            if partition == 1:
                history.receives(500, 2 * HOUR_MS)
                history.store.committed(history.store.advance_progress())
                history.store.start_checkpoint(0, FLIGHTS, [11])
                history.store.finish_checkpoint()
            history.closes()
    return tmp_path


def living(data_dir: Path, partition: int) -> list[Body]:
    with StoppedStore(ReadOnlyDisk(data_dir / "timer.requests" / str(partition))) as opened:
        return [timer.body for timer in opened.soonest(10**6)]


def test_case_34_all_partitions_and_copies_in_flight_are_merged(data_dir: Path) -> None:
    result = run("--data-dir", data_dir, "--json")
    told: dict[str, Any] = json.loads(result.stdout)
    first, second = living(data_dir, 0), living(data_dir, 1)
    dues = [body.due_ms for body in first + second] + [FLIGHTS[0].due_ms]
    assert result.stderr == ""
    assert told["shards"] == {"timer.requests/0": len(first), "timer.requests/1": len(second) + 2}
    assert told["pending"] == len(dues) + 1
    orders, bills = told["topics"].pop("orders"), told["topics"].pop("bills")
    assert told["topics"] == {}
    hours = sorted(Counter(due // HOUR_MS * HOUR_MS for due in dues).items())
    assert orders == {
        "pending": len(dues),
        "paused": 0,
        "first_due_ms": min(dues),
        "last_due_ms": max(dues),
        "histogram": [{"from_ms": at_ms, "timers": count} for at_ms, count in hours],
    }
    assert (bills["pending"], bills["first_due_ms"]) == (1, FLIGHTS[1].due_ms)
    told = json.loads(run("--data-dir", data_dir, "--topic", "bills", "--bucket", "1d", "--json").stdout)
    day_ms = FLIGHTS[1].due_ms // (24 * HOUR_MS) * 24 * HOUR_MS
    assert (told["pending"], told["topics"]["bills"]["histogram"]) == (1, [{"from_ms": day_ms, "timers": 1}])


def test_the_output_as_text(data_dir: Path) -> None:
    shown = run("--data-dir", data_dir, COLUMNS="200").stdout
    assert "next due: 2023-11-14T22:12:20.000Z" in shown
    assert "orders" in shown
    assert "bills" in shown
    assert "#####" in shown
    assert "0 pending" in run("--data-dir", data_dir, "--topic", "nobody").stdout


def test_one_id(data_dir: Path) -> None:
    def told(id_: str) -> Any:
        return json.loads(run("--data-dir", data_dir, "--id", id_, "--json").stdout)["timers"]

    (flying,) = told("flies")
    place = {"shard": "timer.requests/1", "origin": 7, "offset": None, "topic": "orders", "partition": None}
    assert flying == {"state": "rolling", "due_ms": START_MS - 60_000, "is_paused": False, "rolls": 2, **place}
    for body in living(data_dir, 0):
        if body.id is not None:
            (timer,) = [each for each in told(body.id.decode()) if each["shard"] == "timer.requests/0"]
            assert timer["state"] == ("held" if body.due_ms == START_MS + 100_000 else "due")
            assert (timer["origin"], timer["offset"], timer["rolls"]) == (body.origin_offset, body.offset, body.rolls)
    assert "rolling" in run("--data-dir", data_dir, "--id", "flies").stdout
    for id_ in ("ended", "nobody"):
        with pytest.raises(BridgeError, match=f"no timer is pending under '{id_}'") as none:
            run("--data-dir", data_dir, "--id", id_)
        assert exit_code_of(none.value) == 1


def test_a_store_without_a_checkpoint_is_not_reported_as_empty(tmp_path: Path) -> None:
    never_checkpointed(tmp_path)
    assert "note: timer.requests/0 could not be read" in run("--data-dir", tmp_path).stderr
    with pytest.raises(BridgeError, match=r"nothing was found under 'x', but timer.requests/0 could not be read"):
        run("--data-dir", tmp_path, "--id", "x")


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"], ids=["ssh", "half"]
)
def test_a_server_that_is_not_a_bridge_is_reported(answer: bytes) -> None:
    """Another server's port, or a bridge that ends during its answer."""
    with answering(answer) as (address, _), pytest.raises(BridgeError) as told:
        run("--url", f"http://{address}")
    assert re.match(rf"http://{address}: .*is a bridge running there, with --http-port\?$", str(told.value))


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_error_and_no_other_host_sees_the_token(code: int) -> None:
    with answering(http("{}")) as (elsewhere, asked):
        moved = http("{}", f"{code} Moved", f"Location: http://{elsewhere}/\r\n")
        with answering(moved, drips=True) as (address, _):  # a close could arrive before the answer
            bridge = ApiClient(f"http://{address}", "--http-port", "a-secret-token")
            for ask in (bridge.get, bridge.post):
                with pytest.raises(BridgeError, match=f"{address}: answered {code}, redirects are not followed; give"):
                    ask("/pending", {}, BaseModel)
        assert asked == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--url", "http://127.0.0.1:83x1"), "83x1: write http://host:port"),
        (("--url", "http://[::1"), "write http://host:port"),
        ((), "give --http-port or --url of a running bridge, or --data-dir of a stopped one"),
        (("--url", "http://a", "--data-dir", "b"), "give one of them"),
        (("--url", "localhost:8321"), "write http://host:port"),
        (("--data-dir", "/nowhere"), "/nowhere is not a directory"),
        (("--select", "topic=orders"), "give --http-port or --url of a running bridge"),
        (("--http-port", "1", "--bucket", "5m"), "--bucket: '5m' is not a number of whole hours"),
    ],
)
def test_a_wrong_call_is_refused_with_the_remedy(arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        run(*arguments)


def test_the_port_in_the_environment_is_asked_unless_a_directory_is_given(data_dir: Path) -> None:
    of_a_service = "tcp://10.0.0.1:8321"
    for port, told in (
        ("1", r"http://127\.0\.0\.1:1: Connection refused: is a bridge running there"),
        (of_a_service, "give --http-port or --url of a running bridge"),
        ("x", "TIMER_BRIDGE_HTTP_PORT is 'x': give a port, such as 8321"),
    ):
        with pytest.raises(BridgeError, match=told):
            run(TIMER_BRIDGE_HTTP_PORT=port)
        assert "pending at" in run("--data-dir", data_dir, TIMER_BRIDGE_HTTP_PORT=port).stdout
