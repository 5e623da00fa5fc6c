"""Two workers with real HTTP servers on Unix sockets, behind one port."""

import json
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

from bridge.dev.embedded_kafka import free_port
from bridge.page.guard import KnownHosts
from bridge.page.reverse_proxy import ReverseProxy, merge_metrics
from bridge.page.server import serving, serving_worker
from bridge.page.sessions import Token
from bridge.page.tests.test_page import Browser
from bridge.tests.simulation.http_fakes import OPERATOR, READER, Place

pytestmark = pytest.mark.thorough


class WorkersPlace(Place):
    """Workers 1 and 2 (`one`, `two`) of one instance, whose page is `page`."""

    def __init__(self, tokens: Sequence[Token] = ()) -> None:
        super().__init__(tokens)
        self.folder = Path(tempfile.mkdtemp(prefix="timer-"))  # a socket's path may have 107 characters
        self.port = free_port()
        self.page = Browser(f"http://127.0.0.1:{self.port}")
        self.sockets = [self.folder / "1", self.folder / "2"]
        hosts = Middleware(KnownHosts, any_address=bool(tokens))
        self._front = serving("127.0.0.1", self.port, ReverseProxy(self.sockets).application(hosts))

    def _listening(self) -> tuple[str, Callable[[Starlette], AbstractContextManager[None]]]:
        number = len(self._served) + 1
        return f"127.0.0.1:{self.port}/worker-{number}", partial(serving_worker, self.sockets[number - 1])

    def __enter__(self) -> "WorkersPlace":
        super().__enter__()
        self._front.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._front.__exit__(None, None, None)
        super().__exit__(*raised)
        shutil.rmtree(self.folder)

    def end(self, number: int) -> None:
        """End a worker. Its socket stays, as after a kill."""
        self._served[number - 1].close()

    def schedule(self) -> None:
        for number in range(20):
            self.producer.schedule("orders", b"v", delay="1h", id=f"id-{number}")
        self.run(300)


@pytest.fixture
def place() -> Iterator[WorkersPlace]:
    with WorkersPlace() as made:
        yield made


@pytest.fixture
def guarded() -> Iterator[WorkersPlace]:
    with WorkersPlace([READER, OPERATOR]) as made:
        yield made


def test_probes_are_those_of_all_workers_and_name_the_one_that_is_not_well(place: WorkersPlace) -> None:
    partitions = {f"timer.requests/{number}": "running" for number in range(4)}
    for path in ("/health/live", "/health/ready"):
        assert place.page.get(path) == (200, {"status": "ok", "shards": partitions})
    place.instances[1].status.waiting_for_broker("no broker")
    status, told = place.page.get("/health/ready")
    assert (status, told["reason"], told["detail"]) == (503, "worker 2: waiting for the broker", "no broker")
    assert told["shards"] == partitions
    place.end(2)
    assert place.page.get("/health/ready")[1]["reason"] == "worker 2: the worker does not run: ask again"
    assert place.page.get("/health/live")[0] == 200, "the supervisor starts it again; a restart of all would not help"


def test_a_worker_that_hangs_is_not_alive(place: WorkersPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.page.reverse_proxy._QUICK_S", 0.2)
    place.end(2)
    place.sockets[1].unlink()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(place.sockets[1]))
        silent.listen()
        status, told = place.page.get("/health/live")
    assert (status, told["reason"]) == (503, "worker 2: the worker does not answer: ask again")


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_metrics_are_those_of_all_workers_with_a_label(place: WorkersPlace, accept: str) -> None:
    place.schedule()
    text = place.page.ask("GET", "/metrics", Accept=accept).text
    owned = [line for line in text.splitlines() if line.startswith("timer_bridge_partition_owned{")]
    assert sorted(line.partition('worker="')[2][0] for line in owned) == ["1", "1", "2", "2"]
    assert text.count("# TYPE timer_bridge_partition_owned ") == 1
    assert text.count("# EOF") == (accept != "")
    assert {line.partition('worker="')[2][:1] for line in text.splitlines() if line[0] != "#"} == {"1", "2"}
    place.end(2)
    text = place.page.ask("GET", "/metrics", Accept=accept).text
    assert 'timer_bridge_ready{worker="1"} 1.0\ntimer_bridge_ready{worker="2"} 0.0\n' in text


def test_labels_are_added_to_samples_with_and_without_labels() -> None:
    head, other = "# HELP a # odd } text\n# TYPE a gauge\n", "# HELP c d\n# TYPE c counter\n"
    texts = [head + 'a{b="} 1"} 2.0\n' + other + "c_total 1.0\n", head + 'a{b="x"} 3.0\n']
    assert merge_metrics(texts) == (
        head + 'a{b="} 1",worker="1"} 2.0\na{b="x",worker="2"} 3.0\n' + other + 'c_total{worker="1"} 1.0\n'
    )


def test_pending_is_added_up(place: WorkersPlace) -> None:
    place.schedule()
    status, told = place.page.get("/pending")
    assert (status, told["pending"], len(told["shards"])) == (200, 20, 4)
    assert [place.page.get(f"/pending?id=id-{number}")[0] for number in range(20)] == [200] * 20
    assert place.page.get("/pending?id=none")[0] == 404
    assert place.page.get("/pending?bucket=1x")[0] == 400
    place.end(2)
    assert place.page.get("/pending") == (503, {"reason": "the worker does not run: ask again"})


def test_the_page_and_the_api_show_and_change_the_timers_of_both(place: WorkersPlace) -> None:
    place.schedule()
    status, told = place.page.get("/api/v1/overview")
    assert (status, told["pending"], told["missing"]) == (200, 20, [])
    assert [each["address"].partition("/")[2] for each in told["instances"]] == ["worker-1", "worker-2"]
    for number in range(20):
        assert place.page.get(f"/api/v1/timer?id=id-{number}")[0] == 200
    assert place.page.post("/api/v1/timer/cancel", {"id": "id-3"})[1]["outcomes"] == {"cancelled": 1}
    assert place.page.show("/").status == place.page.show("/static/page.css").status == 200
    assert place.page.ask("HEAD", "/").status == 200
    assert place.page.show("/nothing").status == 404


def test_the_next_worker_serves_the_page_if_the_first_one_does_not_run(place: WorkersPlace) -> None:
    place.end(1)
    status, told = place.page.get("/api/v1/overview")
    assert (status, [each["address"][-8:] for each in told["instances"]]) == (200, ["worker-2"])
    why = f"{place.addresses['one']}: the worker does not run: ask again"
    assert {each["why"] for each in told["missing"]} == {why}
    place.end(2)
    assert place.page.get("/api/v1/overview") == (503, {"reason": "the worker does not run: ask again"})


def test_sessions_and_forms_work_and_the_clients_address_is_that_of_the_connection(
    guarded: WorkersPlace, caplog: pytest.LogCaptureFixture
) -> None:
    forged = {"X-Forwarded-For": "6.6.6.6", "Forwarded": "for=6.6.6.6"}
    with caplog.at_level("INFO"):
        assert guarded.page.ask("POST", "/login", b"token=" + b"o" * 32, **forged).status == 303
    assert 'who=otto where="127.0.0.1"' in caplog.text
    assert guarded.page.show("/").status == 200
    key = guarded.page.form_key()
    other = guarded.page.send("/topic/pause", {"topic": "orders", "form_key": key}, Origin="http://evil.example")
    assert (other.status, "another site" in other.text) == (403, True)
    own = {"Origin": guarded.page.url}
    assert guarded.page.send("/topic/pause", {"topic": "orders", "form_key": key}, **own).status == 200


def test_wrong_tokens_are_counted_for_all_workers_together(guarded: WorkersPlace) -> None:
    page, right = guarded.page, guarded.page.holding("r" * 32)
    assert [right.get("/pending?id=x")[0], right.get("/api/v1/overview")[0]] == [404, 200]
    for number in range(10):
        forged = {"X-Forwarded-For": f"6.6.6.{number}"}
        assert page.holding("wrong").get("/api/v1/overview", **forged)[0] == 401
    assert [right.get(path)[0] for path in ("/api/v1/overview", "/pending?id=x")] == [429, 429]
    for worker in (1, 2):
        path = f"/worker-{worker}/api/v1/overview?local=true"
        assert [right.get(path)[0], page.get(path)[0]] == [401, 401], "only for other instances' signatures"


def test_only_reads_of_the_api_are_passed_on_to_a_worker_by_its_number(guarded: WorkersPlace) -> None:
    for path in ("", "login", "metrics"):
        assert guarded.page.show(f"/worker-2/{path}").status == 404, path
    assert guarded.page.show("/worker-3/api/v1/pending").status == 404
    assert guarded.page.post("/worker-2/api/v1/timer/cancel", {"id": "a"})[0] == 404


def test_a_large_body_is_refused_before_it_is_read_and_unknown_hosts_are_too(guarded: WorkersPlace) -> None:
    large = json.dumps({"id": "x" * (3 << 20)}).encode()
    assert guarded.page.ask("POST", "/api/v1/timer/cancel", large).status == 401
    assert guarded.page.holding("o" * 32).ask("POST", "/api/v1/timer/cancel", large).status == 413
    for path in ("/", "/metrics", "/pending", "/health/live", "/worker-1/api/v1/pending"):
        assert guarded.page.ask("GET", path, Host="evil.example").status == 403
