"""The audit log as a log collector reads it."""

import json
import logging
from collections.abc import Iterator

import pytest

from bridge.page.guard import log_action
from bridge.page.sessions import Caller

ADA = Caller("ada", "operate", '10.1.2.3" did=nothing')


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    yield
    root.setLevel(level)


def test_it_is_written_whatever_the_log_level_is(caplog: pytest.LogCaptureFixture) -> None:
    log_action(ADA, "cancel", {"id": "a"}, {})
    (line,) = caplog.messages
    assert r'who=ada where="10.1.2.3\" did=nothing" act=' in line


def test_every_id_is_written_a_hundred_a_line(caplog: pytest.LogCaptureFixture) -> None:
    ids, sent = [f"id-{n}" for n in range(350)], [f"timer.requests/0/{n}" for n in range(100)]
    log_action(ADA, "cancel selection", {}, {"ids": ids, "sent": sent})
    told = caplog.messages
    assert len({line.split(" did=")[0] for line in told}) == 1, "by which they belong together"
    first = json.loads(told[0].split(" came=")[1])
    assert (first["ids"].pop(), first["sent"]) == ("and 250 more", sent)
    more = [json.loads(line.split(" more=")[1])["ids"] for line in told[1:]]
    assert [len(each) for each in more] == [100, 100, 50]
    assert sum(more, first["ids"]) == ids
