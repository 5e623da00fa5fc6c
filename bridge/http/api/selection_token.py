"""A token that lists the counted timers: an action on a selection takes these and no other.

    1798142400123.9f86d081884c7d65.<8 bytes for each timer, base64>         time, selector, timers: 213 kB for 20,000

A timer is identified by partition, origin and due time, so one that was moved or replaced since is not in it. No state
is kept for a count: any instance accepts the token of any other.
"""

import base64
from collections.abc import Iterable
from hashlib import blake2b

from bridge.http.api.requests import SelectionActed, Selector
from bridge.query.search import NamedTimer

GOOD_FOR_MS = 24 * 3_600_000
"""Counting millions of timers, part by part, takes hours before the first action."""
_DIGEST_BYTES = 8


def token_of(selector: Selector, timers: Iterable[NamedTimer], now_ms: int) -> str:
    digests = b"".join(digest_of_timer(timer) for timer in timers)
    return f"{now_ms}.{selector.digest()}.{base64.urlsafe_b64encode(digests).decode()}"


def digests_in(asked: SelectionActed, now_ms: int) -> frozenset[bytes]:
    """Return the digests of the counted timers. Raises ValueError."""
    at_ms, _, rest = asked.token.partition(".")
    digest, _, text = rest.partition(".")
    if digest != asked.selector.digest() or not (at_ms.isdecimal() and at_ms.isascii()):
        raise ValueError("the token is not that of this selector: count first, then give the token of the answer")
    if not 0 <= now_ms - int(at_ms) <= GOOD_FOR_MS:
        raise ValueError("the count is too old: count again")
    try:
        digests = base64.b64decode(text, altchars=b"-_", validate=True)
    except ValueError:
        raise ValueError("the token is cut off: count again, and give the whole token of the answer") from None
    return frozenset(digests[at : at + _DIGEST_BYTES] for at in range(0, len(digests), _DIGEST_BYTES))


def digest_of_timer(timer: NamedTimer) -> bytes:
    return blake2b(str(timer.place).encode(), digest_size=_DIGEST_BYTES).digest()
