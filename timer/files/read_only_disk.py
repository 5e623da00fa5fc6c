"""A read-only Disk for the store of a stopped bridge."""

import os
from pathlib import Path
from typing import NoReturn


def _refuse(*_asked: object, **_named: object) -> NoReturn:
    raise PermissionError("the store was opened read-only")


class ReadOnlyFile:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, at: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, at)

    append = overwrite = rewrite = truncate = _refuse

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class ReadOnlyDisk:
    """One existing folder. See timer.files.disk.Disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, name: str) -> ReadOnlyFile:
        """Open for reading. Raises FileNotFoundError."""
        return ReadOnlyFile(self._root / name)

    def read(self, name: str) -> bytes | None:
        path = self._root / name
        return path.read_bytes() if path.exists() else None

    def names(self, folder: str) -> list[str]:
        path = self._root / folder
        return sorted(child.name for child in path.iterdir() if child.is_file()) if path.is_dir() else []

    def folder(self, name: str) -> Path:
        """Return the path. Raises FileNotFoundError if there is no such folder."""
        path = self._root / name
        if not path.is_dir():
            raise FileNotFoundError(path)
        return path

    def free_bytes(self) -> int:
        return 0

    map = remove = remove_folder = start_sync = start_replace = _refuse
