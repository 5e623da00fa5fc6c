"""Lock of an output folder: two audits at once would mix evidence and spans, two imports would both send.

OUT/lock has the owner and a time, which the owner renews. The lock of a process that has ended on this machine is taken
over at once, another one when it has not been renewed for LEASE_MS. Limits: docs/audit.md.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias
from uuid import uuid4

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from spark_jobs.errors import JobFailedError
from spark_jobs.platform import files
from spark_jobs.platform.files import Location

DemandHeld: TypeAlias = Callable[[], None]
LEASE_MS = 180_000
_RENEW_S = 30
_PROCESS = str(uuid4())
"""This process, as a container may give the next one the same number."""


@contextmanager
def folder_lock(out: Location, now_ms: int | None = None) -> Iterator[DemandHeld]:
    """Lock the folder; yield what to call before each commit. Both raise JobFailedError if another run has it."""

    def demand_held() -> None:
        if not _is_mine(at, mine):
            raise JobFailedError(f"another run has taken over --out {out}: this one was suspended for too long")

    at, now_ms = out / "lock", int(time.time() * 1000) if now_ms is None else now_ms
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "process": _PROCESS, "lock": str(uuid4())}
    if not files.create(at, _data(mine, now_ms)):
        # Another process may have created the file, and not written it yet.
        held = _owner(at) or {"host": "?", "pid": "?", "renewed_ms": files.changed_ms(out, "lock").get("lock", 0)}
        if _is_live(held, now_ms):
            owner = f"{held['host']}, process {held['pid']}"
            raise JobFailedError(f"another run is at work in --out {out} ({owner}): let it end first")
        files.write(at, _data(mine, now_ms))
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(at, mine, ended), daemon=True)
    renewing.start()
    try:
        yield demand_held
        demand_held()
    finally:
        ended.set()
        renewing.join(_RENEW_S)
        with suppress(Py4JError, PySparkException):  # Spark has failed: the lock counts as that of an ended process
            if _is_mine(at, mine):
                files.delete(at)


def _renew(at: Location, mine: dict[str, object], ended: threading.Event) -> None:
    while not ended.wait(_RENEW_S):
        with suppress(Py4JError, PySparkException):  # a store may fail for a while
            if not _is_mine(at, mine):
                return
            files.write(at, _data(mine, int(time.time() * 1000)))


def _is_live(held: dict[str, object], now_ms: int) -> bool:
    if now_ms - int(str(held.get("renewed_ms", 0))) >= LEASE_MS:
        return False
    if held.get("host") != socket.gethostname():
        return True
    if held.get("pid") == os.getpid():
        return held.get("process") == _PROCESS
    with suppress(PermissionError):
        try:
            os.kill(int(str(held["pid"])), 0)
        except ProcessLookupError:
            return False
    return True


def _is_mine(at: Location, mine: dict[str, object]) -> bool:
    return _owner(at).get("lock") == mine["lock"]


def _owner(at: Location) -> dict[str, object]:
    """Return the owner; empty for none, or if it is not written yet."""
    try:
        return dict(json.loads(files.read(at) or b"{}"))
    except ValueError:
        return {}


def _data(owner: dict[str, object], now_ms: int) -> bytes:
    return json.dumps({**owner, "renewed_ms": now_ms}).encode()
