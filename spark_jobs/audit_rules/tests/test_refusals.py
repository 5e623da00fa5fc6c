"""Which codes of the rejected topic the audit checks, and what it says of those that it cannot check."""

import pytest

from kafka_timer import headers as names
from spark_jobs.audit_rules.verdicts import PARSE_CODES, UNPROVED_CODES
from spark_jobs.tests.one_run import TIGHT, Judging, one_run
from spark_jobs.tests.records import Headers, History, Record, cancel, rejection, request

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
    seconds, misspelt = request(56, due_ms=5), request(57, also=(("timer-ID", b"x"),))
    expires = request(61, due_ms=10**12, also=(("timer-expire-ms", b"%d" % 10**16),))
    now = [each._replace(timestamp_ms=10**12) for each in (seconds, expires)]
    refused += [(dubious, "bad-header") for dubious in (*now, misspelt)]
    rejections = [rejection(asked, code) for asked, code in refused]
    # As the bridge returns them: no headers if there are too many, a name up to its NUL, a reason for a wrong name.
    many = request(58, foreign=[("x", None)] * 100_001)
    cut, no_utf8 = (request(n, foreign=((name, b"7"),)) for n, name in ((59, "timer-delay-ms\0"), (60, "a\ufffd")))
    read: list[tuple[Record, str, Headers]] = [
        (many, "missing-time", ()),
        (no_utf8, "bad-header", ((names.DELIVER_MS, b"no UTF-8"),)),
    ]
    read.append((cut, "ambiguous-time", (*cut.headers[:-1], (names.DELAY_MS, b"7"))))
    refused += [(asked, code) for asked, code, _ in read]
    rejections += [rejection(asked._replace(headers=headers), code) for asked, code, headers in read]
    found = yield History([asked for asked, _ in refused], [], rejections)
    wrong = {well[code].offset for code in (*PARSE_CODES, "no-such-code")} | {near.offset, named.offset}
    assert {row.offset for row in found.rows if row["class"] == "wrongly-rejected"} == wrong
    assert {row["class"] for row in found.rows if row.offset not in wrong} == {"rejected"}
