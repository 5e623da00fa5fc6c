"""Write golden files that are missing: `python -m integration_tests.golden.make`. Never changes one that exists.

Exit code 1 if an existing file is not what this version writes: its format has changed, so give it a new version.
"""

import sys
from pathlib import Path

from integration_tests.golden import FOLDER, formats


def main(folder: Path = FOLDER) -> int:
    """Return the exit code. `folder`: where the golden files are."""
    changed = []
    for name, data in formats.written().items():
        path = folder / "formats" / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            sys.stdout.write(f"{path}: written\n")
        elif path.read_bytes() != data and path.suffix != ".parquet":
            changed.append(path)
    for path in changed:
        sys.stderr.write(f"{path}: exists, and this version writes other bytes; give the format a new version\n")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
