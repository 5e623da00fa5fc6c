"""Waiting for a broker: said when it begins and then each minute, for ever, unless the process is to end.

patience.retry_until_success("committing", lambda: producer.commit_transaction(2), passing)
patience.give_up_in(5)      SIGTERM came: whoever still waits in 5 s gets BrokerUnavailableError
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, ThrottleEvent

from bridge.errors import BrokerUnavailableError
from bridge.observe.log_throttle import LogThrottle
from bridge.observe.status import Status

log = logging.getLogger(__name__)

T = TypeVar("T")

CALL_S = 2.0
"""How long one blocking call of librdkafka may take: an end that is asked for waits for no longer one."""

_REMEDIES = {
    KafkaError._AUTHENTICATION: "look at sasl.mechanism, sasl.username and sasl.password",  # noqa: SLF001
    # A broker that wants TLS hangs up, and that is all there is to hear.
    KafkaError._ALL_BROKERS_DOWN: "do they run, with this bootstrap_servers and security.protocol?",  # noqa: SLF001
    KafkaError._SSL: "look at security.protocol and ssl.ca.location, and at the broker's certificate",  # noqa: SLF001
}
_OPENSSL = "SSL routines:"
_FIRST_NAP_S = 0.02
_LONGEST_NAP_S = 1.0
_SLICE_S = 0.1
_LONG_S = 5.0
"""A slow broker is no trouble before."""


class Patience:
    """One for all clients of a process, so that one call ends all waiting. A `wider` one's end is this one's too."""

    def __init__(self, wider: "Patience | None" = None, status: Status | None = None) -> None:
        """`status` is told of every wait and error; a `wider` one's is this one's too."""
        self._wider = wider
        self.status: Status = wider.status if wider is not None else status or Status()
        self._complaints = LogThrottle(log)
        self._give_up_s: float | None = None
        self._heard: str | None = None

    def give_up_in(self, seconds: float) -> None:
        """From a signal handler too."""
        self._give_up_s = time.monotonic() + seconds

    def go_on(self) -> None:
        """Takes `give_up_in` back."""
        self._give_up_s = None

    def hear(self, error: KafkaError) -> None:
        """librdkafka's background threads tell here why they fail: the reason behind many a time-out."""
        self._heard = reason(error, self._heard)
        self.status.hears(reason(error))
        self._say(f"connection: {error.name()}", f"Kafka: {reason(error)}")

    def be_throttled(self, event: ThrottleEvent) -> None:
        """librdkafka tells of each answer that a broker has held back."""
        self.status.throttles(event.throttle_time)

    def retry_until_success(self, what: str, call: Callable[[], T], is_passing: Callable[[KafkaError], bool]) -> T:
        """The call's answer, however long it takes; KafkaException where the fault does not pass."""
        tries = 0
        while True:
            try:
                with unwrapped():
                    answer = call()
            except KafkaException as failure:
                error = error_of(failure)
                if not is_passing(error):
                    raise
                self.wait(what, error.str(), tries)
                tries += 1
            else:
                self._complaints.over(what)
                if tries:
                    self.status.waits(None)
                return answer

    def wait(self, what: str, why: str, tries: int, *, quietly: bool = False) -> None:
        """Sleeps, longer with each try. Raises BrokerUnavailableError when it is time to give up."""
        nap_s = min(_LONGEST_NAP_S, _FIRST_NAP_S * 2 ** min(tries, 10))
        end_s = time.monotonic() + nap_s
        if not quietly:
            self.status.waits(f"{what}: {why}")
            self._say(what, f"{what}: {why}; trying again")
        while (left_s := end_s - time.monotonic()) > 0:
            self.demand_time(what, why)
            time.sleep(min(left_s, _SLICE_S))

    def demand_time(self, what: str, why: str) -> None:
        """Raises BrokerUnavailableError when it is time to give up."""
        if self._wider is not None:
            self._wider.demand_time(what, self._heard or why)
        if self._give_up_s is not None and time.monotonic() >= self._give_up_s:
            raise BrokerUnavailableError(f"{what}: {self._heard or why}")

    @contextmanager
    def long_wait(self) -> Iterator[Callable[[str, str], None]]:
        """For a wait in slices: what it gives is called in each, and tells `status` of it beyond the first seconds."""
        begin_s, is_told = time.monotonic(), False

        def still(what: str, why: str) -> None:
            nonlocal is_told
            self.demand_time(what, why)
            if time.monotonic() - begin_s >= _LONG_S:
                is_told = True
                self.status.waits(f"{what}: {why}")

        yield still
        if is_told:
            self.status.waits(None)

    def _say(self, key: str, message: str) -> None:
        self._complaints.say(int(time.monotonic() * 1000), key, "%s", message)


def reason(error: KafkaError, before: str | None = None) -> str:
    """In words, with the remedy. `before`: what was heard before, as "all brokers are down" explains nothing."""
    if before is not None and error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
        return before
    is_tls = _OPENSSL in error.str()  # a broken handshake may be told as a transport's failure too, and last
    remedy = _REMEDIES.get(KafkaError._SSL if is_tls else error.code())  # noqa: SLF001
    return error.str() if remedy is None else f"{error.str()}: {remedy}"


@contextmanager
def unwrapped() -> Iterator[None]:
    """A fatal error that comes to light while callbacks are served arrives as the cause of a SystemError."""
    try:
        yield
    except SystemError as wrapped:
        if isinstance(wrapped.__cause__, KafkaException):
            raise wrapped.__cause__ from None
        raise


def serve(client: Any) -> None:
    """Errors, throttling and log lines wait in a client, however many they are, until somebody polls it."""
    with suppress(KafkaException), unwrapped():  # what is wrong, the next call tells
        client.poll(0)


def error_of(failure: KafkaException) -> KafkaError:
    error: KafkaError = failure.args[0]
    return error
