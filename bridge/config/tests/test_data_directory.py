"""The data directory: made for us alone, refused and left as it was where it is somebody else's."""

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bridge.cli.app import app
from bridge.config.data_directory import DataDir
from bridge.errors import SettingsError
from schemas.origin import Shard

SHARD = Shard("timer.requests", 0)
NOBODY = 65534


def seen(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file and folder from `root` on: mode, time of change, content."""
    found = {}
    for path in (root, *root.rglob("*")):
        is_file = path.is_file()
        told = path.stat()
        found[str(path)] = told.st_mode, told.st_mtime_ns, path.read_bytes() if is_file else b""
    return found


def used(root: Path) -> str:
    """As a bridge leaves it."""
    with closing(DataDir(root)) as folder:
        disk = folder.disk_for(SHARD)
        disk.open("log/0").close()
        disk.start_replace("checkpoint", b"state").wait()
        return folder.instance_id()


def refusal(root: Path) -> str:
    with pytest.raises(SettingsError) as refused:
        DataDir(root)
    return str(refused.value)


def test_folders_are_made_0700_and_files_0600(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        used(tmp_path / "made" / "timer-data")
    finally:
        os.umask(before)
    root = tmp_path / "made" / "timer-data"
    modes = {path.relative_to(root).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    assert modes == {
        ".": 0o700,
        "lock": 0o600,
        "instance-id": 0o600,
        "timer.requests": 0o700,
        "timer.requests/0": 0o700,
        "timer.requests/0/log": 0o700,
        "timer.requests/0/log/0": 0o600,
        "timer.requests/0/checkpoint": 0o600,
    }


def test_the_id_is_kept_and_a_new_one_comes_where_it_was_deleted_or_torn(tmp_path: Path) -> None:
    first = used(tmp_path)
    assert used(tmp_path) == first
    (tmp_path / "instance-id").unlink()
    second = used(tmp_path)
    (tmp_path / "instance-id").write_bytes(b"")
    third = used(tmp_path)
    assert len({first, second, third}) == 3
    assert all(len(each) == 32 for each in (first, second, third))


def test_a_full_disk_gives_an_id_for_this_life_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, usual[1]))
    try:
        with closing(DataDir(tmp_path)) as folder:
            first = folder.instance_id()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "instance-id could not be written" in warning
    assert "mend the disk" in warning
    second = used(tmp_path)
    assert len(first) == len(second) == 32
    assert first != second == used(tmp_path)


@pytest.mark.parametrize(
    "there",
    [
        {"letter.txt": b"dear"},
        {"photos/2026/11.jpg": b"jpg"},
        {"2026/11/1.jpg": b"jpg"},  # as a topic and its partition
        {"lock": b"", "archives/a.deb": b"deb"},
        {"lock": b"", "timer.requests": b"a file"},
        {"instance-id": b"i-0123456789"},
        {"instance-id": b"\xff\xfe"},
        {"instance-id": b"", "letter.txt": b"dear"},
    ],
)
def test_a_folder_with_something_else_in_it_is_refused_and_left_as_it_was(
    tmp_path: Path, there: dict[str, bytes]
) -> None:
    for name, content in there.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    before = seen(tmp_path)
    assert refusal(tmp_path).endswith("give an empty folder, or one of its own")
    assert seen(tmp_path) == before


def test_a_stranger_in_a_folder_of_ours_is_let_lie(tmp_path: Path) -> None:
    first = used(tmp_path)
    (tmp_path / "core.4711").write_bytes(b"dump")
    assert used(tmp_path) == first
    assert (tmp_path / "core.4711").read_bytes() == b"dump"


def test_the_root_of_a_fresh_file_system_is_empty_enough(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert used(tmp_path)


@pytest.mark.parametrize("name", ["a-file", "a-file/timer-data"])
def test_a_file_in_the_place_of_a_folder_is_refused_and_left(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-file").write_bytes(b"dear")
    assert refusal(tmp_path / name).endswith("give a folder that may be written")
    assert (tmp_path / "a-file").read_bytes() == b"dear"


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[Path]:
    """A folder that may be entered, while we are a user who owns nothing."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else for a while")
    place = Path("/tmp") / f"{tmp_path.name}-{os.getpid()}"  # pytest's own folders are root's alone
    place.mkdir(mode=0o755)
    os.seteuid(NOBODY)
    try:
        yield place
    finally:
        os.seteuid(0)
        for path in sorted(place.rglob("*"), reverse=True):
            path.rmdir()
        place.rmdir()


def test_a_folder_that_may_not_be_written_or_read_is_told(nobody: Path) -> None:
    assert "Permission denied: give a folder that may be written" in refusal(nobody)
    assert "Permission denied: give a folder that may be written" in refusal(nobody / "new")
    os.seteuid(0)
    (nobody / "hidden").mkdir(mode=0o700)
    os.seteuid(NOBODY)
    assert "Permission denied: give a folder that may be written" in refusal(nobody / "hidden")
    assert not list(nobody.glob("*/*"))


def test_a_folder_that_is_open_to_all_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o777)
    used(tmp_path)
    assert "chmod 700" in caplog.text
    caplog.clear()
    tmp_path.chmod(0o770)  # a group is somebody's wish
    used(tmp_path)
    assert not caplog.text


def test_the_second_process_refuses(tmp_path: Path) -> None:
    program = f"from bridge.cli.app import main; import sys; sys.argv = {['timer-bridge', 'run']!r}; main()"
    asked = {"TIMER_BRIDGE_BOOTSTRAP_SERVERS": "127.0.0.1:1", "TIMER_BRIDGE_DATA_DIR": str(tmp_path)}
    with closing(DataDir(tmp_path)) as folder:
        folder.instance_id()
        before = seen(tmp_path)
        ended = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | asked, capture_output=True, text=True, check=False
        )
        assert (ended.returncode, "another bridge runs on it: give each its own" in ended.stderr) == (2, True)
        assert "another bridge runs on it" in refusal(tmp_path)
        assert seen(tmp_path) == before
    DataDir(tmp_path).close()


def test_a_foreign_folder_ends_a_start_before_anybody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    done = CliRunner().invoke(app, ["run", "--bootstrap-servers", "127.0.0.1:1", "--data-dir", str(tmp_path)])
    assert done.exit_code == SettingsError.exit_code
    assert "letter.txt lies there" in done.stderr
