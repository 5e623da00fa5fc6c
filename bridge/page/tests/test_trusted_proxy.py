"""Users whom a trusted proxy has logged in. The proxy asks the page from 127.0.0.2."""

from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from ipaddress import ip_network

import pytest

from bridge.page.sessions import TrustedProxy
from bridge.page.tests.test_api import schedule
from bridge.page.tests.test_page import Browser
from bridge.tests.simulation.http_fakes import READER, Answer, Place

pytestmark = pytest.mark.thorough

HEADER = "X-Forwarded-User"
PROXY = TrustedProxy((ip_network("127.0.0.2/32"),), HEADER, ("*@ops.example",))


class LoggedIn(Browser):
    """A browser behind the proxy, which has logged `user` in and replaces the header, as oauth2-proxy does."""

    def __init__(self, place: Place, user: str) -> None:
        super().__init__(place.pages[0].url)
        self._user = user

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        with closing(HTTPConnection(self.url[7:], source_address=("127.0.0.2", 0), timeout=30)) as connection:
            connection.request(method, path, body, headers | {HEADER: self._user})
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode(), answer.headers)


@pytest.fixture
def place() -> Iterator[Place]:
    with Place([READER], proxy=PROXY) as made:
        yield made


def test_users_of_the_proxy_read_and_operators_among_them_act(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    schedule(place, 8, prefix="p")
    reader, operator = LoggedIn(place, "eve@dev.example"), LoggedIn(place, "ada@ops.example")
    overview = reader.show("/").text
    assert "eve@dev.example" in overview
    assert "Log out" not in overview, "the proxy does that"
    assert "Not all partitions have answered" not in overview, "peers believe the signature for a user with dots"
    key = operator.form_key("/timer?id=p1")
    refused = reader.send("/timer/cancel", {"id": "p1", "form_key": reader.form_key("/rejected")})
    assert (refused.status, "eve@dev.example may only read" in refused.text) == (403, True)
    assert reader.send("/timer/cancel", {"id": "p1", "form_key": key}).status == 403, "a key of another user"
    assert operator.send("/timer/cancel", {"id": "p1", "form_key": key}).status == 200
    assert operator.post("/api/v1/timer/cancel", {"id": "p2"})[0] == 200
    by_form = operator.ask("POST", "/api/v1/timer/cancel", b'{"id": "p3"}', **{"Content-Type": "text/plain"})
    assert by_form.status == 400, "any site can send such a form"
    assert any("who=ada@ops.example" in each.getMessage() for each in caplog.records)


def test_a_forged_header_from_elsewhere_is_refused(place: Place) -> None:
    page = place.pages[0]
    for path in ("/", "/api/v1/overview", "/login"):
        answer = page.ask("GET", path, None, **{HEADER: "ada@ops.example"})
        assert answer.status == (200 if path == "/login" else 403), path
        assert ("only page_proxy may send it" in answer.text) == (path != "/login")
    assert page.ask("GET", "/", None).status == 303, "without the header, a token is needed"
    assert page.holding("r" * 32).get("/api/v1/overview")[0] == 200


def test_a_proxy_that_adds_to_the_header_of_a_client_is_refused(place: Place) -> None:
    with closing(HTTPConnection(place.pages[0].url[7:], source_address=("127.0.0.2", 0), timeout=30)) as connection:
        for users in (["ada@ops.example", "eve@dev.example"], ["ada ops"], [""]):
            connection.putrequest("GET", "/api/v1/overview")
            for user in users:
                connection.putheader(HEADER, user)
            connection.endheaders()
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 403, users
