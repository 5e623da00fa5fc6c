"""Write golden files that are missing: `python -m integration_tests.golden.make`. Never changes one that exists.

Exit code 1 if an existing file of `formats/` is not what this version writes: its format has changed, so give it a new
version. `upgrade/` gets a folder for the version in pyproject.toml.
"""

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from integration_tests.conftest import ROOT
from integration_tests.golden import FOLDER, life, samples


def main(folder: Path = FOLDER) -> int:
    """Write missing golden files to `folder`. Return the exit code."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    left = folder / "upgrade" / version
    if not left.exists():
        write_missing(left, life.leave())
    changed = [path for path in write_missing(folder / "formats", samples.written()) if path.suffix != ".parquet"]
    for path in changed:
        sys.stderr.write(f"{path}: exists, and this version writes other bytes; give the format a new version\n")
    return 1 if changed else 0


def write_missing(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write each of `files` that does not exist. Return those that exist with other bytes."""
    changed = []
    for name, data in files.items():
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        elif path.read_bytes() != data:
            changed.append(path)
    return changed


if __name__ == "__main__":
    sys.exit(main())
