"""Small files and folders of an audit: the only code that knows that `--out` is a local path.

Spark itself reads and writes the tables. A plan, a commit and a lock need little more: these functions.
"""

import shutil
from pathlib import Path


def read(path: Path) -> bytes | None:
    """Return the contents; None if there is no such file."""
    return path.read_bytes() if path.exists() else None


def write(path: Path, data: bytes) -> None:
    """Write the file atomically: a reader finds the old contents or the new ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(data)
    draft.replace(path)


def delete(*paths: Path) -> None:
    """Delete files and whole folders; those that do not exist are no error."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def found(folder: Path, pattern: str) -> list[str]:
    """Return the names below the folder that match, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.glob(pattern))


def exists(path: Path) -> bool:
    return path.exists()
