"""The collector's settings are restored after the test, as they belong to the process."""

import gc
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bridge.garbage_collection import QuietRelease, tune_gc


@pytest.fixture
def _restore() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("_restore")
def test_the_collector_finds_cycles_but_does_not_run_within_a_batch() -> None:
    tune_gc()
    before = gc.get_stats()[0]["collections"]
    batch = [(number, [number]) for number in range(20_000)]
    assert gc.get_stats()[0]["collections"] == before
    rings: list[list[object]] = [[] for _ in range(150_000)]
    for ring in rings:
        ring.append(ring)
    assert gc.get_stats()[0]["collections"] > before
    assert len(batch) == 20_000


_LARGE_BLOCKS = """
def free():
    blocks = [bytes(2 << 20)]
    del blocks  # glibc learns that blocks of this size are not worth an own mapping
    blocks, kept = [bytearray(b"x") * (2 << 20) for _ in range(50)], []
    kept += [bytes(2000) for _ in range(1000)]  # after the blocks, so that the heap cannot shrink
    return kept
{tuned}
before_mb, kept = usage(os.getpid()).rss_mb, free()
"""
_SMALL_BLOCKS = """
blocks = [bytearray(b"x") * 5000 for _ in range(20_000)]
kept = blocks[::20]  # the heap cannot shrink at its end
del blocks
before_mb = usage(os.getpid()).rss_mb
trim_malloc()
"""


def _grown_mb(program: str) -> float:
    """Return how many MB more than `before_mb` a process has at its end."""
    imports = "import os\nfrom bridge.garbage_collection import *\nfrom scripts.common.processes import usage\n"
    told = [sys.executable, "-c", f"{imports}{program}\nprint(usage(os.getpid()).rss_mb - before_mb)"]
    return float(subprocess.run(told, capture_output=True, check=True, text=True).stdout)


@pytest.mark.thorough
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt and malloc_trim are glibc's")
def test_freed_memory_goes_back_to_the_system() -> None:
    large = [_grown_mb(_LARGE_BLOCKS.format(tuned=tuned)) for tuned in ("tune_malloc()", "")]
    assert large[0] < 20 < 80 < large[1], "of 100 MB"
    assert _grown_mb(_SMALL_BLOCKS) < -20


def test_memory_is_released_once_when_work_has_paused() -> None:
    now_s, released = [100.0], []
    memory = QuietRelease(lambda: released.append(now_s[0]), lambda: now_s[0])
    for at_s, is_idle in ((100.5, True), (100.9, False), (101.5, True), (102.0, True), (103.0, True), (104.0, False)):
        now_s[0] = at_s
        memory.turn_ended(is_idle=is_idle)
    assert released == [102.0]
    for at_s in (104.5, 105.0, 106.0):
        now_s[0] = at_s
        memory.turn_ended(is_idle=True)
    assert released == [102.0, 105.0]
