"""A Disk that only reads: for looking into the store of a bridge that is stopped. Nothing is made, cut or written."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from timer.disk import File, Mapping, Syncing


def _refuse(name: str, *_asked: object) -> NoReturn:
    raise PermissionError(f"{name}: opened to be read only")


class ReadOnlyFile:
    def __init__(self, path: Path) -> None:
        self._name = str(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, at: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, at)

    def append(self, data: bytes) -> None:
        _refuse(self._name, data)

    def overwrite(self, at: int, data: bytes) -> None:
        _refuse(self._name, at, data)

    def rewrite(self) -> None:
        _refuse(self._name)

    def truncate(self, size: int) -> None:
        _refuse(self._name, size)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class ReadOnlyDisk:
    """One folder, which has to be there. See timer.disk.Disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, name: str) -> ReadOnlyFile:
        """Raises FileNotFoundError where there is none."""
        return ReadOnlyFile(self._root / name)

    def map(self, name: str, size: int) -> Mapping:
        _refuse(name, size)

    def read(self, name: str) -> bytes | None:
        path = self._root / name
        return path.read_bytes() if path.exists() else None

    def names(self, folder: str) -> list[str]:
        path = self._root / folder
        return sorted(child.name for child in path.iterdir() if child.is_file()) if path.is_dir() else []

    def remove(self, name: str) -> None:
        _refuse(name)

    def free_bytes(self) -> int:
        return 0

    def start_sync(self, files: Sequence[File]) -> Syncing:
        _refuse("sync", files)

    def start_replace(self, name: str, data: bytes) -> Syncing:
        _refuse(name, data)
