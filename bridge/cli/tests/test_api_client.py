"""The client of a running bridge against other HTTP servers, on loopback."""

import pytest
from pydantic import BaseModel

from bridge.cli.api_client import ApiClient
from bridge.errors import BridgeError
from bridge.tests.simulation.http_fakes import answering, http


class Nothing(BaseModel):
    """Any JSON object."""


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_error_and_no_other_host_sees_the_token(code: int) -> None:
    with answering(http("{}")) as (elsewhere, asked):
        moved = http("{}", f"{code} Moved", f"Location: http://{elsewhere}/\r\n")
        with answering(moved, drips=True) as (address, _):  # a close could arrive before the answer
            bridge = ApiClient(f"http://{address}", "--http-port", "a-secret-token")
            for ask in (bridge.get, bridge.post):
                with pytest.raises(BridgeError, match=f"{address}: answered {code}, redirects are not followed; give"):
                    ask("/pending", {}, Nothing)
        assert asked == []
