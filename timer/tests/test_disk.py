"""Tests of what every Disk promises, real or simulated; then of how the simulated one fails."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from timer.disk import Disk, RealDisk, Syncing
from timer.errors import UnreadableError
from timer.testing import SECTOR, Crash, DeadHandleError, Fuse, SimDisk, SimFile


@pytest.fixture(params=["real", "simulated", "simulated, done later"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "real":
        real = RealDisk(tmp_path / "disk")
        yield real
        real.close()
    else:
        yield SimDisk(Random(1) if "later" in request.param else None)


def until_done(syncing: Syncing) -> None:
    end = time.monotonic() + 10
    while not syncing.done():
        assert time.monotonic() < end
        time.sleep(0.001)


def _resident_kb(path: Path) -> int:
    """Return the resident memory of the mapped file `path`, 0 if the system does not say."""
    smaps = Path("/proc/self/smaps")
    found = smaps.read_text().partition(str(path))[2] if smaps.exists() else ""
    return int(found.partition("Rss:")[2].split()[0]) if found else 0


class TestEveryDisk:
    def test_a_file_grows_by_appends_is_cut_and_reads_back_in_parts(self, disk: Disk) -> None:
        file = disk.open("log/0")
        assert file.size() == 0
        file.append(b"abc")
        file.append(b"")
        file.append(memoryview(b"defg")[:3].tobytes())
        assert (file.size(), file.read(1, 3), file.read(0, 6)) == (6, b"bcd", b"abcdef")
        assert (file.read(5, 10), file.read(6, 1), file.read(99, 1)) == (b"f", b"", b"")
        file.truncate(2)
        file.append(b"X")
        assert (file.size(), file.read(0, 9)) == (3, b"abX")
        again = disk.open("log/0")  # a second handle, also after the first was closed
        assert (again.size(), again.read(0, 9), disk.read("log/0")) == (3, b"abX", b"abX")
        file.close()
        again.append(b"d")
        assert disk.open("log/0").read(0, 9) == b"abXd"

    def test_every_byte_is_written_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = RealDisk(tmp_path / "disk").open("a")
        written: list[tuple[int, int]] = []
        held, really = Random(1).randbytes((1 << 20) + 700), os.pwrite
        file.append(held)

        def pwrite(descriptor: int, data: memoryview, at: int) -> int:
            written.append((at, len(data)))
            return really(descriptor, data[: 1 << 19], at)  # a system may take a part

        monkeypatch.setattr(os, "pwrite", pwrite)
        file.rewrite()
        assert written == [(0, 1 << 20), (1 << 19, 1 << 19), (1 << 20, 700)]
        assert file.read(0, 2 << 20) == held
        (tmp_path / "disk" / "a").write_bytes(b"x")
        with pytest.raises(UnreadableError, match=r"it ends at 1, expected 1049276 bytes"):
            file.rewrite()

    @pytest.mark.parametrize("size", [32, 64, 128])
    def test_a_mapping_keeps_what_is_written_and_is_zeroed_with_another_size(self, disk: Disk, size: int) -> None:
        mapping = disk.map("wheel", 64)
        assert bytes(mapping.buffer) == bytes(64)
        mapping.allocate(0, 64)
        mapping.buffer[3:5] = b"xy"
        mapping.close()
        again = disk.map("wheel", size)
        assert bytes(again.buffer) == (b"\0\0\0xy".ljust(64, b"\0") if size == 64 else bytes(size))
        again.close()

    def test_a_mapping_takes_room_when_a_part_is_allocated(self, disk: Disk, tmp_path: Path) -> None:
        """A write elsewhere would end the process by SIGBUS if the disk is full."""
        mapping = disk.map("wheel", 1 << 20)
        for number, at in enumerate([1 << 17, 1 << 18, 1 << 17]):
            mapping.allocate(at, 1 << 17)
            mapping.buffer[at : at + 5] = b"abcde"
            mapping.allocate(at, 1 << 17)
            assert bytes(mapping.buffer[at : at + 6]) == b"abcde\0"
            for real in tmp_path.rglob("wheel"):
                taken = real.stat().st_blocks * 512 - (min(number, 1) << 17)
                assert (real.stat().st_size, 1 << 17 <= taken < 1 << 18) == (1 << 20, True)
                assert disk.open("wheel").next_data(0) == min(at, 1 << 17), "a hole is not read"
        mapping.close()
        again = disk.map("wheel", 1 << 20)
        again.buffer[(1 << 17) + 1] = 0  # what is not zeros has room
        again.close()

    def test_a_simulated_mapping_knows_a_write_without_room(self) -> None:
        mapping = SimDisk().map("wheel", 2 * SECTOR)
        mapping.allocate(0, SECTOR)
        mapping.buffer[SECTOR] = 1
        with pytest.raises(AssertionError, match="SIGBUS"):
            mapping.close()

    def test_a_mapping_without_page_cache_keeps_its_bytes_and_no_memory(self, disk: Disk, tmp_path: Path) -> None:
        """Before, a read of a byte brings in no page but its own."""
        mapping = disk.map("wheel", 1 << 20)
        mapping.allocate(0, 1 << 20)
        assert mapping.buffer[1 << 19] == 0
        for real in tmp_path.rglob("wheel"):
            assert _resident_kb(real) <= os.sysconf("SC_PAGE_SIZE") // 1024
        mapping.buffer[:] = b"x" * (1 << 20)
        mapping.drop_page_cache()
        for real in tmp_path.rglob("wheel"):
            assert _resident_kb(real) == 0
        mapping.buffer[3:5] = b"yz"
        mapping.close()
        assert disk.read("wheel") == b"xxxyz" + b"x" * ((1 << 20) - 5)

    def test_names_are_sorted_and_those_of_one_folder(self, disk: Disk) -> None:
        for name in ("log/2", "log/10", "log/1", "body/1", "checkpoint"):
            disk.open(name).append(b"x")
        assert disk.names("log") == ["1", "10", "2"]
        assert disk.names("none") == []

    def test_a_removed_file_is_gone_and_starts_empty(self, disk: Disk) -> None:
        disk.open("log/1").append(b"abc")
        disk.remove("log/1")
        disk.remove("log/1")
        assert (disk.read("log/1"), disk.names("log")) == (None, [])
        assert disk.open("log/1").size() == 0

    def test_replacements_of_one_name_happen_in_order(self, disk: Disk) -> None:
        assert disk.read("checkpoint") is None
        disk.start_replace("checkpoint", b"first, long").wait()
        works = [disk.start_replace("checkpoint", b"%d" % number) for number in range(20)]
        works[-1].wait()
        assert disk.read("checkpoint") == b"19"
        for work in works:
            until_done(work)
        assert (disk.read("checkpoint"), disk.names("")) == (b"19", ["checkpoint"])

    def test_a_sync_ends_also_when_its_file_was_closed_or_removed(self, disk: Disk) -> None:
        file = disk.open("log/1")
        file.append(b"abc")
        syncing = disk.start_sync([file])
        file.close()
        disk.remove("log/1")
        until_done(syncing)
        disk.start_sync([]).wait()
        assert disk.read("log/1") is None


def after_power_loss(prepare: Callable[[SimDisk], None]) -> list[dict[str, bytes]]:
    """Return the contents of the disk after losses of power with several seeds."""
    found = []
    for seed in range(200):
        disk = SimDisk(Random(seed))
        prepare(disk)
        disk.lose_power(Random(seed))
        found.append(disk.reopen().contents())
    return found


def synced(disk: SimDisk, name: str, data: bytes) -> SimFile:
    file = disk.open(name)
    file.append(data)
    disk.start_sync([file]).wait()
    return file


class TestSimulatedDisk:
    def test_after_a_kill_written_bytes_are_there_and_handles_of_the_earlier_process_raise(self) -> None:
        disk = SimDisk(Random(1))
        file, mapping = disk.open("log"), disk.map("wheel", 8)
        file.append(b"abc")
        mapping.buffer[0:2] = b"xy"
        syncing = disk.start_sync([file])
        fresh = disk.reopen()
        for use in (lambda: file.append(b"x"), lambda: mapping.buffer, syncing.done, lambda: disk.open("log")):
            with pytest.raises(DeadHandleError):
                use()
        assert fresh.contents() == {"log": b"abc", "wheel": b"xy" + bytes(6)}

    def test_unsynced_bytes_are_there_lost_cut_or_torn_by_sectors_and_synced_ones_stay(self) -> None:
        def prepare(disk: SimDisk) -> None:
            synced(disk, "log", b"a" * SECTOR).append(b"b" * 4 * SECTOR)
            synced(disk, "truncated", b"a" * 1000).truncate(10)
            disk.map("wheel", 3 * SECTOR).buffer[:] = b"x" * 3 * SECTOR

        found = after_power_loss(prepare)
        assert {contents["log"][:SECTOR] for contents in found} == {b"a" * SECTOR}
        tails = {contents["log"][SECTOR:] for contents in found}
        assert {b"", b"b" * 4 * SECTOR, bytes(SECTOR) + b"b" * 3 * SECTOR} <= tails
        assert any(0 < len(tail) < 4 * SECTOR for tail in tails)
        sizes = {len(contents["truncated"]) for contents in found}
        assert {10, 1000} <= sizes <= {*range(10, 1001)}
        wheels = {contents.get("wheel") for contents in found}
        assert {b"x" * SECTOR + bytes(SECTOR) + b"x" * SECTOR, bytes(3 * SECTOR), b"x" * 3 * SECTOR} <= wheels

    def test_a_replacement_is_atomic_a_removed_file_may_be_back_and_a_new_one_missing(self) -> None:
        def prepare(disk: SimDisk) -> None:
            disk.start_replace("checkpoint", b"old" * 500).wait()
            synced(disk, "old", b"abc")
            disk.remove("old")
            disk.open("new").append(b"x")
            disk.start_replace("checkpoint", b"new" * 700)

        found = after_power_loss(prepare)
        assert {contents.pop("checkpoint") for contents in found} == {b"old" * 500, b"new" * 700}
        names = {frozenset({"old", "new"} & contents.keys()) for contents in found}
        assert names == {frozenset(each) for each in ([], ["old"], ["new"], ["old", "new"])}

    def test_a_full_disk_writes_a_part_and_raises_until_there_is_room(self) -> None:
        disk = SimDisk()
        file = disk.open("log")
        disk.fail_append(1, share=0.5)
        file.append(b"abcd")
        for _ in range(2):
            with pytest.raises(OSError, match="simulated") as full:
                file.append(b"efgh")
            assert full.value.errno == errno.ENOSPC
        disk.mend()
        file.append(b"!")
        assert disk.read("log") == b"abcdefef!"

    @pytest.mark.parametrize("is_rewritten", [False, True])
    def test_bytes_of_a_failed_sync_are_lost_until_they_are_rewritten(self, *, is_rewritten: bool) -> None:
        def prepare(disk: SimDisk) -> None:
            file = synced(disk, "log", b"a" * SECTOR)
            file.append(b"b" * SECTOR)
            disk.fail_sync()
            with pytest.raises(OSError, match="simulated"):
                disk.start_sync([file]).wait()
            file.append(b"c" * SECTOR)
            if is_rewritten:
                file.rewrite()
            disk.start_sync([file]).wait()
            assert file.read(SECTOR, 1) == b"b"

        found = {contents["log"] for contents in after_power_loss(prepare)}
        lost = b"a" * SECTOR + bytes(SECTOR) + b"c" * SECTOR
        whole = b"a" * SECTOR + b"b" * SECTOR + b"c" * SECTOR
        assert found == {whole} if is_rewritten else lost in found  # often, as the kernel may have been quicker

    def test_every_step_of_an_append_may_be_the_last(self) -> None:
        for steps, (end, kept) in enumerate([("", b""), (" half", b"ab"), (" done", b"abcd")], 1):
            fuse = Fuse()
            disk = SimDisk(fuse=fuse)
            file = disk.open("log")
            fuse.arm(steps)
            with pytest.raises(Crash, match=f"^disk.append{end}$"):
                file.append(b"abcd")
            assert disk.reopen().read("log") == kept
