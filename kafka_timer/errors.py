"""Errors of the client, by who has to act. The bridge raises them too, and adds its own (bridge.errors)."""


class BridgeError(Exception):
    """A request, a setting or a call has failed; the message says why and what to do.

    code: the name of Kafka's error, such as `MSG_SIZE_TOO_LARGE`; None if the error is not Kafka's.
    """

    retriable = False
    """True if the same call may succeed later."""

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class SettingsError(BridgeError):
    """Operator: a setting is missing, malformed or breaks an invariant. The message names it and the remedy."""


class BrokerUnavailableError(BridgeError):
    """Wait: no broker answers."""

    retriable = True
