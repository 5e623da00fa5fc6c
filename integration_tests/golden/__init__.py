"""Golden bytes: what this version writes, kept in files that every later version must read.

    formats/journal.v1.jsonl    one file for each format and version: test_formats.py
    formats/store.v4/           a closed store: test_store_format.py
    upgrade/0.2.0/closed/       topics, committed offset and store of a bridge of version 0.2.0: test_upgrade.py

`python -m integration_tests.golden.make` writes files that are missing, and never changes one that exists.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
