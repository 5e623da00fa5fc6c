"""The client of a running bridge against other HTTP servers, on loopback."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pydantic import BaseModel

from bridge.cli.api_client import ApiClient
from bridge.errors import BridgeError


class Nothing(BaseModel):
    """Any JSON object."""


@contextmanager
def answering(code: int, location: str = "") -> Iterator[tuple[str, list[str | None]]]:
    """Yield a URL and the Authorization header of each request that arrives there."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append(self.headers["Authorization"])
            self.send_response(code)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Keep the test output clean."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])  # seconds until it sees its end
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_error_and_no_other_host_sees_the_token(code: int) -> None:
    with answering(200) as (elsewhere, seen), answering(code, elsewhere) as (url, _):
        bridge = ApiClient(url, "--http-port", "a-secret-token")
        for ask in (bridge.get, bridge.post):
            with pytest.raises(BridgeError, match=f"{url}: answered {code}, redirects are not followed; give --url"):
                ask("/pending", {}, Nothing)
    assert seen == []
