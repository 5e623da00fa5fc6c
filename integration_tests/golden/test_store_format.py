"""The store: this version writes the golden files byte by byte, and reads the timers in them.

A store of another format is rebuilt from Kafka, so no older one has to be read.
"""

from integration_tests.golden import FOLDER, samples, store
from integration_tests.golden.store import START_MS, timer
from timer.format.checkpoint import FORMAT
from timer.stopped_store import StoppedStore, verify
from timer.testing import SimDisk

NEWEST = f"store.v{FORMAT}"


def files_of(name: str) -> dict[str, bytes]:
    folder = FOLDER / "formats" / name
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_a_store_that_is_written_now_is_the_golden_one() -> None:
    """If this fails, the store's format has changed: docs/formats.md, "Golden files"."""
    assert samples.STORE == NEWEST
    assert store.files() == files_of(NEWEST)


VISITS = {4: 2100, 5: 2500, 6: 2900, 7: 3300, 8: 3700, 9: 8000, 1: 3000, 15: 2000, 11: 1000}
"""Wake-up time of each pending timer by origin, in the order of the log."""
LIVE = [
    *(timer(offset, 500 + 400 * offset) for offset in range(4, 9)),
    timer(9, 90_000, key=None, id=None),
    timer(10, 3000, origin=1, rolls=1, value=None),
    timer(15, 2000, target="bills"),
    timer(11, 60_000, key=None, value=None),
]


def test_version_4_is_read() -> None:
    disk = SimDisk()
    for path, data in files_of("store.v4").items():
        disk.start_replace(path, data).wait()
    seen = verify(disk)
    assert (seen.fault, seen.closed, seen.live) == (None, True, 9)
    with StoppedStore(disk) as stopped:
        found = [found for rows in stopped.live() for found in stopped.timers(rows)]
        (with_id,) = stopped.with_id(b"id-5")
    assert {timer.body.origin_offset: timer.visit_ms - START_MS for timer in found} == VISITS
    assert [timer.body for timer in found] == LIVE
    assert with_id.body == LIVE[1]
