"""Which codes of the rejected topic the audit checks, and what it says of those that it cannot check."""

import pytest

from kafka_timer import headers as names
from spark_jobs.audit_rules.verdicts import PARSE_CODES, UNPROVED_CODES
from spark_jobs.tests.one_run import TIGHT, Judging, one_run
from spark_jobs.tests.records import History, cancel, rejection, request

pytestmark = pytest.mark.spark


@one_run(**TIGHT)
def test_a_well_formed_request_that_is_refused_as_malformed_is_a_fault() -> Judging:
    """Codes that follow from the request alone are checked; `too-far` against the longest delay."""
    well = {code: request(n) for n, code in enumerate((*PARSE_CODES, "no-such-code", "too-far", *UNPROVED_CODES))}
    far, near = (request(n, due_ms=1_000 + delay_ms) for n, delay_ms in ((50, 2_001), (51, 2_000)))
    never, own = (
        request(n, also=(wrong,)) for n, wrong in ((52, (names.EXPIRE_MS, b"5000")), (53, (names.PROFILE, b"x")))
    )
    named, nothing = cancel(b"x", 54), cancel(None, 55)
    refused = [*((asked, code) for code, asked in well.items()), (far, "too-far"), (near, "too-far")]
    refused += [(never, "bad-header"), (own, "bad-header"), (named, "missing-id"), (nothing, "missing-id")]
    found = yield History([asked for asked, _ in refused], [], [rejection(asked, code) for asked, code in refused])
    seconds, misspelt = request(56, due_ms=5), request(57, also=(("timer-ID", b"x"),))
    refused += [(dubious, "bad-header") for dubious in (seconds._replace(timestamp_ms=10**12), misspelt)]
    wrong = {well[code].offset for code in (*PARSE_CODES, "no-such-code")} | {near.offset, named.offset}
    assert {row.offset for row in found.rows if row["class"] == "wrongly-rejected"} == wrong
    assert {row["class"] for row in found.rows if row.offset not in wrong} == {"rejected"}
