"""Users whom a trusted proxy has logged in. The proxy runs in the test, and asks the page from 127.0.0.2."""

import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network

import pytest

from bridge.page.sessions import TrustedProxy
from bridge.page.tests.test_page import Browser
from bridge.tests.simulation.http_fakes import READER, Place

pytestmark = pytest.mark.thorough

HEADER = "X-Forwarded-User"
PROXY = TrustedProxy((ip_network("127.0.0.2/32"),), HEADER, ("*@ops.example",))


class LoginProxy(BaseHTTPRequestHandler):
    """As oauth2-proxy does: the cookie `login` names the user, a header that the client sent is replaced."""

    behind: str

    def _pass_on(self) -> None:
        user = (self.headers.get("Cookie") or "").partition("login=")[2].partition(";")[0]
        if not user:
            self.send_error(401)
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() != HEADER.lower()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with closing(HTTPConnection(self.behind, source_address=("127.0.0.2", 0), timeout=30)) as connection:
            connection.request(self.command, self.path, body or None, headers | {HEADER: user})
            answer = connection.getresponse()
            text = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() != "transfer-encoding":
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = _pass_on  # noqa: N815  (names of the base class)

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002
        """Keep the output clean."""


@pytest.fixture
def place() -> Iterator[Place]:
    with Place([READER], proxy=PROXY) as made:
        yield made


@pytest.fixture
def proxy(place: Place) -> Iterator[str]:
    LoginProxy.behind = place.pages[0].url.removeprefix("http://")
    with ThreadingHTTPServer(("127.0.0.1", 0), LoginProxy) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def logged_in(proxy: str, user: str) -> Browser:
    browser = Browser(proxy)
    browser.cookie = f"login={user}"
    return browser


def test_users_of_the_proxy_read_and_operators_among_them_act(
    place: Place, proxy: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(8):
        place.producer.schedule("orders", "v", delay="2h", id=f"p{number}")
    place.run(300)
    reader, operator = logged_in(proxy, "eve@dev.example"), logged_in(proxy, "ada@ops.example")
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
    assert Browser(proxy).show("/").status == 401


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
