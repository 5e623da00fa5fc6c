"""Who has to act: whoever called the audit wrongly, or whoever runs the cluster. A fault in the data is a Verdict."""


class UsageError(ValueError):
    """An argument is wrong; the message names it and the remedy. Exit code 2."""


class AuditTroubleError(Exception):
    """The job could not be done: no broker, no timer topic, no Java. Says nothing about the bridge. Exit code 1."""


def reason_of(wrong: Exception) -> str:
    """The last line of Python's that Spark quotes, or its own first one."""
    lines = [line.strip() for line in str(wrong).strip().splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("spark_jobs.errors.")]
    return ours[-1].partition(": ")[2] if ours else next(iter(lines), type(wrong).__name__)
