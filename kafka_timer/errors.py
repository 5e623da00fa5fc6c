"""Errors of the client, by who has to act. The bridge raises them too, and adds its own (bridge.errors)."""


class BridgeError(Exception):
    """Ends the process with one line on stderr. `exit_code` 1: an external failure; 2: a wrong setting or call."""

    exit_code = 1


class SettingsError(BridgeError):
    """Operator: a setting is missing, malformed or breaks an invariant. The message names it and the remedy."""

    exit_code = 2


class BrokerUnavailableError(BridgeError):
    """Wait: no broker answers."""
