"""Errors of the jobs, by who must act: the caller, or the operator. A fault in the data is not an error."""


class UsageError(ValueError):
    """An argument is wrong; the message has its name and the remedy."""

    exit_code = 2


class JobFailedError(Exception):
    """The job failed: no broker, no timer topic, no Java. Proves nothing about the bridge."""

    exit_code = 1


def reason_of(wrong: Exception) -> str:
    """Return the message of our last error in Spark's text, or the first line of the text."""
    lines = [line.strip() for line in str(wrong).strip().splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("spark_jobs.errors.")]
    return ours[-1].partition(": ")[2] if ours else next(iter(lines), type(wrong).__name__)
