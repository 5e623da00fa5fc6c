"""Who has to act: whoever called the audit wrongly, or whoever runs the cluster. A fault in the data is a Verdict."""


class UsageError(ValueError):
    """An argument is wrong; the message names it and the remedy. Exit code 2."""


class AuditTroubleError(Exception):
    """The audit could not be made: no broker, no timer topic, no Java. Says nothing about the bridge. Exit code 1."""
