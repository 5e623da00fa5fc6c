"""The data directory: private, locked, and never one that is not the bridge's."""

import errno
import os
import resource
import stat
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bridge.cli.app import app
from bridge.config.data_directory import DataDir, unused_folders, worker_folder, worker_socket
from bridge.errors import SettingsError
from kafka_timer.headers import legal_topic
from kafka_timer.origin import TimerPartition

PARTITION = TimerPartition("timer.requests", 0)


def seen(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time of change and content of every file and folder from `root` on."""
    found = {}
    for path in (root, *root.rglob("*")):
        is_file = path.is_file()
        told = path.stat()
        found[str(path)] = told.st_mode, told.st_mtime_ns, path.read_bytes() if is_file else b""
    return found


def used(root: Path) -> str:
    """Use the folder as a bridge does; return the instance id."""
    with closing(DataDir(root)) as folder:
        disk = folder.disk_for(PARTITION)
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


def test_the_id_is_kept_and_a_deleted_or_torn_one_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()  # as in the root of a file system
    first = used(tmp_path)
    (tmp_path / "core.4711").write_bytes(b"dump")
    assert used(tmp_path) == first
    assert (tmp_path / "core.4711").read_bytes() == b"dump"
    (tmp_path / "core.4711").unlink()
    (tmp_path / "instance-id").unlink()
    second = used(tmp_path)
    (tmp_path / "instance-id").write_bytes(b"")
    ids = {first, second, used(tmp_path)}
    assert [len(each) for each in ids] == [32, 32, 32]


def test_on_a_full_disk_the_id_is_for_this_run_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, usual[1]))
    try:
        with closing(DataDir(tmp_path)) as folder:
            first = folder.instance_id()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    (warning,) = caplog.messages
    assert "instance-id could not be written" in warning
    second = used(tmp_path)
    assert first != second == used(tmp_path)


@pytest.mark.parametrize(
    "there",
    [
        {"letter.txt": b"dear"},
        {"2026/11/1.jpg": b"jpg"},  # as a topic and its partition
        {"lock": b"", "archives/a.deb": b"deb"},
        {"lock": b"", "timer.requests": b"a file"},
        {"instance-id": b"i-0123456789"},
        {"instance-id": b"\xff\xfe"},
        {"instance-id": b"", "letter.txt": b"dear"},
    ],
)
def test_a_folder_with_other_files_is_refused_and_not_changed(tmp_path: Path, there: dict[str, bytes]) -> None:
    for name, content in there.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    before = seen(tmp_path)
    assert refusal(tmp_path).endswith("give an empty folder, or one of its own")
    done = CliRunner().invoke(app, ["run", "--bootstrap-servers", "127.0.0.1:1", "--data-dir", str(tmp_path)])
    assert (done.exit_code, "give an empty folder" in done.stderr) == (2, True), "before a broker is asked"
    assert seen(tmp_path) == before


@pytest.mark.parametrize("call", ["pathlib.Path.mkdir", "pathlib.Path.iterdir", "os.open"])
def test_a_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(call, denied)
    assert "Permission denied: give a folder that may be written" in refusal(tmp_path)


def test_a_folder_open_to_all_users_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o777)
    used(tmp_path)
    assert "chmod 700" in caplog.text
    caplog.clear()
    tmp_path.chmod(0o770)
    used(tmp_path)
    assert not caplog.text


def test_folders_of_workers_are_known_and_those_of_more_workers_are_named(tmp_path: Path) -> None:
    root = tmp_path / "timer-data"
    used(root)
    folders = [worker_folder(root, number) for number in (2, 3)]
    for folder in folders:
        used(folder)
    worker_socket(root).touch()
    (root / "instance-id").unlink()
    DataDir(root).close()
    assert [unused_folders(root, workers) for workers in (1, 2, 3)] == [folders, folders[1:], []]
    assert legal_topic(folders[0].name.encode()) is None, "it would be the folder of a timer topic too"
