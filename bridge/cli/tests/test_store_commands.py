"""`inspect`, `verify` and `export` as an operator runs them: data directory, output, exit code."""

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from bridge.cli import parquet_export
from bridge.cli.app import app
from bridge.cli.offline_stores import locked_stores
from bridge.config.data_directory import DataDir, worker_folder
from bridge.errors import BridgeError, SettingsError, exit_code_of
from kafka_timer.origin import TimerPartition
from schemas.journal import CopyInFlight
from schemas.pending_table import PENDING, parse_stores
from timer.disk import Disk, ReadOnlyDisk
from timer.format.batch import Batch
from timer.format.body import unpack_headers
from timer.format.checkpoint import NAME, Checkpoint
from timer.stopped_store import StoppedStore
from timer.tests.history import START_MS, History, full_history
from timer.tests.history import body as body_of


def run(*arguments: object, **environment: str | None) -> Result:
    """Run a command. BridgeErrors are raised; `bridge.cli.app.main` turns them into a line and an exit code."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@contextmanager
def disk_in(root: Path, partition: int = 0) -> Iterator[Disk]:
    """Yield the disk of one partition of a bridge, which has ended afterwards."""
    folder = DataDir(root)
    disk = folder.disk_for(TimerPartition("timer.requests", partition))
    yield disk
    disk.close()
    folder.close()


def never_checkpointed(root: Path) -> None:
    """Make the store of a bridge that ended during a rebuild."""
    with disk_in(root) as disk:
        History(disk).receives(100, 200)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The data directory of a stopped bridge with two partitions, the second one empty."""
    root = tmp_path / "timer-data"
    with disk_in(root) as disk:
        full_history(disk).closes()
    with disk_in(root, 1) as disk:
        History(disk).closes()
    return root


@pytest.fixture
def store(data_dir: Path) -> Path:
    """The folder of the partition with timers."""
    return data_dir / "timer.requests" / "0"


def living(store: Path) -> dict[int, tuple[int, Any]]:
    """Return wake-up time and body of each pending timer, by origin."""
    with StoppedStore(ReadOnlyDisk(store)) as opened:
        return {timer.body.origin_offset: (timer.visit_ms, timer.body) for timer in opened.soonest(10**6)}


def test_verify_of_a_sound_store_changes_nothing(data_dir: Path, store: Path) -> None:
    before = files_below(data_dir)
    result = run("verify", data_dir)
    first, second = result.stdout.splitlines()
    assert result.exit_code == 0
    assert first.startswith(f"timer.requests/0: sound: {len(living(store))} live timers in ")
    assert first.endswith("closed cleanly")
    assert second.startswith("timer.requests/1: no checkpoint was written yet")
    assert files_below(data_dir) == before


def test_verify_names_the_place_of_a_fault_and_checks_the_other_stores(data_dir: Path, store: Path) -> None:
    damaged = min((store / "body").iterdir())
    damaged.write_bytes(bytes(byte ^ 1 for byte in damaged.read_bytes()))
    for folder in (data_dir, data_dir / "timer.requests", store):
        result = run("verify", folder)
        assert result.exit_code == 1
        assert "timer.requests/0: FAULT: timer/" in result.stderr
        assert "no frame for it: body" in result.stderr
        assert "Keep the folder" in result.stderr, "Kafka may no longer have its requests"
        assert ("timer.requests/1" in result.stdout) == (folder != store)
    result = run("verify", data_dir, "--json")
    first, second = json.loads(result.stdout)["stores"]
    assert (result.exit_code, first["store"], "no frame" in first["fault"]["what"]) == (1, "timer.requests/0", True)
    assert (second["store"], second["empty"].startswith("no checkpoint")) == ("timer.requests/1", True)
    (store / NAME).write_bytes(b"?" + (store / NAME).read_bytes()[1:])
    assert "timer.requests/0: FAULT: checkpoint" in run("verify", data_dir).stderr


def test_a_store_that_was_killed_has_no_fault_and_is_shown_as_of_its_last_checkpoint(tmp_path: Path) -> None:
    root = tmp_path / "timer-data"
    with disk_in(root, 3) as disk:
        history = full_history(disk)
        history.checkpoints()
        history.receives(9000)
    result = run("verify", root)
    assert (result.exit_code, "timer.requests/3: sound" in result.stdout) == (0, True)
    assert "not closed cleanly" in result.stdout
    note = "note: timer.requests/3 was not closed cleanly: as of its last checkpoint\n"
    assert run("export", root, tmp_path / "out.parquet").stderr == note
    assert run("pending", "--data-dir", root).stderr == note


def test_inspect_shows_progress_logs_ticks_and_timers(data_dir: Path, store: Path) -> None:
    before = files_below(data_dir)
    result = run("inspect", data_dir, "--limit", 3)
    assert result.exit_code == 0
    for told in ("timer.requests/0", "C, next offset", "K, settled up to", "slots of 1s", "2023-11-14T22:13", "id-"):
        assert told in result.stdout
    first, second = json.loads(run("inspect", data_dir, "--json", "--limit", 4).stdout)["stores"]
    assert (first["store"], second["store"], "empty" in second) == ("timer.requests/0", "timer.requests/1", True)
    expected = Checkpoint.from_bytes((store / NAME).read_bytes())
    assert expected is not None
    found = first["checkpoint"]
    assert (found["next_offset"], found["pending"]) == (expected.progress.next_offset, expected.pending)
    assert (found["held"], first["closed"]) == (list(expected.held), True)
    sizes = {str(path.relative_to(store)): len(content) for path, content in files_below(store).items()}
    assert {file["name"]: file["size"] for file in first["files"]} == {
        name: size for name, size in sizes.items() if "/" in name
    }
    timers = sorted((visit_ms, origin) for origin, (visit_ms, _) in living(store).items())
    assert [(timer["visit_ms"], timer["origin"]) for timer in first["timers"]] == timers[:4]
    ticks = sorted({visit_ms // 1000 * 1000 for visit_ms, _ in timers})[:4]
    counts = [sum(visit_ms // 1000 * 1000 == tick for visit_ms, _ in timers) for tick in ticks]
    assert first["ticks"] == [{"from_ms": t, "timers": c} for t, c in zip(ticks, counts, strict=True)]
    assert files_below(data_dir) == before


def test_inspect_finds_one_timer_by_its_id(store: Path) -> None:
    for origin, (visit_ms, body) in living(store).items():
        if body.id is not None:
            (one,) = json.loads(run("inspect", store, "--json", "--id", body.id.decode()).stdout)["stores"]
            found = [(timer["origin"], timer["visit_ms"], timer["due_ms"]) for timer in one["timers"]]
            assert found == [(origin, visit_ms, body.due_ms)]
    result = run("inspect", store, "--id", "id-37")
    assert ("id-37" in result.stdout, "id-38" in result.stdout) == (True, False)
    with pytest.raises(BridgeError, match="no timer is pending under 'id-41'"):  # cancelled
        run("inspect", store, "--id", "id-41")


def test_inspect_escapes_message_content(tmp_path: Path) -> None:
    with disk_in(tmp_path) as disk:
        history, batch = History(disk), Batch()
        id_ = b"\x1b]0;title\x07\x1b[2J[red]\r\n\xff"
        batch.add(body_of(0, START_MS + 500)._replace(id=id_), START_MS + 500)
        history.store.add(batch, 1)
        history.closes()
    shown = run("inspect", tmp_path).stdout
    assert ("\x1b" in shown, "\r" in shown, "[red]" in shown.replace("\n", "")) == (False, False, True)


def exported(folder: Path, out: Path) -> pa.Table:
    result = run("export", folder, out)
    table = pq.read_table(out)
    assert (result.exit_code, table.schema.equals(PENDING)) == (0, True)
    assert result.stdout.startswith(f"{table.num_rows} pending timers written to ")
    return table


def test_export_writes_every_pending_timer_whole(data_dir: Path, store: Path, tmp_path: Path) -> None:
    before = files_below(data_dir)
    table = exported(data_dir, tmp_path / "out.parquet")
    alive = living(store)
    assert sorted(table["origin_offset"].to_pylist()) == sorted(alive)
    for row in table.to_pylist():
        visit_ms, body = alive[row["origin_offset"]]
        names = ("origin_offset", "target", "due_ms", "rolls", "id", "key", "value")
        where = {"topic": "timer.requests", "partition": 0, "visit_ms": visit_ms, "timestamp_ms": START_MS}
        headers = [{"name": name, "value": value} for name, value in unpack_headers(body.headers)]
        target = {"target_partition": None if body.partition < 0 else body.partition, "is_paused": False}
        assert row == {name: getattr(body, name) for name in names} | where | target | {"headers": headers}
    assert {row["value"] for row in table.to_pylist()} >= {None}
    assert files_below(data_dir) == before


def test_export_goes_through_the_log_in_batches(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = exported(store, tmp_path / "whole.parquet")
    with StoppedStore(ReadOnlyDisk(store)) as opened:
        in_log_order = [origin for rows in opened.live() for origin in rows["origin"].tolist()]
    assert whole["origin_offset"].to_pylist() == in_log_order
    monkeypatch.setattr(parquet_export, "_MAX_ROWS", 7)
    assert exported(store, tmp_path / "rows.parquet").equals(whole)
    monkeypatch.setattr(parquet_export, "_MAX_BYTES", 100)
    assert exported(store, tmp_path / "bytes.parquet").equals(whole)
    names = ("whole", "rows", "bytes")
    groups = [pq.ParquetFile(tmp_path / f"{name}.parquet").metadata.num_row_groups for name in names]
    assert groups[:2] == [1, -(-len(in_log_order) // 7)]
    assert groups[2] > groups[1]


def test_export_records_the_progress_of_an_empty_store(tmp_path: Path) -> None:
    """Another file may have the store of a former owner, which was not empty."""
    with disk_in(tmp_path / "timer-data", 3) as disk:
        history = History(disk)
        history.receives(100, 200)
        history.releases(300)
        history.closes()
    out = tmp_path / "out.parquet"
    assert exported(tmp_path / "timer-data", out).num_rows == 0
    settled = history.store.release_queue.settled
    assert parse_stores(pq.read_metadata(out).metadata) == {TimerPartition("timer.requests", 3): (0, 2, *settled, 0)}


def test_export_of_a_store_that_was_never_checkpointed_says_what_the_file_lacks(tmp_path: Path) -> None:
    """An operator may delete the topic because of this file, so it must not seem complete."""
    never_checkpointed(tmp_path / "timer-data")
    with pytest.raises(BridgeError, match=r"^timer\.requests/0: not in the file") as told:
        run("export", tmp_path / "timer-data", tmp_path / "out.parquet")
    assert exit_code_of(told.value) == 1
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 0


def test_export_leaves_no_half_file_and_keeps_the_old_one(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    exported(store, out)
    before = out.read_bytes()
    for path in (store / "body").iterdir():
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(BridgeError, match="damaged") as raised:
        run("export", store, out)
    assert exit_code_of(raised.value) == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.parquet"]
    assert out.read_bytes() == before


def test_export_refuses_a_file_that_cannot_be_written(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="lies in the data directory"):
        run("export", data_dir, data_dir / "out.parquet")
    with pytest.raises(BridgeError, match="give a file that can be written"):
        run("export", data_dir, tmp_path / "nowhere" / "out.parquet")


# -- wrong folders


@pytest.fixture(params=["inspect", "verify", "export"])
def ask(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Result]:
    """Run each of the commands on a folder."""
    out = [tmp_path / "out.parquet"] if request.param == "export" else []
    return lambda folder, *options: run(request.param, folder, *out, *options)


def test_a_folder_without_a_store_is_refused(ask: Callable[..., Result], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with pytest.raises(SettingsError, match="not a directory"):
        ask(folder)
    folder.mkdir()
    with pytest.raises(SettingsError, match="no store in"):
        ask(folder)
    (folder / "timer").mkdir()
    with pytest.raises(SettingsError, match="not the folder of a partition"):
        ask(folder)


def test_a_checkpoint_that_is_missing_or_of_a_newer_version_is_refused(ask: Callable[..., Result], store: Path) -> None:
    text = (store / NAME).read_bytes().partition(b"\n")[2].replace(b'"format":4', b'"format":9')
    (store / NAME).write_bytes(b"%08x\n%s" % (zlib.crc32(text), text))
    with pytest.raises(SettingsError, match="format 9, this version knows"):
        ask(store)
    (store / NAME).unlink()
    with pytest.raises(SettingsError, match="a start of the bridge rebuilds the store from Kafka"):
        ask(store)


def test_the_directory_of_a_running_bridge_is_read_only_if_forced(
    ask: Callable[..., Result], data_dir: Path, store: Path
) -> None:
    running = DataDir(data_dir)
    for folder in (data_dir, store):
        with pytest.raises(SettingsError, match="a bridge is running on") as raised:
            ask(folder)
        assert exit_code_of(raised.value) == 2
        forced = ask(folder, "--force-read")
        assert (forced.exit_code, "a bridge is running on" in forced.stderr) == (0, True)
    running.close()
    assert ask(store).exit_code == 0


def test_no_bridge_starts_while_the_store_is_read(data_dir: Path) -> None:
    with locked_stores(data_dir):
        with locked_stores(data_dir) as stores:
            assert [str(timer_partition) for timer_partition, _ in stores] == ["timer.requests/0", "timer.requests/1"]
        with pytest.raises(SettingsError, match="another bridge runs on it"):
            DataDir(data_dir)
    DataDir(data_dir).close()


def test_of_several_workers_the_newest_store_of_a_partition_is_exported_once_all_have_ended(tmp_path: Path) -> None:
    root = tmp_path / "timer-data"
    for folder in (root, worker_folder(root, 2)):
        with disk_in(folder) as disk:
            full_history(disk).closes()
    running = DataDir(worker_folder(root, 2))
    with pytest.raises(SettingsError, match="worker=2"):
        run("verify", root)
    running.close()
    assert run("verify", root).output.count("timer.requests/0: sound") == 2
    checkpoint = root / "timer.requests" / "0" / NAME
    found = Checkpoint.from_bytes(checkpoint.read_bytes())
    assert found is not None
    older = found.progress._replace(next_offset=found.progress.next_offset - 1)
    checkpoint.write_bytes(found.model_copy(update={"progress": older}).to_bytes())
    newest, all_ = tmp_path / "newest.parquet", tmp_path / "all.parquet"
    run("export", worker_folder(root, 2), newest)
    run("export", root, all_)
    assert parse_stores(pq.read_metadata(all_).metadata) == parse_stores(pq.read_metadata(newest).metadata)
    assert pq.read_table(all_) == pq.read_table(newest)


def test_copies_in_flight_and_what_is_paused_are_shown_and_exported_with_their_own_due_times(tmp_path: Path) -> None:
    with disk_in(tmp_path) as disk:
        history = History(disk)
        history.receives(10**15 - START_MS + 700, visit=900)
        history.store.committed(history.store.advance_progress())
        copies = [CopyInFlight(7, 2, 900, "bills", "ab", "cd"), CopyInFlight(8, 1, 10**15 + 800, "bills", "", "e")]
        assert history.store.start_checkpoint(0, copies, [])
        history.store.finish_checkpoint()
        history.store.close()
    (found,) = json.loads(run("inspect", tmp_path, "--json").stdout)["stores"]
    copy = {"origin": 7, "rolls": 2, "due_ms": 900, "target": "bills", "id_hash": "ab", "digest": "cd"}
    paused = {"origin": 8, "rolls": 1, "due_ms": 800, "id_hash": "", "digest": "e", "is_paused": True}
    assert found["checkpoint"]["flights"] == [copy | {"is_paused": False}, copy | paused]
    assert [(each["due_ms"], each["is_paused"]) for each in found["timers"]] == [(700, True)]
    assert "paused" in run("inspect", tmp_path).stdout
    (row,) = exported(tmp_path, tmp_path.with_suffix(".parquet")).to_pylist()
    assert (row["due_ms"], row["is_paused"]) == (700, True)
    shown = json.loads(run("pending", "--data-dir", tmp_path, "--json").stdout)["topics"]["orders"]
    assert (shown["paused"], shown["first_due_ms"], shown["histogram"]) == (1, None, [])
