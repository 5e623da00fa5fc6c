"""Log to standard error, as text or JSON; times are UTC.

    2026-12-24T18:00:00.123Z INFO bridge.partition.recover timer.requests/3: recovered to offset 40, 7 timers pending
    {"time": "2026-12-24T18:00:00.123Z", "level": "INFO", "logger": "bridge.partition.recover",
     "message": "timer.requests/3: recovered to offset 40, 7 timers pending",
     "shard": "timer.requests/3", "topic": "timer.requests", "partition": 3}

With `--workers`, each line names its worker: `INFO worker 2 bridge....`, and as JSON `"worker": 2`.

1. A `TimerPartition` among the arguments of a line becomes fields too.
2. librdkafka's settings may be secrets (`is_secret`), and errors of libraries may quote them. Their values are removed
   from every line and traceback.
"""

import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Literal

from kafka_timer.origin import TimerPartition

Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]

_FIELDS = {"asctime": "time", "levelname": "level", "name": "logger", "message": "message"}
_SECRET = re.compile(r"password|passphrase|secret|\bpem\b|\.key$|token|jaas|oauthbearer\.config", re.IGNORECASE)
_MIN_SECRET_LENGTH = 4
"""Shorter values are not removed: they may be parts of words."""
HIDDEN = "(hidden)"
SWITCHES = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals of `switch_by_signals`."""

log = logging.getLogger(__name__)

_kafka: dict[str, str] = {}
"""The librdkafka settings of this process."""


def configure(
    format_: Format = "text", level: Level = "info", kafka: Mapping[str, str] | None = None, worker: int = 0
) -> None:
    """Configure logging of the process, replacing an earlier configuration.

    kafka: librdkafka settings, see rule 2. worker: number of this worker, or 0.
    """
    hide(kafka or {})
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(format_, worker))
    handler.addFilter(_prepare)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    sys.excepthook = _log_unhandled if format_ == "json" else sys.__excepthook__


def switch_by_signals(configured: Level) -> None:
    """Set the level to `debug` on SIGUSR1 and back to `configured` on SIGUSR2. Call this in the main thread."""

    def switch(number: int, _frame: FrameType | None) -> None:
        level = "debug" if number == signal.SIGUSR1 else configured
        # On a thread: the handler may interrupt a log call, which is not reentrant.
        threading.Thread(target=_switch, args=(level, signal.Signals(number).name), name="log-level").start()

    for number in SWITCHES:
        signal.signal(number, switch)


def _switch(level: str, by: str) -> None:
    root = logging.getLogger()
    root.setLevel(logging.DEBUG)  # to log this line at any level
    log.warning("log level: %s from now on, by %s", level, by)
    root.setLevel(level.upper())


def is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def _formatter(format_: Format, worker: int) -> logging.Formatter:
    if format_ == "json":
        from pythonjsonlogger.json import JsonFormatter  # here, as commands of clients do not need it

        own = {"worker": worker} if worker else {}
        formatter: logging.Formatter = JsonFormatter(
            list(_FIELDS), rename_fields=_FIELDS, json_ensure_ascii=False, static_fields=own
        )
    else:
        named = f"worker {worker} " if worker else ""
        formatter = logging.Formatter(f"%(asctime)s %(levelname)s {named}%(name)s %(message)s")
    formatter.converter = time.gmtime
    formatter.default_time_format, formatter.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"
    return formatter


def hide(kafka: Mapping[str, str]) -> None:
    """Remove secrets of these librdkafka settings from all log lines from now on."""
    _kafka.clear()
    _kafka.update(kafka)


def redact(text: str) -> str:
    """Return `text` without secrets of this process."""
    return without_secrets(text, _kafka)


def without_secrets(text: str, kafka: Mapping[str, str]) -> str:
    """Return `text` without the values of settings that may be secrets, and without any word of them.

    librdkafka quotes the rest of a value, from the word on that it does not understand.
    """
    values = [value for name, value in kafka.items() if is_secret(name)]
    secrets = {part for value in values for part in (value, *value.split()) if len(part) >= _MIN_SECRET_LENGTH}
    if not secrets:
        return text
    return re.sub("|".join(map(re.escape, sorted(secrets, key=len, reverse=True))), HIDDEN, text)


def _prepare(record: logging.LogRecord) -> bool:
    """Apply rules 1 and 2 before a line is formatted. A filter of the handler, which lets all lines pass."""
    for argument in record.args if isinstance(record.args, tuple) else ():
        if isinstance(argument, TimerPartition):
            record.shard, record.topic, record.partition = str(argument), argument.topic, argument.partition
    record.msg, record.args = redact(record.getMessage()), None
    if record.exc_info:
        trace = logging.Formatter().formatException(record.exc_info)
        record.exc_text, record.exc_info = redact(trace), None
    return True


def _log_unhandled(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log an unhandled exception as one line, instead of Python's traceback on many."""
    log.critical("unhandled exception", exc_info=(kind, error, trace))
